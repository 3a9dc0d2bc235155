"""The attention weights of blocks with different numbers of heads as one tensor."""

from collections.abc import Sequence

from keras import ops


def stacked_heads(weights: Sequence):
    """The attention weights of all blocks as one tensor.

    Args:
        weights: Of each block float32 [B, N, T, S]; pruned ones have fewer heads than others.

    Returns:
        float32 [B, L, N, T, S], N the most heads that a block has; the heads that others lack are zeros, which no
        head gives to a text.
    """
    most = max(each.shape[1] for each in weights)
    missing = [most - each.shape[1] for each in weights]
    filled = [
        ops.pad(each, ((0, 0), (0, lack), (0, 0), (0, 0))) if lack else each
        for each, lack in zip(weights, missing, strict=True)
    ]
    return ops.stack(filled, axis=1)
