"""docs/how-to/clients.md says what is there."""

import json
import re
import shlex

import pytest

from clients import browser, mediapipe_python, triton
from clients.check import CheckConfig
from clients.programs import loaded_program
from clients.screenshot import ScreenshotConfig
from tests.command_runs import ROOT
from training.cli.parser import parse

PAGE = (ROOT / "docs" / "how-to" / "clients.md").read_text("utf-8")
FILL = loaded_program(ROOT / "examples" / "browser" / "fill.py")


@pytest.mark.parametrize(
    ("config", "command"),
    [
        (CheckConfig, r"^ +python -m clients\.check (.*)$"),
        (FILL.FillConfig, r"^ +python examples/browser/fill\.py (.*?)(?: +#.*)?$"),
        (ScreenshotConfig, r"`python -m clients\.screenshot (.*?)`"),
    ],
)
def test_its_commands_are_right(config, command):
    (line,) = re.findall(command, PAGE, re.MULTILINE)
    assert parse(config, shlex.split(line), "command")


def test_its_versions_are_those_that_are_asked():
    packages = json.loads((ROOT / "examples" / "browser" / "package.json").read_text("utf-8"))["dependencies"]
    for name, version in packages.items():
        assert f"`{name}` {version}" in PAGE
    name, _, version = browser.MEDIAPIPE.rpartition("@")
    assert f"`{name}` {version}" in PAGE
    assert f"MediaPipe Tasks {mediapipe_python.VERSION}" in PAGE
    assert f"`nvidia-pytriton` {triton.VERSION}" in PAGE


def test_its_picture_is_there_and_small():
    (name,) = re.findall(r"!\[[^\]]+\]\((.+?)\)", PAGE)
    picture = (ROOT / "docs" / "how-to" / name).read_bytes()
    assert picture.startswith(b"\x89PNG") and len(picture) < 200_000
