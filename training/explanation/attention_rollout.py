"""Attention rollout: how much of each input token all layers together mix into each position."""

from collections.abc import Sequence

import numpy as np


def attention_rollout(weights: np.ndarray) -> np.ndarray:
    """Rollout of self-attention: the product of all layers, each half the mean of its heads and half the residual.

    Args:
        weights: float [L, N, T, S] with S = T, from target positions to source positions.

    Returns:
        float64 [T, T]; each row sums to 1.

    Source: Abnar and Zuidema 2020, arXiv:2005.00928.
    """
    mixed = np.eye(weights.shape[-1])
    for layer in weights:
        mixed = _with_residual(mean_of_heads(layer)) @ mixed
    return mixed


def pair_attention_rollout(
    weights_a: np.ndarray,
    weights_b: np.ndarray,
    a_to_b: np.ndarray | None = None,
    b_to_a: np.ndarray | None = None,
) -> np.ndarray:
    """Rollout of two texts that are encoded alone, then connected by rounds of cross-attention.

    The positions of A come first, then those of B; a round is a layer in which each text attends to the other only.

    Args:
        weights_a: float [L, N, T, T], of text A.
        weights_b: float [L, N, S, S], of text B.
        a_to_b: float [R, N, T, S], of every round; None without rounds.
        b_to_a: float [R, N, S, T].

    Returns:
        float64 [T + S, T + S]; each row sums to 1.
    """
    a, b = attention_rollout(weights_a), attention_rollout(weights_b)
    length = len(a)
    mixed = np.zeros((length + len(b),) * 2)
    mixed[:length, :length], mixed[length:, length:] = a, b
    rounds: Sequence = () if a_to_b is None or b_to_a is None else list(zip(a_to_b, b_to_a, strict=True))
    for to_b, to_a in rounds:
        layer = np.zeros_like(mixed)
        layer[:length, length:] = mean_of_heads(to_b)
        layer[length:, :length] = mean_of_heads(to_a)
        mixed = _with_residual(layer) @ mixed
    return mixed


def count_heads(weights: np.ndarray) -> int:
    """The number of heads in a layer, float [N, T, S], without the zeros that replace pruned heads at its end."""
    return int(np.flatnonzero(weights.any(axis=(1, 2))).max(initial=0)) + 1


def mean_of_heads(weights: np.ndarray) -> np.ndarray:
    """The mean of a layer's heads, float [N, T, S], as float64 [T, S]."""
    return weights[: count_heads(weights)].astype(np.float64).mean(axis=0)


def _with_residual(layer: np.ndarray) -> np.ndarray:
    """Half the attention [P, P], half the position itself; fully masked rows become the position alone."""
    mixed = layer + np.eye(len(layer))
    return mixed / mixed.sum(axis=1, keepdims=True)
