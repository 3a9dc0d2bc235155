import numpy as np
import pytest
from scipy.special import expit, softmax
from sklearn.linear_model import LogisticRegression

from training.fewshot.linear_head import apply_head, fit_head, row_losses

RNG = np.random.default_rng(0)
CENTERS = RNG.normal(size=(4, 8))


def rows(labels, count=40):
    ids = np.arange(count) % labels
    return (CENTERS[ids] + 0.8 * RNG.normal(size=(count, 8))).astype(np.float32), ids


@pytest.mark.parametrize("labels", [2, 4])
def test_one_label_equals_logistic_regression(labels):
    vectors, ids = rows(labels)
    scale = np.sqrt((vectors**2).sum(axis=1).mean())
    expected = (
        LogisticRegression(C=3.0, max_iter=1000).fit(vectors / scale, ids).predict_proba(vectors / scale)
    )
    logits = apply_head(vectors, fit_head(vectors, ids, labels, 3.0))
    np.testing.assert_allclose(softmax(logits, axis=1), expected, atol=1e-3)


def test_several_labels_have_a_regression_each():
    vectors, _ = rows(4)
    targets = (vectors[:, :3] > 0).astype(np.int32)
    scale = np.sqrt((vectors**2).sum(axis=1).mean())
    logits = apply_head(vectors, fit_head(vectors, targets, 3, 1.0))
    for label in range(3):
        one = LogisticRegression(max_iter=1000).fit(vectors / scale, targets[:, label])
        np.testing.assert_allclose(
            expit(logits[:, label]), one.predict_proba(vectors / scale)[:, 1], atol=1e-3
        )


def test_labels_without_rows_are_the_least_likely():
    vectors, ids = rows(3)
    logits = apply_head(vectors, fit_head(vectors, ids, 5, 1.0))
    assert np.isfinite(logits).all() and (logits[:, 3:].max(axis=1) < logits[:, :3].max(axis=1)).all()
    only = apply_head(vectors, fit_head(vectors, np.zeros_like(ids), 2, 1.0))
    assert (only.argmax(axis=1) == 0).all()
    always = np.ones((len(vectors), 2), np.int32)
    always[:, 1] = 0
    several = apply_head(vectors, fit_head(vectors, always, 2, 1.0))
    assert (several[:, 0] > 3).all() and (several[:, 1] < -3).all()


def test_row_losses_is_the_cross_entropy():
    vectors, ids = rows(4)
    logits = apply_head(vectors, fit_head(vectors, ids, 4, 1.0))
    expected = -np.log(softmax(logits, axis=1)[np.arange(len(ids)), ids]).mean()
    assert row_losses(logits, ids).mean() == pytest.approx(expected, rel=1e-5)
    targets = np.eye(4)[ids]
    binary = -np.log(np.where(targets == 1, expit(logits), expit(-logits))).mean()
    assert row_losses(logits, targets).mean() == pytest.approx(binary, rel=1e-4)
