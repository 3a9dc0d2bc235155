"""A fit with calibration beside the same fit without."""

import json

import pytest

from kmha.bundle.bundle import Bundle
from kmha.calibration import Calibration
from tests.command_runs import NO_DROPOUT, TINY, call, news_rows, topic_rows, write_csv
from training.fit import main


def fits(folder, flags) -> list[dict]:
    found = []
    for more in ([], ["--no-calibrate"]):
        run = folder / f"run{len(found)}"
        outcome = call(main, *flags, *TINY, *NO_DROPOUT, "--no-baseline", *more, "--out", run)
        assert outcome.status == 0, outcome.err
        metrics = json.loads((run / "metrics.json").read_text("utf-8"))
        found.append({"said": outcome.err, "metrics": metrics, "bundle": Bundle.load(run)})
    return found


def check(calibrated: dict, plain: dict, answers) -> None:
    metrics, before = calibrated["metrics"], plain["metrics"]
    assert "calibration" not in before and Calibration.of(plain["bundle"].details) == Calibration()
    told = metrics["calibration"]
    assert Calibration.of(calibrated["bundle"].details).values() == {
        name: told[name] for name in ("temperatures", "biases")
    }
    for part in ("validation", "test"):
        assert metrics[part]["accuracy"] == before[part]["accuracy"]
        assert metrics[part]["macro_f1"] == before[part]["macro_f1"]
        for name in ("ece", "loss"):
            assert told[part][f"{name}_before"] == pytest.approx(before[part][name], abs=1e-5)
            assert told[part][name] == metrics[part][name]
    assert metrics["validation"]["loss"] < before["validation"]["loss"]
    assert answers(calibrated["bundle"]) == answers(plain["bundle"])


def test_a_fit_calibrates_and_answers_as_it_would_have(tmp_path):
    files = {
        name: write_csv(tmp_path / f"{name}.csv", news_rows(rows, seed=seed))
        for seed, (name, rows) in enumerate((("train", 60), ("validation", 120), ("test", 30)))
    }
    found = fits(tmp_path, [f"--data.{name}={path}" for name, path in files.items()])
    texts = [text for text, _ in news_rows(50, seed=9)]
    check(found[0], found[1], lambda bundle: [each["label"] for each in bundle.predict(texts)])
    assert "temperature" in found[0]["said"] and "calibration error" in found[0]["said"]


def test_several_labels_keep_their_labels(tmp_path):
    header = ("text", "labels")
    files = {}
    for seed, (name, rows) in enumerate((("train", 60), ("validation", 150), ("test", 30))):
        made = [(text, "|".join(labels)) for text, labels in topic_rows(rows, seed=seed)]
        files[name] = write_csv(tmp_path / f"{name}.csv", made, header)
    found = fits(tmp_path, [f"--data.{name}={path}" for name, path in files.items()])
    texts = [text for text, _ in topic_rows(50, seed=9)]
    check(found[0], found[1], lambda bundle: [set(each["labels"]) for each in bundle.predict(texts)])
    assert len(found[0]["metrics"]["calibration"]["temperatures"]) == len(found[0]["bundle"].labels)


def test_few_validation_rows_are_told(news_run):
    assert "not calibrated: too few validation rows" in news_run.outcome.err
    assert "calibration" not in json.loads((news_run.folder / "metrics.json").read_text("utf-8"))
