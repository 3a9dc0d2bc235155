import shlex
from pathlib import Path

import pytest

from training.cli.parser import parse
from training.config.config import FitConfig
from training.config.defaults import resolve_config
from training.reporting.data_summary import rerun_command

FLAGS = [
    [],
    ["--task=match", "--data.train=a b.csv", "--match.granularities", "char", "word", "--no-baseline"],
    ["--task=tag", "--data.train=-x.conll", "--tag.best-by=span_f1", "--text.lower-case=True"],
    ["--encoder.size=mini", "--train.seed=7", "--data.label-separator=$ '", "--encoder.ngram-orders", "2"],
    ["--task=masked-lm", "--data.train=t.txt", "--masked-lm.whole-word", "--no-calibrate"],
]


@pytest.mark.parametrize("flags", FLAGS, ids=" ".join)
def test_the_command_has_the_settings_of_the_run(flags):
    config = resolve_config(parse(FitConfig, [*flags, "--out=runs/x", "--overwrite"], "fit"))
    command = shlex.split(rerun_command(config))
    assert command[:3] == ["python", "-m", "training.fit"]
    again = resolve_config(parse(FitConfig, command[3:], "fit"))
    assert again.out == Path("runs/again") and not again.overwrite
    for name, value in vars(config).items():
        assert name in ("out", "overwrite") or getattr(again, name) == value


def test_defaults_are_not_listed():
    assert rerun_command(resolve_config(FitConfig())) == "python -m training.fit --out runs/again"
