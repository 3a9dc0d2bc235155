"""Rollout against hand-worked cases."""

import numpy as np
import pytest

from training.explanation.attention_rollout import attention_rollout, count_heads, pair_attention_rollout


def weights(*shape: int, seed: int = 0) -> np.ndarray:
    values = np.random.default_rng(seed).random(shape)
    return (values / values.sum(axis=-1, keepdims=True)).astype(np.float32)


def test_one_layer_is_half_attention_and_half_the_token_itself():
    first = np.array([[[[0.0, 1.0], [0.5, 0.5]], [[1.0, 0.0], [0.5, 0.5]]]])
    np.testing.assert_allclose(attention_rollout(first), [[0.75, 0.25], [0.25, 0.75]])


def test_layers_are_multiplied_from_the_last_to_the_first():
    given = weights(2, 1, 3, 3)
    layers = [0.5 * each[0] + 0.5 * np.eye(3) for each in given.astype(np.float64)]
    np.testing.assert_allclose(attention_rollout(given), layers[1] @ layers[0])


@pytest.mark.parametrize("rounds", [0, 1, 2])
def test_rows_sum_to_one(rounds):
    across = (weights(rounds, 2, 4, 3), weights(rounds, 2, 3, 4)) if rounds else (None, None)
    found = pair_attention_rollout(weights(2, 2, 4, 4), weights(1, 2, 3, 3), *across)
    assert found.shape == (7, 7)
    np.testing.assert_allclose(found.sum(axis=1), 1)
    # Without rounds there is no cross-attention.
    assert bool(found[:4, 4:].any()) == bool(rounds)


def test_a_round_mixes_the_other_text_in():
    still = np.eye(2)[None, None]
    found = pair_attention_rollout(still, still, weights(1, 3, 2, 2, seed=1), weights(1, 3, 2, 2, seed=2))
    np.testing.assert_allclose(found[:2, 2:], 0.5 * weights(1, 3, 2, 2, seed=1)[0].mean(axis=0), rtol=1e-6)
    np.testing.assert_allclose(found[:2, :2], 0.5 * np.eye(2))


def test_fully_masked_rows_are_the_identity():
    np.testing.assert_allclose(attention_rollout(np.zeros((2, 2, 3, 3))), np.eye(3))


def test_pruned_heads_are_ignored():
    given = weights(2, 3, 4, 4)
    fewer = np.concatenate([given, np.zeros((2, 2, 4, 4), np.float32)], axis=1)
    np.testing.assert_allclose(attention_rollout(fewer), attention_rollout(given))
    assert [count_heads(layer) for layer in fewer] == [3, 3]
    np.testing.assert_allclose(
        pair_attention_rollout(fewer, given, fewer, given), pair_attention_rollout(given, given, given, given)
    )
