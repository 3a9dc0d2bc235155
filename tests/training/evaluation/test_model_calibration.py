import json
import types
from typing import Any

import numpy as np
import pytest
import tensorflow as tf
from hypothesis import given
from hypothesis import strategies as st
from scipy.special import expit, log_softmax, softmax

from kmha.bundle.bundle import Bundle
from kmha.calibration import Calibration, calibrate
from kmha.inference.tagger import PathDecoder
from tests.bundles import make_tagger_bundle
from tests.command_runs import NO_DROPOUT, TINY, call, news_rows, topic_rows, write_csv
from training.evaluation.evaluator import Evaluator, top_predictions
from training.evaluation.model_calibration import (
    MIN_ROWS,
    can_calibrate,
    fit_calibration,
    fit_per_label,
    fit_temperature,
)
from training.fit import main

ROWS = 4000


def drawn(temperature: float, rows: int = ROWS, classes: int = 4) -> tuple[np.ndarray, np.ndarray]:
    """Logits that need to be divided by a temperature, and labels drawn from the divided logits."""
    rng = np.random.default_rng(3)
    logits = 2 * rng.normal(size=(rows, classes))
    true = (softmax(logits, axis=1).cumsum(axis=1) > rng.random((rows, 1))).argmax(axis=1)
    return logits * temperature, true


def yes_or_no(temperatures, biases, rows: int = ROWS) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(4)
    logits = 2 * rng.normal(size=(rows, len(temperatures)))
    true = rng.random(logits.shape) < expit(logits)
    return (logits - np.array(biases)) * np.array(temperatures), true.astype(int)


@pytest.mark.parametrize("temperature", [0.3, 2.0, 3.0])
def test_known_temperature_is_found(temperature):
    found = fit_temperature(*drawn(temperature))
    assert found is not None and found.biases == (0.0,)
    assert found.temperatures[0] == pytest.approx(temperature, rel=0.05)


def test_temperature_is_better_than_a_grid():
    logits, true = drawn(1.7, rows=300)
    found = fit_temperature(logits, true)
    assert found is not None

    def loss(temperature):
        picked = log_softmax(logits / temperature, axis=1)[np.arange(len(true)), true]
        return -picked.sum() + np.log(temperature) ** 2 / 2

    grid = np.exp(np.linspace(np.log(0.05), np.log(20), 2000))
    best = min(grid, key=loss)
    assert found.temperatures[0] == pytest.approx(best, rel=0.005)
    assert loss(found.temperatures[0]) <= loss(best) + 1e-6


@given(factor=st.floats(0.5, 3))
def test_scaled_logits_scale_the_temperature(factor):
    logits, true = drawn(1.5)
    one, other = fit_temperature(logits, true), fit_temperature(logits * factor, true)
    assert one is not None and other is not None
    assert other.temperatures[0] == pytest.approx(one.temperatures[0] * factor, rel=0.01)


def test_all_correct_rows_do_not_give_an_extreme_temperature():
    logits = np.tile([3.0, 0.0, 0.0], (MIN_ROWS, 1))
    found = fit_temperature(logits, np.zeros(MIN_ROWS, int))
    assert found is not None and 0.2 < found.temperatures[0] < 1


def test_too_few_rows_give_no_calibration():
    logits, true = drawn(3.0, rows=MIN_ROWS)
    assert fit_temperature(logits, true) is not None
    assert fit_temperature(logits[1:], true[1:]) is None
    several, several_true = yes_or_no([3.0, 1.0], [0.0, 0.0], MIN_ROWS - 1)
    assert fit_per_label(several, several_true) is None


def test_temperature_without_improvement_is_not_used():
    # Dividing them changes no probability.
    assert fit_temperature(np.zeros((ROWS, 3)), np.arange(ROWS) % 3) is None
    assert fit_per_label(np.zeros((ROWS, 1)), np.arange(ROWS)[:, None] % 2) is None


def test_extreme_logits():
    logits, true = drawn(1.0, rows=500)
    found = fit_temperature(logits * 1e4, true)
    assert found is not None and found.temperatures[0] == pytest.approx(20, rel=0.01)
    several, expected = yes_or_no([1e4], [0.0])
    each = fit_per_label(several, expected)
    assert each is not None and np.isfinite([*each.temperatures, *each.biases]).all()


def test_each_label_has_its_own_temperature_and_bias():
    temperatures, biases = [0.5, 1.0, 2.0], [1.0, 0.0, -1.5]
    found = fit_per_label(*yes_or_no(temperatures, biases))
    assert found is not None
    np.testing.assert_allclose(found.temperatures, temperatures, rtol=0.1)
    np.testing.assert_allclose(found.biases, biases, atol=0.15)


