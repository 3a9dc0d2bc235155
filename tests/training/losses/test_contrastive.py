import keras
import numpy as np
import pytest

from training.losses.contrastive import (
    TEMPERATURE,
    contrastive_loss,
    cosine_loss,
    has_many_exclusive_labels,
    label_overlap,
    supervised_contrastive_loss,
)

RNG = np.random.default_rng(3)
VECTORS = RNG.normal(size=(6, 4)).astype(np.float32)
IDS = np.array([0, 1, 0, 2, 1, 0])
SEVERAL = np.array([[1, 0, 1], [1, 0, 0], [0, 0, 0], [0, 1, 0], [1, 1, 1], [0, 0, 0]])


def overlap(a, b):
    both, either = (a * b).sum(), np.maximum(a, b).sum()
    return both / either if either else 1.0


def test_overlap_of_several_labels_is_the_jaccard_index():
    expected = [[overlap(a, b) for b in SEVERAL] for a in SEVERAL]
    np.testing.assert_allclose(label_overlap(keras.ops.convert_to_tensor(SEVERAL)), expected, atol=1e-6)


@pytest.mark.parametrize("targets", [IDS, SEVERAL], ids=["one", "several"])
def test_equals_a_loop_over_all_pairs(targets):
    groups = np.eye(3, dtype=int)[targets] if targets.ndim == 1 else targets
    near, far = [], []
    for i, a in enumerate(VECTORS):
        for j, b in enumerate(VECTORS):
            expected = overlap(groups[i], groups[j])
            error = (a @ b / np.linalg.norm(a) / np.linalg.norm(b) - expected) ** 2
            if expected > 0 and i != j:
                near.append(error)
            elif expected == 0:
                far.append(error)
    losses = cosine_loss(keras.ops.convert_to_tensor(targets), keras.ops.convert_to_tensor(VECTORS))
    assert losses.shape == (6,)
    assert float(np.mean(losses)) == pytest.approx((np.mean(near) + np.mean(far)) / 2, rel=1e-5)


def test_equals_cross_entropy_over_all_other_rows():
    unit = VECTORS / np.linalg.norm(VECTORS, axis=1, keepdims=True)
    powers = np.exp(unit @ unit.T / TEMPERATURE)
    expected = []
    for i, label in enumerate(IDS):
        others = np.arange(6) != i
        shares = powers[i] / powers[i, others].sum()
        near = others & (label == IDS)
        # Label 2 has one row.
        expected.append(-np.log(shares[near]).mean() if near.any() else 0.0)
    losses = supervised_contrastive_loss(*map(keras.ops.convert_to_tensor, (IDS, VECTORS)))
    np.testing.assert_allclose(losses, expected, rtol=1e-4)


@pytest.mark.parametrize(
    ("targets", "num_labels", "chosen"),
    [(IDS, 8, cosine_loss), (IDS, 9, supervised_contrastive_loss), (SEVERAL, 9, cosine_loss)],
)
def test_many_exclusive_labels_have_another_loss(targets, num_labels, chosen):
    tensor, vectors = (keras.ops.convert_to_tensor(each) for each in (targets, VECTORS))
    np.testing.assert_array_equal(contrastive_loss(tensor, vectors, num_labels), chosen(tensor, vectors))
    assert has_many_exclusive_labels(targets, num_labels) == (chosen is supervised_contrastive_loss)


@pytest.mark.parametrize("loss", [cosine_loss, supervised_contrastive_loss])
def test_zero_vectors_and_a_single_row_have_finite_losses(loss):
    assert np.isfinite(loss(keras.ops.convert_to_tensor(IDS), keras.ops.zeros((6, 4)))).all()
    assert np.isfinite(loss(keras.ops.convert_to_tensor(IDS[:1]), keras.ops.ones((1, 4)))).all()
