"""Losses of classification, masked language modeling and tagging, one value per row."""

import keras
from keras import ops

from kmha.layers.crf import FORBIDDEN, Potentials, log_likelihood


def softmax_cross_entropy(label_ids, logits, smoothing: float = 0.0):
    """Cross-entropy of one label per row, float32 [B], from ids int32 [B] and logits float32 [B, C].

    Source: label smoothing, in [0, 1): Szegedy et al. 2016, section 7, arXiv:1512.00567.
    """
    log_probabilities = ops.log_softmax(logits, axis=-1)
    targets = ops.one_hot(label_ids, logits.shape[-1], dtype=log_probabilities.dtype)
    targets = targets * (1 - smoothing) + smoothing / logits.shape[-1]
    return -ops.sum(targets * log_probabilities, axis=-1)


def sigmoid_cross_entropy(targets, logits, smoothing: float = 0.0):
    """Binary cross-entropy summed over the labels, float32 [B], from 0 or 1, [B, C], and logits float32 [B, C].

    The sum keeps the gradient of the encoder independent of the number of labels. The smoothing, in [0, 1), moves
    targets toward 0.5.
    """
    smoothed = ops.cast(targets, logits.dtype) * (1 - smoothing) + smoothing / 2
    # softplus(x) - x * y is the cross-entropy without the log of a rounded probability.
    return ops.sum(keras.activations.softplus(logits) - logits * smoothed, axis=-1)


def masked_token_loss(targets, logits):
    """Mean cross-entropy of masked token ids int32 [B, M], -1 in unused places: float32 [B], 0 without any."""
    is_masked = ops.cast(targets >= 0, "float32")
    losses = ops.sparse_categorical_crossentropy(ops.maximum(targets, 0), logits, from_logits=True)
    return ops.sum(losses * is_masked, axis=1) / ops.maximum(ops.sum(is_masked, axis=1), 1.0)


def tag_sequence_loss(targets, potentials: Potentials):
    """Negative log-likelihood of the tags of a sentence, divided by its words, float32 [B]; 0 without words.

    The targets are tag ids int32 [B, W], -1 after the last word. A window may begin or end inside a span, with a tag
    that no sentence starts or ends with. The start or end potential of such a tag is 0.
    """
    words = ops.cast(targets >= 0, "int32")
    tag_ids = ops.maximum(targets, 0)
    last = ops.maximum(ops.sum(words, axis=1, keepdims=True) - 1, 0)
    start = _allow(potentials.start, tag_ids[:, 0], potentials)
    end = _allow(potentials.end, ops.take_along_axis(tag_ids, last, axis=1)[:, 0], potentials)
    likelihood = log_likelihood(potentials._replace(word_mask=words, start=start, end=end), tag_ids)
    return -likelihood / ops.maximum(ops.cast(ops.sum(words, axis=1), "float32"), 1.0)


def _allow(edge, tag_ids, potentials: Potentials):
    """The start or end potentials [B, K], with 0 for the given tags int32 [B] where they are forbidden."""
    chosen = ops.one_hot(tag_ids, potentials.emissions.shape[-1], dtype="float32")
    return ops.where(chosen * edge <= FORBIDDEN / 2, 0.0, edge)
