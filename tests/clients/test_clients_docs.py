"""Commands and versions in docs/how-to/clients.md."""

import json
import re
import shlex

import pytest

from clients import browser, python_clients
from clients.check import CheckConfig
from clients.processes import load_program
from clients.screenshot import ScreenshotConfig
from tests.command_runs import ROOT
from training.cli.parser import parse

PAGE = (ROOT / "docs" / "how-to" / "clients.md").read_text("utf-8")
FILL = load_program(ROOT / "examples" / "browser" / "fill.py")


@pytest.mark.parametrize(
    ("config", "command"),
    [
        (CheckConfig, r"^ +python -m clients\.check (.*)$"),
        (FILL.FillConfig, r"^ +python examples/browser/fill\.py (.*?)(?: +#.*)?$"),
        (ScreenshotConfig, r"`python -m clients\.screenshot (.*?)`"),
    ],
)
def test_commands_parse(config, command):
    (line,) = re.findall(command, PAGE, re.MULTILINE)
    assert parse(config, shlex.split(line), "command")


def test_versions_are_those_in_use():
    packages = json.loads((ROOT / "examples" / "browser" / "package.json").read_text("utf-8"))["dependencies"]
    for name, version in packages.items():
        assert f"`{name}` {version}" in PAGE
    name, _, version = browser.MEDIAPIPE.rpartition("@")
    assert f"`{name}` {version}" in PAGE
    assert f"MediaPipe Tasks {python_clients.MEDIAPIPE_VERSION}" in PAGE
    assert f"`nvidia-pytriton` {python_clients.TRITON_VERSION}" in PAGE


def test_the_screenshot_exists_and_is_small():
    (name,) = re.findall(r"!\[[^\]]+\]\((.+?)\)", PAGE)
    picture = (ROOT / "docs" / "how-to" / name).read_bytes()
    assert picture.startswith(b"\x89PNG") and len(picture) < 200_000