def test_label_without_rows_is_near_the_others():
    logits, true = yes_or_no([2.0, 2.0, 2.0], [0.0, 0.0, 0.0])
    true[:, 2] = 0
    logits[:, 2] = -8.0
    found = fit_per_label(logits, true)
    assert found is not None
    assert abs(np.log(found.temperatures[2] / found.temperatures[0])) < 1.0
    assert abs(found.biases[2]) < 1.5


def test_single_label_is_better_than_a_grid():
    logits, true = yes_or_no([1.8], [0.7], 400)
    found = fit_per_label(logits, true)
    assert found is not None

    def loss(temperature, bias):
        moved = logits / temperature + bias
        cross_entropy = (np.logaddexp(0, moved) - true * moved).sum()
        return cross_entropy + (np.log(temperature) ** 2 + bias**2) / 2

    grid = [(t, b) for t in np.linspace(1, 3, 81) for b in np.linspace(-1, 2, 121)]
    best = min(grid, key=lambda point: loss(*point))
    assert found.temperatures[0] == pytest.approx(best[0], abs=0.03)
    assert found.biases[0] == pytest.approx(best[1], abs=0.03)


RNG = np.random.default_rng(5)


def fake(targets: Any = None, **more) -> Any:
    """A task or a set of rows with some attributes only."""
    return types.SimpleNamespace(targets=lambda part, labels: targets, **more)


def labeled(ids, names) -> Any:
    """Rows with one label each."""
    examples = types.SimpleNamespace(
        label_names=list(names), local_labels=lambda rows: (np.asarray(ids), np.ones(len(ids), int))
    )
    return types.SimpleNamespace(examples=examples, rows=np.arange(len(ids)))


def classifier(**options) -> Any:
    from kmha.models.classifier import TextClassifier
    from tests.training.tiny_runs import CONFIG

    return TextClassifier(CONFIG, 3, **options)


def matcher(target) -> Any:
    from kmha.models.matcher import TextMatcher
    from tests.training.tiny_runs import CONFIG

    return TextMatcher({"char": CONFIG}, 1, target=target, form="bi", overlap=False)


def test_one_label(monkeypatch):
    from training.evaluation import model_calibration

    logits = 2 * RNG.normal(size=(1000, 3))
    ids = (softmax(logits, axis=1).cumsum(axis=1) > RNG.random((1000, 1))).argmax(axis=1)
    # Half of the rows have a label that the model does not know; they are ignored.
    known = np.where(np.arange(1000) % 2, ids, 3)
    monkeypatch.setattr(model_calibration, "label_ids", lambda examples, rows, labels: (known, []))
    found = fit_calibration(classifier(), fake(), labeled(known, "abcd"), list("abc"), 2 * logits)
    assert found is not None and found.temperatures[0] == pytest.approx(2, rel=0.15)


def test_several_labels_and_pairs():
    logits = 2 * RNG.normal(size=(2000, 3))
    true = (RNG.random(logits.shape) < expit(logits)).astype(np.int32)
    several = fit_calibration(classifier(multi_label=True), fake(true), fake(), list("abc"), logits * 2)
    assert several is not None
    np.testing.assert_allclose(several.temperatures, [2.0] * 3, rtol=0.2)
    # Of pairs the second column is the number of the query.
    pairs = np.stack([true[:, 0], np.arange(2000)], axis=1).astype(np.float32)
    one = fit_calibration(matcher("binary"), fake(pairs), fake(), ["score"], logits[:, :1] * 2 - 1)
    assert one is not None and one.temperatures[0] == pytest.approx(2, rel=0.2)
    assert one.biases[0] == pytest.approx(0.5, abs=0.2)


def test_graded_models_cannot_be_calibrated():
    assert not can_calibrate(matcher("graded"))
    assert can_calibrate(matcher("binary")) and can_calibrate(classifier())


def test_temperature_divides_all_scores_of_a_tagger():
    bundle = make_tagger_bundle(linear=True, characters=True)
    features = bundle.preprocessor.pad(bundle.preprocessor.encode(tf.ragged.constant([["old", "bread"]])))
    before = bundle.model(features).numpy()
    calibrate(bundle.model, Calibration((2.0,), (0.0,)))
    np.testing.assert_allclose(bundle.model(features).numpy(), before / 2, rtol=1e-4, atol=1e-5)


