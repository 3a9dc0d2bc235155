import keras
import numpy as np
import pytest

from training.losses.contrastive import cosine_loss, label_overlap

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


def test_zero_vectors_and_a_single_row_have_finite_losses():
    assert np.isfinite(cosine_loss(keras.ops.convert_to_tensor(IDS), keras.ops.zeros((6, 4)))).all()
    assert np.isfinite(cosine_loss(keras.ops.convert_to_tensor(IDS[:1]), keras.ops.ones((1, 4)))).all()
