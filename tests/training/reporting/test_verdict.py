from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tests.command_runs import ROOT
from training.reporting.verdict import headline, terminal_lines, verdict_blocks

MODEL = {"rows": 500, "accuracy": 0.9, "intervals": {"accuracy": [0.87, 0.93]}}


def other(verdict: str, difference: float) -> dict:
    return {
        "accuracy": 0.9 - difference,
        **compared(verdict, difference, difference - 0.01, difference + 0.01),
    }


@pytest.mark.parametrize(
    ("verdict", "difference", "sentence"),
    [
        ("model wins", 0.05, "The model is better than the linear baseline: accuracy 0.9000 against 0.8500,"),
        (
            "baseline wins",
            -0.05,
            "The model is worse than the linear baseline: accuracy 0.9000 against 0.9500,",
        ),
        (
            "no difference shown",
            0.0,
            "No difference between the model and the linear baseline was shown: accuracy",
        ),
    ],
)
def test_the_headline_names_the_better_model_and_the_difference(verdict, difference, sentence):
    found = headline(MODEL, other(verdict, difference), "accuracy", "linear baseline")
    assert found.startswith(sentence)
    ends = f"{difference - 0.01:+.4f} to {difference + 0.01:+.4f}"
    assert found.endswith(f"difference {difference:+.4f} (95 % interval {ends}).")


def test_without_a_comparison_the_headline_has_the_scores():
    assert headline(MODEL, {}, "accuracy", "baseline") == "Score of the model: accuracy 0.9000."
    assert "linear baseline 0.4000, not compared" in headline(
        MODEL, {"accuracy": 0.4}, "accuracy", "linear baseline"
    )
    assert headline({"macro_f1": None}, {}, "macro_f1", "baseline") == "Score of the model: macro F1 –."


def test_a_label_is_the_weakest_one_only_if_it_has_errors():
    def shown(f1: float) -> str:
        values = {"precision": 1.0, "recall": f1, "support": 3}
        per_class = {"a": {"f1": 1.0, **values}, "b": {"f1": f1, **values}}
        data: Any = SimpleNamespace(
            scores={"accuracy": 0.9, "per_class": per_class},
            metric="accuracy",
            metrics={},
            task=SimpleNamespace(traits=SimpleNamespace(baseline_name="linear baseline")),
            scores_of=lambda name: {},
        )
        return str(list(verdict_blocks(data)))

    assert "Weakest label: b, F1 0.5000" in shown(0.5)
    assert "Weakest label" not in shown(1.0)


def test_the_end_of_a_fit_is_that_of_the_page(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    run = Path("runs/news")
    run.mkdir(parents=True)
    (run / "report.html").touch()
    steps = {
        "export it for serving": "python -m export.savedmodel runs/news served/news",
        "predict the lines of a file": "python -m training.predict runs/news < texts.txt",
    }
    metrics = {
        "judged_on": "test",
        "metric": "accuracy",
        "test": {"rows": 240, "accuracy": 0.9625, "intervals": {"accuracy": [0.933, 0.983]}},
        "linear_path": {"accuracy": 0.95, **compared("no difference shown", 0.0125, 0, 0.0292)},
        "baseline": {
            "name": "linear baseline",
            "accuracy": 0.9,
            "intervals": {"accuracy": [0.863, 0.938]},
            **compared("model wins", 0.0625, 0.0333, 0.0917),
        },
        "next": [{"reason": reason, "command": command} for reason, command in steps.items()],
    }
    page = (ROOT / "docs/getting-started.md").read_text("utf-8")
    assert "```text" + "\n".join(terminal_lines(run, metrics)) + "\n```" in page
    lines = terminal_lines(tmp_path, {**metrics, "linear_path": None, "baseline": {}})
    assert not any("minus" in line or "Report" in line for line in lines)


def compared(verdict: str, difference: float, *interval: float) -> dict:
    found = {"difference": difference, "interval": list(interval), "verdict": verdict}
    return {"comparison": {"accuracy": found}}
