"""Every file in examples/ has valid settings, and a header with command, expected time and expected score."""

import re
import shlex
from pathlib import Path

import pytest

from tests.command_runs import ROOT
from training.cli.parser import parse
from training.config.config import FitConfig
from training.config.validation import check_settings

EXAMPLES = sorted((ROOT / "examples").glob("*.toml"))
every_example = pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.name)


def header(path: Path) -> str:
    lines = path.read_text("utf-8").splitlines()
    return "\n".join(line for line in lines[: lines.index("")] if line.startswith("#"))


def test_examples_exist():
    assert EXAMPLES


@every_example
def test_the_settings_of_an_example_are_valid(path):
    # Users pass their own rows, except for the sample of reviews.
    rows = [] if path.stem == "reviews" else ["--data.train", "train.csv"]
    config = parse(FitConfig, ["--config", str(path), *rows], "fit")
    check_settings(config)
    assert config.out is not None


@every_example
def test_the_header_of_an_example_has_command_time_and_score(path):
    stated = dict(
        re.findall(r"^# (command|expected time|expected score):\s+(\S.*)$", header(path), re.MULTILINE)
    )
    assert stated.keys() == {"command", "expected time", "expected score"}
    assert re.search(r"\d", stated["expected time"]) and re.search(r"\d", stated["expected score"])


@every_example
def test_the_header_of_an_example_has_one_command_with_its_file(path, monkeypatch):
    monkeypatch.chdir(ROOT)
    (command,) = re.findall(r"^# command:\s+(\S.*)$", header(path), re.MULTILINE)
    python, dash_m, module, *arguments = shlex.split(command)
    assert (python, dash_m, module) == ("python", "-m", "training.fit")
    assert parse(FitConfig, arguments, module).config == path.relative_to(ROOT)