def test_temperature_of_a_tagger_does_not_change_its_tags():
    bundle = make_tagger_bundle()
    counts = RNG.integers(1, 9, 150).astype(np.int64)
    scores = 2 * RNG.normal(size=(int(counts.sum()), 5)).astype(np.float32)
    before = PathDecoder(bundle.model)(scores, counts)
    # Tags are drawn word by word from the probabilities of the model; then its scores are doubled.
    ids = (before.probabilities.cumsum(axis=1) > RNG.random((len(scores), 1))).argmax(axis=1)
    calibrate(bundle.model, Calibration((0.5,), (0.0,)))
    sentences = [[bundle.labels[i] for i in part] for part in np.split(ids, np.cumsum(counts)[:-1])]
    task = fake(row_tags=lambda part: sentences, to_model_scheme=lambda tags: tags)
    found = fit_calibration(bundle.model, task, fake(), bundle.labels, scores * 2)
    assert found is not None and found.temperatures[0] == pytest.approx(2, rel=0.15)
    calibrate(bundle.model, found)
    after = PathDecoder(Bundle(bundle.model, bundle.preprocessor, bundle.labels).model)(
        found.apply(scores * 2).astype(np.float32), counts
    )
    np.testing.assert_array_equal(after.tag_ids, before.tag_ids)
    few = fit_calibration(bundle.model, task, fake(), bundle.labels, scores) if len(scores) < 100 else None
    assert few is None


def test_top_predictions_of_labels_and_matches():
    task = fake(np.array([[1.0, 0], [0.0, 1], [1.0, 2]]))
    confidences, right = top_predictions(
        task, fake(), ["score"], np.array([[0.4], [0.35], [0.1]], np.float32), [0.375]
    )
    np.testing.assert_allclose(confidences, [0.4, 0.65, 0.9])
    assert right.tolist() == [True, True, False]


def fits(folder, flags) -> list[dict]:
    found = []
    for more in ([], ["--no-calibrate"]):
        run = folder / f"run{len(found)}"
        outcome = call(main, *flags, *TINY, *NO_DROPOUT, "--no-baseline", *more, "--out", run)
        assert outcome.status == 0, outcome.err
        metrics = json.loads((run / "metrics.json").read_text("utf-8"))
        found.append({"said": outcome.err, "metrics": metrics, "bundle": Bundle.load(run)})
    return found


def check(calibrated: dict, plain: dict, predictions_of) -> None:
    metrics, before = calibrated["metrics"], plain["metrics"]
    assert "calibration" not in before and Calibration.of(plain["bundle"].details) == Calibration()
    calibration = metrics["calibration"]
    assert Calibration.of(calibrated["bundle"].details).values() == {
        name: calibration[name] for name in ("temperatures", "biases")
    }
    for part in ("validation", "test"):
        assert metrics[part]["accuracy"] == before[part]["accuracy"]
        assert metrics[part]["macro_f1"] == before[part]["macro_f1"]
        for name in ("ece", "loss"):
            assert calibration[part][f"{name}_before"] == pytest.approx(before[part][name], abs=1e-5)
            assert calibration[part][name] == metrics[part][name]
    assert metrics["validation"]["loss"] < before["validation"]["loss"]
    assert predictions_of(calibrated["bundle"]) == predictions_of(plain["bundle"])


@pytest.mark.second
def test_calibrated_fit_has_the_same_predictions_from_one_pass_over_the_test_rows(tmp_path, monkeypatch):
    outputs, passes = Evaluator._outputs, []

    def counted(self, source):
        if self.out_of_fold is None or source is not self.out_of_fold.source:
            passes.append(len(source.rows))
        return outputs(self, source)

    monkeypatch.setattr(Evaluator, "_outputs", counted)
    files = {
        name: write_csv(tmp_path / f"{name}.csv", news_rows(rows, seed=seed))
        for seed, (name, rows) in enumerate((("train", 60), ("validation", 120), ("test", 30)))
    }
    found = fits(tmp_path, [f"--data.{name}={path}" for name, path in files.items()])
    texts = [text for text, _ in news_rows(50, seed=9)]
    check(found[0], found[1], lambda bundle: [each["label"] for each in bundle.predict(texts)])
    assert "temperature" in found[0]["said"] and "calibration error" in found[0]["said"]
    assert passes.count(30) == 2  # of each fit one


@pytest.mark.second
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


def test_few_validation_rows_skip_the_calibration(news_run):
    assert "calibration skipped: too few validation rows" in news_run.outcome.err
    assert "calibration" not in json.loads((news_run.folder / "metrics.json").read_text("utf-8"))
