"""Models of every kind are calibrated on rows whose labels were drawn from other probabilities than theirs."""

import types
from typing import Any

import numpy as np
import pytest
from scipy.special import expit, softmax

from kmha.bundle.bundle import Bundle
from kmha.calibration import Calibration, calibrate
from kmha.inference.tagger import PathDecoder
from tests.bundles import make_tagger_bundle
from training.evaluation.model_calibration import can_calibrate, fit_calibration, top_predictions

RNG = np.random.default_rng(5)


def stand_in(targets: Any = None, **more) -> Any:
    """A task or a set of rows, of which only what is asked for is there."""
    return types.SimpleNamespace(targets=lambda part, labels: targets, **more)


def labelled(ids, names) -> Any:
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
    # Half of the rows have a label that the model does not know; they say nothing.
    known = np.where(np.arange(1000) % 2, ids, 3)
    monkeypatch.setattr(model_calibration, "label_ids", lambda examples, rows, labels: (known, []))
    found = fit_calibration(classifier(), stand_in(), labelled(known, "abcd"), list("abc"), 2 * logits)
    assert found is not None and found.temperatures[0] == pytest.approx(2, rel=0.15)


def test_several_labels_and_pairs():
    logits = 2 * RNG.normal(size=(2000, 3))
    true = (RNG.random(logits.shape) < expit(logits)).astype(np.int32)
    several = fit_calibration(
        classifier(multi_label=True), stand_in(true), stand_in(), list("abc"), logits * 2
    )
    assert several is not None
    np.testing.assert_allclose(several.temperatures, [2.0] * 3, rtol=0.2)
    # Of pairs the second column is the number of the query.
    pairs = np.stack([true[:, 0], np.arange(2000)], axis=1).astype(np.float32)
    one = fit_calibration(matcher("binary"), stand_in(pairs), stand_in(), ["score"], logits[:, :1] * 2 - 1)
    assert one is not None and one.temperatures[0] == pytest.approx(2, rel=0.2)
    assert one.biases[0] == pytest.approx(0.5, abs=0.2)


def test_what_gives_no_probability_is_not_calibrated():
    assert not can_calibrate(matcher("graded"))
    assert can_calibrate(matcher("binary")) and can_calibrate(classifier())


def test_a_tagger_s_temperature_is_found_and_its_tags_stay():
    bundle = make_tagger_bundle()
    counts = RNG.integers(1, 9, 150).astype(np.int64)
    scores = 2 * RNG.normal(size=(int(counts.sum()), 5)).astype(np.float32)
    before = PathDecoder(bundle.model)(scores, counts)
    # The tags are drawn word by word from what the model says; then it says all of it with twice the logarithms.
    ids = (before.probabilities.cumsum(axis=1) > RNG.random((len(scores), 1))).argmax(axis=1)
    calibrate(bundle.model, Calibration((0.5,), (0.0,)))
    sentences = [[bundle.labels[i] for i in part] for part in np.split(ids, np.cumsum(counts)[:-1])]
    task = stand_in(given_tags=lambda part: sentences, learnt=lambda tags: tags)
    found = fit_calibration(bundle.model, task, stand_in(), bundle.labels, scores * 2)
    assert found is not None and found.temperatures[0] == pytest.approx(2, rel=0.15)
    calibrate(bundle.model, found)
    after = PathDecoder(Bundle(bundle.model, bundle.preprocessor, bundle.labels).model)(
        found.apply(scores * 2).astype(np.float32), counts
    )
    np.testing.assert_array_equal(after.tag_ids, before.tag_ids)
    few = (
        fit_calibration(bundle.model, task, stand_in(), bundle.labels, scores) if len(scores) < 100 else None
    )
    assert few is None


def test_an_answer_s_probability_is_that_of_what_is_said():
    task = stand_in(np.array([[1.0, 0], [0.0, 1], [1.0, 2]]))
    sure, right = top_predictions(
        task, stand_in(), ["score"], np.array([[0.4], [0.35], [0.1]], np.float32), [0.375]
    )
    np.testing.assert_allclose(sure, [0.4, 0.65, 0.9])
    assert right.tolist() == [True, True, False]
