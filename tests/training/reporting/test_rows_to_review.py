import numpy as np
import pytest

from training.reporting import rows_to_review
from training.reporting.rows_to_review import MIN_ROWS, label_errors, multi_label_errors


def test_large_data_is_sampled_from_all_splits(monkeypatch):
    parts = [np.arange(0, 3000, 3), np.arange(500)]
    assert all(one is other for one, other in zip(rows_to_review._sample(parts, 4), parts, strict=True))
    monkeypatch.setattr(rows_to_review, "MAX_PROBABILITIES", 1200)
    pool = rows_to_review._sample(parts, 4)
    assert sum(map(len, pool)) == 300
    for drawn, part in zip(pool, parts, strict=True):
        assert 0 < len(drawn) == len(set(drawn.tolist())) and set(drawn.tolist()) <= set(part.tolist())
    everywhere = np.arange(300)
    found = rows_to_review._in_splits(pool, everywhere)
    assert [number for number, _ in found] == [0] * len(pool[0]) + [1] * len(pool[1])
    assert [place for _, place in found] == np.concatenate(pool).tolist()


pytest.importorskip("cleanlab")


def predict(true: np.ndarray, classes: int, rng: np.random.Generator) -> np.ndarray:
    """Probabilities of a model that is mostly correct."""
    found = np.full((len(true), classes), 0.05)
    found[np.arange(len(true)), true] = 0.85
    found *= rng.uniform(0.5, 1.5, found.shape)
    return (found / found.sum(axis=1, keepdims=True)).astype(np.float32)


def test_changed_labels_are_found():
    rng = np.random.default_rng(0)
    true = rng.integers(0, 4, 1000)
    probabilities = predict(true, 4, rng)
    changed = rng.choice(1000, 30, replace=False)
    given = true.copy()
    given[changed] = (true[changed] + 1) % 4
    found = label_errors(given, probabilities)
    assert len(set(found.tolist()) & set(changed.tolist())) >= 27
    assert len(found) <= 33
    # Most likely first: the largest margin to another label.
    margins = probabilities[found, given[found]] - probabilities[found].max(axis=1)
    assert margins[0] <= np.median(margins)


def test_rare_labels_are_accepted():
    rng = np.random.default_rng(0)
    true = rng.integers(0, 3, 300)
    probabilities = predict(true, 5, rng)
    true[0] = 4
    assert set(label_errors(true, probabilities).tolist()) <= {0}


def test_few_rows_or_one_label_give_no_errors():
    rng = np.random.default_rng(0)
    true = rng.integers(0, 3, MIN_ROWS - 1)
    assert not len(label_errors(true, predict(true, 3, rng)))
    same = np.zeros(MIN_ROWS, np.int64)
    assert not len(label_errors(same, predict(same, 2, rng)))
    none = np.zeros((MIN_ROWS, 2))
    assert not len(multi_label_errors(none[1:], none[1:], none[1:]))
    assert not len(multi_label_errors(none, none, none + 0.1))


def test_changed_labels_of_multi_label_rows_are_found():
    rng = np.random.default_rng(0)
    true = (rng.random((600, 5)) < 0.3).astype(np.int8)
    true[:, 3], true[:, 4] = 0, 1  # no row has it, every row has it
    probabilities = np.clip(0.8 * true + 0.1 + rng.normal(size=true.shape) * 0.05, 0.01, 0.99)
    given = true.copy()
    given[:20, 0] ^= 1
    found = multi_label_errors(given, probabilities > 0.5, probabilities)
    # About half of them, and no others.
    assert len(found) >= 8 and set(found.tolist()) <= set(range(20))
    # Rows whose predicted labels equal the true ones are never reported.
    assert not len(multi_label_errors(given, given, probabilities))
