"""Losses, one number an example; the training step weights and adds them."""

import keras
from keras import ops


def softmax_cross_entropy(label_ids, logits, smoothing: float = 0.0):
    """Minus the log-probability of the right label.

    Args:
        label_ids: int32 [B].
        logits: float32 [B, C].
        smoothing: Share of the target spread evenly over all labels, in [0, 1).

    Returns:
        float32 [B], in nats.

    Source: label smoothing: Szegedy et al. 2016, §7, arXiv:1512.00567.
    """
    log_probabilities = ops.log_softmax(logits, axis=-1)
    targets = ops.one_hot(label_ids, logits.shape[-1], dtype=log_probabilities.dtype)
    targets = targets * (1 - smoothing) + smoothing / logits.shape[-1]
    return -ops.sum(targets * log_probabilities, axis=-1)


def sigmoid_cross_entropy(targets, logits, smoothing: float = 0.0):
    """Minus the log-probability of all labels' presence or absence, summed over the labels.

    The sum, not the mean: the pull on the encoder then does not shrink with the number of labels.

    Args:
        targets: int32 [B, C]; 1 = the text carries the label.
        logits: float32 [B, C].
        smoothing: How far targets move from 0 and 1 towards a half, in [0, 1).

    Returns:
        float32 [B], in nats.
    """
    wanted = ops.cast(targets, logits.dtype) * (1 - smoothing) + smoothing / 2
    # softplus(x) - x·y is the cross-entropy without ever taking the log of a rounded probability.
    return ops.sum(keras.activations.softplus(logits) - logits * wanted, axis=-1)
