import numpy as np
import pytest

from training.metrics.confusion import (
    LabelCounts,
    confusion_matrix,
    f1,
    indicator_counts,
    matrix_counts,
    mean_over,
    micro_f1,
    occurring,
    precision,
    recall,
)


def test_confusion_matrix_has_true_labels_in_rows():
    matrix = confusion_matrix(np.array([0, 0, 2]), np.array([1, 1, 2]), 3)
    assert matrix.tolist() == [[0, 2, 0], [0, 0, 0], [0, 0, 1]]


def test_ids_and_indicators_give_equal_counts():
    generator = np.random.default_rng(0)
    true_ids, predictions = generator.integers(4, size=(2, 50))
    by_matrix = matrix_counts(confusion_matrix(true_ids, predictions, 4))
    by_indicator = indicator_counts(np.eye(4)[true_ids], np.eye(4)[predictions])
    for left, right in zip(by_matrix, by_indicator, strict=True):
        assert left == pytest.approx(right)


def test_weights_repeat_rows():
    generator = np.random.default_rng(0)
    true, predictions = generator.integers(2, size=(2, 6, 3))
    repeats = np.array([3, 0, 1, 2, 0, 1])
    weighted = indicator_counts(true, predictions, np.stack([repeats, np.ones(6, int)]).astype(float))
    repeated = indicator_counts(np.repeat(true, repeats, axis=0), np.repeat(predictions, repeats, axis=0))
    for both, first, second in zip(weighted, repeated, indicator_counts(true, predictions), strict=True):
        assert both == pytest.approx(np.stack([first, second]))


def test_ratios_by_hand_and_0_without_denominator():
    # Label 0: 2 hits of 4 predictions and 3 true rows; label 1 occurs nowhere.
    counts = LabelCounts(np.array([2.0, 0.0]), np.array([4.0, 0.0]), np.array([3.0, 0.0]))
    assert precision(counts).tolist() == [0.5, 0.0]
    assert recall(counts) == pytest.approx([2 / 3, 0.0])
    assert f1(counts) == pytest.approx([4 / 7, 0.0])
    assert micro_f1(counts) == pytest.approx(4 / 7)
    assert occurring(counts).tolist() == [True, False]
    assert mean_over(f1(counts), occurring(counts)) == pytest.approx(4 / 7)
    assert mean_over(f1(counts), np.zeros(2)) == 0.0
