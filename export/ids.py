"""The part of a model that every format carries: token ids in, probabilities out."""

from typing import Any

import tensorflow as tf

from kmha.bundle import Bundle
from kmha.features import PADDING_MASK, SEGMENT_IDS, TOKEN_IDS

PROBABILITIES, ATTENTION = "probabilities", "attention"


def ids_function(bundle: Bundle, with_attention: bool = False) -> Any:
    """A graph function of a bundle's model; trace it with `ids_specs`.

    Args:
        bundle: A trained bundle.
        with_attention: Whether to answer the attention weights too.

    Returns:
        A `tf.function` of token_ids and padding_mask, int32 [B, T], that gives {"probabilities": float32 [B, C]}
        and, if asked, "attention": float32 [B, L, N, T, T], of every layer L and head N.
    """
    model = bundle.model

    def answer(token_ids, padding_mask):
        features = {
            TOKEN_IDS: token_ids,
            SEGMENT_IDS: tf.zeros_like(token_ids),
            PADDING_MASK: padding_mask,
        }
        logits, weights = model(features, return_attention_weights=True, training=False)
        answers = {PROBABILITIES: model.probabilities(logits)}
        return {**answers, ATTENTION: tf.stack(weights, axis=1)} if with_attention else answers

    # Without autograph: there is nothing to rewrite, and a graph of plain ops converts everywhere.
    return tf.function(answer, autograph=False)


def ids_specs(batch: int | None = None, length: int | None = None) -> tuple[tf.TensorSpec, tf.TensorSpec]:
    """What `ids_function` takes: int32 [B, T] by name, None where it may vary."""
    shape = [batch, length]
    return tf.TensorSpec(shape, tf.int32, TOKEN_IDS), tf.TensorSpec(shape, tf.int32, PADDING_MASK)
