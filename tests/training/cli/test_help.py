import re

import pytest

from training.cli.help import format_help
from training.cli.parser import parse, run
from training.config.config import MAIN_FLAGS, FitConfig
from training.fit import main
from training.predict import PredictConfig


@pytest.mark.parametrize("task", ["classify", "match", "tag", "masked-lm"])
def test_short_help_has_the_settings_of_the_task(capsys, task):
    assert main(["--help", "--task", task]) == 0
    lines = capsys.readouterr().out.splitlines()
    flags = [line.split()[0] for line in lines if line.startswith("  --")]
    assert [flag for flag in flags if flag in MAIN_FLAGS] == sorted(MAIN_FLAGS, key=flags.index)
    others = [flag for flag in flags if flag not in MAIN_FLAGS]
    assert others and all(flag.startswith(f"--{task}.") for flag in others)
    assert len(lines) <= 60 and re.fullmatch("--help-all lists all [0-9]+ settings.", lines[-1])


def test_long_help_has_all_settings_without_noise(capsys):
    assert main(["--help-all"]) == 0
    text = capsys.readouterr().out
    assert "  --fewshot {auto,contrastive,probe,off}" in text and "  --optimizer.ema-decay FLOAT" in text
    assert "(default: 0.999)" in text
    assert not re.search("None|[│╭─]|default: \\)", text)


def test_help_of_a_command_without_a_short_form(monkeypatch):
    monkeypatch.setenv("COLUMNS", "200")
    text = format_help(PredictConfig, "predict")
    assert "RUN" in text and "  --data.delimiter STR" in text and "--help-all" not in text
    assert "Run folder that training.fit wrote. (required)" in text
    assert run(lambda: parse(PredictConfig, ["-h"], "predict") and 1) == 0
    assert "Trains a model from a file of examples" in format_help(FitConfig, "fit", ["--out"])
