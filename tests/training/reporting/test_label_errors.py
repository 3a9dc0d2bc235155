import numpy as np
import pytest

from training.reporting.label_errors import LEAST_ROWS, label_errors, several_label_errors

pytest.importorskip("cleanlab")


def answers(true: np.ndarray, classes: int, rng: np.random.Generator) -> np.ndarray:
    """Probabilities of a model that is mostly right."""
    found = np.full((len(true), classes), 0.05)
    found[np.arange(len(true)), true] = 0.85
    found *= rng.uniform(0.5, 1.5, found.shape)
    return (found / found.sum(axis=1, keepdims=True)).astype(np.float32)


def test_labels_that_were_changed_are_found():
    rng = np.random.default_rng(0)
    true = rng.integers(0, 4, 1000)
    probabilities = answers(true, 4, rng)
    changed = rng.choice(1000, 30, replace=False)
    given = true.copy()
    given[changed] = (true[changed] + 1) % 4
    found = label_errors(given, probabilities)
    assert len(set(found.tolist()) & set(changed.tolist())) >= 27
    assert len(found) <= 33
    # The likeliest first: the label's probability is furthest below another's.
    margins = probabilities[found, given[found]] - probabilities[found].max(axis=1)
    assert margins[0] <= np.median(margins)


def test_a_label_that_hardly_any_row_has_is_no_obstacle():
    rng = np.random.default_rng(0)
    true = rng.integers(0, 3, 300)
    probabilities = answers(true, 5, rng)
    true[0] = 4
    assert set(label_errors(true, probabilities).tolist()) <= {0}


def test_few_rows_or_one_label_say_nothing():
    rng = np.random.default_rng(0)
    true = rng.integers(0, 3, LEAST_ROWS - 1)
    assert not len(label_errors(true, answers(true, 3, rng)))
    same = np.zeros(LEAST_ROWS, np.int64)
    assert not len(label_errors(same, answers(same, 2, rng)))
    none = np.zeros((LEAST_ROWS, 2))
    assert not len(several_label_errors(none[1:], none[1:], none[1:]))
    assert not len(several_label_errors(none, none, none + 0.1))


def test_changed_ones_of_several_labels_are_found():
    rng = np.random.default_rng(0)
    true = (rng.random((600, 5)) < 0.3).astype(np.int8)
    true[:, 3], true[:, 4] = 0, 1  # no row has it, every row has it
    probabilities = np.clip(0.8 * true + 0.1 + rng.normal(size=true.shape) * 0.05, 0.01, 0.99)
    given = true.copy()
    given[:20, 0] ^= 1
    found = several_label_errors(given, probabilities > 0.5, probabilities)
    # It doubts half of them, and nothing else.
    assert len(found) >= 8 and set(found.tolist()) <= set(range(20))
    # With thresholds by which the model gives these labels too, there is nothing to doubt.
    assert not len(several_label_errors(given, given, probabilities))
