"""The benchmark of training speed with a tiny model; numbers are not checked, only that they exist."""

import json

import pytest

from tests.command_runs import call, news_rows
from training.benchmark import main

TINY = ["--hidden-dim=8", "--num-heads=2", "--num-layers=1", "--intermediate-dim=8", "--max-length=16"]
SHORT = ["--batch-rows=4", "--rounds=2", "--steps=2"]


@pytest.fixture(scope="module")
def rows(tmp_path_factory):
    path = tmp_path_factory.mktemp("rows") / "rows.csv"
    text = "".join(f'"{text}",{label}\n' for text, label in news_rows(24, seed=3))
    path.write_text(f"text,label\n{text}", "utf-8")
    return path


def benchmark(rows, *arguments):
    return call(main, "--data", rows, *TINY, *SHORT, *arguments)


@pytest.mark.second
def test_kmha_is_measured_and_profiled_alone(rows, tmp_path):
    outcome = benchmark(
        rows,
        "--peers",
        "torch",
        "--torch-python",
        _no_python(tmp_path),
        "--precisions=float32",
        "--profile",
        "--out",
        tmp_path / "speed.json",
    )
    assert outcome.status == 0, outcome.err
    assert "left out: torch, the package torch is not installed" in outcome.err
    result = json.loads(outcome.out)
    assert result == json.loads((tmp_path / "speed.json").read_text())
    (learner,) = result["learners"]
    assert learner["learner"] == "kmha" and learner["tokens_per_second"] > 0
    assert learner["computed_over_real"] >= 1
    assert 0 <= learner["matmul_share"] < 1.5
    assert result["matmul_gflops"]["float32"] > 0
    for times in result["op_seconds"]["float32"].values():
        assert times["MatMul"] > 0


@pytest.mark.slow
@pytest.mark.parametrize("more", [[], ["--pretrained=minilm", "--max-length=32"]], ids=["new", "minilm"])
def test_all_installed_peers_are_measured(rows, more):
    outcome = benchmark(rows, *more)
    assert outcome.status == 0, outcome.err
    found = {(each["learner"], each["precision"]): each for each in json.loads(outcome.out)["learners"]}
    for precision in ("float32", "bfloat16"):
        assert found["kmha", precision]["kmha_over"] == 1
        assert found["keras_hub", precision]["kmha_over"] > 0
        # It pads to the full length.
        assert (
            found["keras_hub", precision]["computed_over_real"]
            >= found["kmha", precision]["computed_over_real"]
        )


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--num-heads=3"], "--num-heads: expected a divisor of --hidden-dim 8, got 3"),
        (
            ["--torch-python=/no/python"],
            "--torch-python: expected a Python, got /no/python, which does not exist",
        ),
        (["--batch-rows=100"], "--batch-rows: expected at most the 24 rows, got 100"),
        (["--peers", "jax"], "--peers: expected "),
    ],
)
def test_bad_flags_are_one_line(rows, arguments, message):
    outcome = benchmark(rows, *arguments)
    assert outcome.status == 2
    assert message in outcome.err.splitlines()[-1]
    assert not outcome.out


def _no_python(folder):
    """A Python without packages."""
    import sys

    python = folder / "python"
    python.write_text(f'#!/bin/sh\nexec {sys.executable} -S "$@"\n')
    python.chmod(0o755)
    return python
