import pytest

from training.reporting.verdict import headline, terminal_lines

MODEL = {"rows": 500, "accuracy": 0.9, "intervals": {"accuracy": [0.87, 0.93]}}


def other(verdict: str, difference: float) -> dict:
    found = {"difference": difference, "interval": [difference - 0.01, difference + 0.01], "verdict": verdict}
    return {"accuracy": 0.9 - difference, "comparison": {"accuracy": found}}


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


def test_the_end_of_a_fit_is_a_table_the_report_and_two_commands(tmp_path):
    baseline = {"name": "linear baseline", **other("model wins", 0.05)}
    step = {"reason": "export it for serving", "command": "python -m export.savedmodel runs/x served/x"}
    metrics = {"judged_on": "test", "metric": "accuracy", "test": MODEL, "next": [step, step]}
    (tmp_path / "report.html").touch()
    lines = terminal_lines(
        tmp_path, {**metrics, "linear_path": other("model wins", 0.1), "baseline": baseline}
    )
    rows = [line.split("  ")[0] for line in lines[2:6]]
    assert rows == ["", "model", "linear path alone", "linear baseline"]
    assert "0.870 – 0.930" in lines[3] and lines[5].endswith("+0.0500 (+0.0400 to +0.0600)")
    assert lines[7].startswith("The model is better than the linear baseline")
    assert lines[8:10] == [f"Report: {tmp_path / 'report.html'}", "Next:"]
    assert lines[10:] == 2 * ["  # export it for serving", f"  {step['command']}"]
    assert not any("minus" in line or "Report" in line for line in terminal_lines(tmp_path / "none", metrics))
