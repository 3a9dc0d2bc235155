import json
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn import metrics

from kmha.errors import InputError
from training.metrics.classification import (
    calibration_error,
    multi_label_prediction_scores,
    multi_label_scores,
    reliability_bins,
    single_label_prediction_scores,
    single_label_scores,
)

_ZERO: Any = 0  # the stubs of scikit-learn know only strings


def _random_single(rows, classes, seed=0):
    generator = np.random.default_rng(seed)
    true_ids = generator.integers(classes, size=rows)
    logits = generator.normal(size=(rows, classes)) + 1.5 * np.eye(classes)[true_ids]
    probabilities = np.exp(logits)
    return true_ids, probabilities / probabilities.sum(axis=1, keepdims=True)


def _names(count):
    return [f"label{index}" for index in range(count)]


def _assert_scores(scores, **expected):
    for name, value in expected.items():
        assert scores[name] == pytest.approx(value, abs=1e-9), name


@pytest.mark.parametrize("classes", [3, 7])
def test_single_label_scores_equal_scikit_learn(classes):
    true_ids, probabilities = _random_single(200, classes)
    predictions = probabilities.argmax(axis=1)
    scores = single_label_scores(true_ids, probabilities, _names(classes))
    macro = {"average": "macro", "zero_division": 0}
    _assert_scores(
        scores,
        rows=200,
        accuracy=metrics.accuracy_score(true_ids, predictions),
        macro_f1=metrics.f1_score(true_ids, predictions, **macro),
        micro_f1=metrics.f1_score(true_ids, predictions, average="micro"),
        weighted_f1=metrics.f1_score(true_ids, predictions, average="weighted"),
        precision=metrics.precision_score(true_ids, predictions, **macro),
        recall=metrics.recall_score(true_ids, predictions, **macro),
        roc_auc=metrics.roc_auc_score(true_ids, probabilities, multi_class="ovr"),
        average_precision=metrics.average_precision_score(np.eye(classes)[true_ids], probabilities),
        loss=metrics.log_loss(true_ids, probabilities),
    )
    assert scores["confusion_matrix"] == metrics.confusion_matrix(true_ids, predictions).tolist()
    assert "f1" not in scores and "positive" not in scores


def test_per_class_equals_scikit_learn_also_for_labels_without_rows():
    true_ids, predictions = np.array([0, 0, 1, 3, 3]), np.array([0, 1, 1, 3, 0])
    scores = single_label_prediction_scores(true_ids, predictions, _names(5))
    expected = metrics.precision_recall_fscore_support(
        true_ids, predictions, labels=range(5), zero_division=_ZERO
    )
    for column, name in enumerate(("precision", "recall", "f1", "support")):
        assert [scores["per_class"][label][name] for label in _names(5)] == pytest.approx(expected[column])
    # Labels 2 and 4 neither occur nor are predicted, so they do not lower the average.
    assert scores["macro_f1"] == pytest.approx(metrics.f1_score(true_ids, predictions, average="macro"))


@pytest.mark.parametrize(
    ("labels", "positive", "column"),
    [
        (["neg", "pos"], None, 1),
        (["spam", "ham"], None, 0),
        (["neg", "pos"], "neg", 0),
    ],
)
def test_two_classes_report_the_positive_label(labels, positive, column):
    true_ids, probabilities = _random_single(80, 2)
    predictions = probabilities.argmax(axis=1)
    scores = single_label_scores(true_ids, probabilities, labels, positive)
    assert scores["positive"] == labels[column]
    _assert_scores(
        scores,
        f1=metrics.f1_score(true_ids, predictions, pos_label=column),
        precision=metrics.precision_score(true_ids, predictions, pos_label=column),
        recall=metrics.recall_score(true_ids, predictions, pos_label=column),
        roc_auc=metrics.roc_auc_score(true_ids == column, probabilities[:, column]),
        average_precision=metrics.average_precision_score(true_ids == column, probabilities[:, column]),
    )


def test_unknown_positive_label_is_an_input_error():
    with pytest.raises(InputError, match="one of no, yes; got 'maybe'"):
        single_label_scores(np.array([0, 1]), np.eye(2), ["no", "yes"], "maybe")


def test_labels_of_test_rows_only_are_errors():
    # Two known classes, both rows of them right; two rows of a third label that cannot be predicted.
    probabilities = np.array([[0.9, 0.1], [0.2, 0.8], [0.6, 0.4], [0.3, 0.7]])
    scores = single_label_scores(np.array([0, 1, 2, 2]), probabilities, ["a", "b", "new"])
    _assert_scores(
        scores,
        rows=4,
        accuracy=0.5,
        micro_f1=0.5,
        macro_f1=(2 / 3 + 2 / 3 + 0.0) / 3,
        weighted_f1=(2 / 3 + 2 / 3) / 4,
        loss=-(np.log(0.9) + np.log(0.8)) / 2,
        f1=2 / 3,
    )
    assert scores["positive"] == "b"
    assert scores["per_class"]["new"] == {"precision": 0.0, "recall": 0.0, "f1": 0.0, "support": 2}
    assert scores["confusion_matrix"] == [[1, 0, 0], [0, 1, 0], [1, 1, 0]]


