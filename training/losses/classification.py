"""Losses, one number an example; the training step weights and adds them."""

import keras
from keras import ops

from kmha.layers.crf import FORBIDDEN, Potentials
from kmha.layers.crf_likelihood import log_likelihood


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
    expected = ops.cast(targets, logits.dtype) * (1 - smoothing) + smoothing / 2
    # softplus(x) - x·y is the cross-entropy without ever taking the log of a rounded probability.
    return ops.sum(keras.activations.softplus(logits) - logits * expected, axis=-1)


def masked_token_loss(targets, logits):
    """Minus the log-probability of the true tokens, a masked token.

    Args:
        targets: int32 [B, M], token ids; -1 where there is no masked token.
        logits: float32 [B, M, V].

    Returns:
        float32 [B], in nats a token; 0 for a row of none.
    """
    there = ops.cast(targets >= 0, "float32")
    losses = ops.sparse_categorical_crossentropy(ops.maximum(targets, 0), logits, from_logits=True)
    return ops.sum(losses * there, axis=1) / ops.maximum(ops.sum(there, axis=1), 1.0)


def tag_sequence_loss(targets, potentials: Potentials):
    """Minus the log-probability of the right tags of a sentence, a word.

    A window may begin inside a span, with a tag that no sentence starts with; there the start is free.

    Args:
        targets: int32 [B, W], tag ids; -1 where there is no word.
        potentials: Of these sentences.

    Returns:
        float32 [B], in nats a word; 0 for a sentence of no words.
    """
    words = ops.cast(targets >= 0, "int32")
    tag_ids = ops.maximum(targets, 0)
    first = ops.one_hot(tag_ids[:, 0], potentials.emissions.shape[-1], dtype="float32")
    start = ops.where(first * potentials.start <= FORBIDDEN / 2, 0.0, potentials.start)
    end = _free_end(potentials, tag_ids, words)
    found = log_likelihood(potentials._replace(word_mask=words, start=start, end=end), tag_ids)
    return -found / ops.maximum(ops.cast(ops.sum(words, axis=1), "float32"), 1.0)


def _free_end(potentials: Potentials, tag_ids, words):
    """The end potentials [B, K], none for the tag of a last word with which no sentence ends."""
    last = ops.maximum(ops.sum(words, axis=1, keepdims=True) - 1, 0)
    tag = ops.take_along_axis(tag_ids, last, axis=1)[:, 0]
    chosen = ops.one_hot(tag, potentials.emissions.shape[-1], dtype="float32")
    return ops.where(chosen * potentials.end <= FORBIDDEN / 2, 0.0, potentials.end)