def test_undefined_scores_are_none():
    only_one_kind = single_label_scores(np.array([0, 0]), np.full((2, 3), 1 / 3), _names(3))
    assert only_one_kind["roc_auc"] is None and only_one_kind["average_precision"] is None
    only_new = single_label_scores(np.array([2]), np.array([[0.5, 0.5]]), ["a", "b", "new"])
    assert only_new["loss"] is None and only_new["accuracy"] == 0.0
    nothing = single_label_scores(np.zeros(0, int), np.zeros((0, 2)), ["a", "b"])
    assert nothing["rows"] == 0
    assert all(nothing[name] is None for name in ("accuracy", "macro_f1", "f1", "roc_auc", "ece", "loss"))
    several = multi_label_scores(np.zeros((0, 2), np.int8), np.zeros((0, 2)), ["a", "b"], np.full(2, 0.5))
    assert all(several[name] is None for name in ("accuracy", "macro_f1", "roc_auc", "ece", "loss"))


def test_confident_wrong_prediction_has_a_finite_loss():
    scores = single_label_scores(np.array([0, 1]), np.array([[0.0, 1.0], [0.0, 1.0]]), ["a", "b"])
    assert 1.0 < scores["loss"] < 20.0


def test_calibration_error_by_hand():
    # Bins of 1/15: .97 and .98 share one (1 of 2 right), .52 has its own (1 of 1 right).
    confidences, right = np.array([0.97, 0.98, 0.52]), np.array([True, False, True])
    by_hand = (2 / 3) * abs((0.97 + 0.98) / 2 - 0.5) + (1 / 3) * abs(0.52 - 1.0)
    assert calibration_error(confidences, right) == pytest.approx(by_hand)
    assert calibration_error(np.array([1.0, 0.0]), np.array([True, False])) == 0.0


def test_calibration_error_is_0_if_confidence_equals_accuracy():
    confidences = np.repeat([0.25, 0.75], 400)
    right = np.concatenate([np.arange(400) % 4 == 0, np.arange(400) % 4 != 0])
    assert calibration_error(confidences, right) == pytest.approx(0.0, abs=1e-12)


def test_multi_label_scores_equal_scikit_learn():
    generator = np.random.default_rng(1)
    true = (generator.random((150, 4)) < [0.5, 0.3, 0.1, 0.05]).astype(np.int8)
    probabilities = np.clip(0.3 * true + 0.6 * generator.random((150, 4)), 0.01, 0.99)
    thresholds = np.array([0.5, 0.4, 0.45, 0.6], np.float32)
    predictions = (probabilities >= thresholds).astype(int)
    scores = multi_label_scores(true, probabilities, _names(4), thresholds)
    average = {name: {"average": name, "zero_division": 0} for name in ("macro", "micro", "weighted")}
    _assert_scores(
        scores,
        rows=150,
        accuracy=metrics.accuracy_score(true, predictions),
        macro_f1=metrics.f1_score(true, predictions, **average["macro"]),
        micro_f1=metrics.f1_score(true, predictions, **average["micro"]),
        weighted_f1=metrics.f1_score(true, predictions, **average["weighted"]),
        precision=metrics.precision_score(true, predictions, **average["macro"]),
        recall=metrics.recall_score(true, predictions, **average["macro"]),
        roc_auc=metrics.roc_auc_score(true, probabilities),
        average_precision=metrics.average_precision_score(true, probabilities),
        loss=np.mean([metrics.log_loss(true[:, c], probabilities[:, c]) for c in range(4)]),
    )
    assert [scores["per_class"][label]["support"] for label in _names(4)] == true.sum(axis=0).tolist()


@settings(max_examples=30)
@given(rows=st.integers(2, 60), share=st.sampled_from([0.02, 0.3, 0.97]), seed=st.integers(0, 10**6))
def test_rankings_with_equal_probabilities_are_those_of_scikit_learn(rows, share, seed):
    generator = np.random.default_rng(seed)
    true = (generator.random((rows, 1)) < share).astype(np.int8)
    true[0], true[-1] = 0, 1
    probabilities = generator.integers(0, 5, size=(rows, 1)) / 4
    scores = multi_label_scores(true, probabilities, ["a"], np.full(1, 0.5))
    _assert_scores(
        scores,
        roc_auc=metrics.roc_auc_score(true, probabilities),
        average_precision=metrics.average_precision_score(true, probabilities),
    )


def test_multi_label_averages_skip_undefined_rankings_and_count_empty_labels():
    true = np.array([[1, 0, 1], [0, 0, 1]])
    probabilities = np.array([[0.9, 0.2, 0.9], [0.1, 0.1, 0.8]])
    scores = multi_label_scores(true, probabilities, _names(3), np.full(3, 0.5))
    _assert_scores(scores, roc_auc=1.0, average_precision=1.0, macro_f1=2 / 3, accuracy=1.0)


def test_multi_label_test_rows_may_bring_new_labels():
    true = np.array([[1, 0, 1], [0, 1, 0]])
    scores = multi_label_scores(true, np.array([[0.9, 0.1], [0.2, 0.7]]), ["a", "b", "new"], np.full(2, 0.5))
    _assert_scores(scores, accuracy=0.5, macro_f1=2 / 3, micro_f1=4 / 5)
    assert scores["per_class"]["new"]["support"] == 1


def test_probability_at_its_threshold_is_predicted():
    threshold = np.array([0.3], np.float32)
    scores = multi_label_scores(np.array([[1]]), threshold[None], ["a"], threshold)
    assert scores["accuracy"] == 1.0


@settings(max_examples=50, deadline=None)
@given(rows=st.integers(0, 12), classes=st.integers(1, 4), new=st.integers(0, 2), seed=st.integers(0, 99))
def test_every_result_is_json(rows, classes, new, seed):
    generator = np.random.default_rng(seed)
    labels = _names(classes + new)
    probabilities = generator.dirichlet(np.ones(classes), size=rows).astype(np.float32)
    true_ids = generator.integers(classes + new, size=rows)
    single = single_label_scores(true_ids, probabilities, labels)
    several = multi_label_scores(
        generator.integers(2, size=(rows, classes + new)).astype(np.int8),
        probabilities,
        labels,
        np.full(classes, 0.5, np.float32),
    )
    for scores in (single, several):
        assert json.loads(json.dumps(scores, allow_nan=False)) == scores
        bounded = ("accuracy", "macro_f1", "micro_f1", "weighted_f1", "precision", "recall", "roc_auc", "ece")
        assert all(scores[name] is None or -1e-9 <= scores[name] <= 1 + 1e-9 for name in bounded)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: single_label_scores(np.array([0]), np.ones((2, 2)), ["a", "b"]), "expected probabilities"),
        (lambda: single_label_scores(np.array([0]), np.ones((1, 3)), ["a", "b"]), "C from 1 to 2"),
        (lambda: single_label_scores(np.array([2]), np.ones((1, 2)), ["a", "b"]), r"ids in \[0, 2\)"),
        (lambda: single_label_scores(np.array([-1]), np.ones((1, 2)), ["a", "b"]), "got -1"),
        (lambda: single_label_scores(np.array([0]), np.array([[np.nan, 1]]), ["a", "b"]), "row 0"),
        (lambda: multi_label_prediction_scores(np.ones((2, 2)), np.ones((2, 3)), ["a", "b"]), r"\[R, 2\]"),
    ],
)
def test_mismatched_arrays_raise(call, message):
    with pytest.raises(ValueError, match=message):
        call()


def test_bins_are_counted_as_by_hand():
    confidence = np.array([0.05, 0.06, 1 / 15, 0.5, 0.99, 1.0])
    correct = np.array([True, False, False, True, True, False])
    found = reliability_bins("a", confidence, correct, None)
    # Open below, closed above: 1 / 15 belongs to the first.
    assert found.rows.tolist() == [3, 0, 0, 0, 0, 0, 0, 1, 0, 0, 0, 0, 0, 0, 2]
    np.testing.assert_allclose(found.accuracy[[0, 7, 14]], [1 / 3, 1.0, 0.5])
    np.testing.assert_allclose(found.confidence[[0, 7, 14]], [(0.11 + 1 / 15) / 3, 0.5, 0.995])
    assert np.isnan(found.accuracy[1]) and np.isnan(found.confidence[1])


def test_the_calibration_error_is_that_of_the_bins():
    rng = np.random.default_rng(0)
    confidence, correct = rng.random(500), rng.random(500) < 0.7
    found = reliability_bins("a", confidence, correct, None)
    filled = found.rows > 0
    gaps = np.abs(found.confidence - found.accuracy)[filled] * found.rows[filled] / 500
    # By hand, row by row.
    total = 0.0
    for low in range(15):
        inside = (confidence > low / 15) & (confidence <= (low + 1) / 15)
        total += abs(confidence[inside].sum() - correct[inside].sum()) / 500
    assert gaps.sum() == pytest.approx(total) == pytest.approx(calibration_error(confidence, correct))
