"""What each layer of a bundle's model computes, so that an exported copy can be compared layer by layer."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from kmha.bundle import Bundle
from kmha.features import PADDING_MASK, SEGMENT_IDS, TOKEN_IDS

TOKENIZER = "tokenizer"


def sequences(bundle: Bundle, texts: Sequence[bytes], length: int | None = None) -> list[list[int]]:
    """Token ids of each text, special ones included, cut to `length` as a shorter model would."""
    preprocessor = bundle.preprocessor
    rows: Any = []
    for first in range(0, len(texts), 1024):
        part = tf.constant(list(texts[first : first + 1024]), tf.string)
        rows += preprocessor.sequences(preprocessor.tokenize(part)).to_list()
    if length is None:
        return rows
    return [row if len(row) <= length else [*row[: length - 1], row[-1]] for row in rows]


def padded(bundle: Bundle, ids: Sequence[Sequence[int]], length: int) -> tuple[np.ndarray, np.ndarray]:
    """Token ids and padding mask int32 [b, length]."""
    token_ids = np.full((len(ids), length), bundle.preprocessor.padding_id, np.int32)
    mask = np.zeros_like(token_ids)
    for row, values in enumerate(ids):
        token_ids[row, : len(values)] = values
        mask[row, : len(values)] = 1
    return token_ids, mask


def layer_outputs(bundle: Bundle, token_ids: np.ndarray, mask: np.ndarray) -> dict[str, np.ndarray]:
    """The layers' outputs in the order of computing.

    Args:
        bundle: A trained bundle.
        token_ids: int32 [B, T].
        mask: int32 [B, T].

    Returns:
        "tokenizer", the ids int32 [B, T]; "embedding" [B, T, D]; for each block "block_i attention weights"
        [B, N, T, T] and "block_i" [B, T, D]; "pooling" [B, D]; "logits" and "probabilities" [B, C]; float32.
    """
    model, ids, mask_tensor = bundle.model, tf.constant(token_ids), tf.constant(mask)
    encoder = model.encoder
    x = encoder.embedding(ids, tf.zeros_like(ids), training=False)
    found = {TOKENIZER: ids, "embedding": x}
    x = encoder.norm(x) if encoder.norm is not None and encoder.config.norm == "post" else x
    for index, block in enumerate(encoder.blocks):
        x, weights = block(x, attention_mask=mask_tensor, return_attention_weights=True, training=False)
        found |= {f"block_{index} attention weights": weights, f"block_{index}": x}
    features = {TOKEN_IDS: ids, SEGMENT_IDS: tf.zeros_like(ids), PADDING_MASK: mask_tensor}
    pooled = model.pooling(model.encoder(features, training=False), padding_mask=mask_tensor)
    logits = model(features, training=False)
    found |= {"pooling": pooled, "logits": logits, "probabilities": model.probabilities(logits)}
    return {
        name: np.asarray(value if name == TOKENIZER else tf.cast(value, tf.float32))
        for name, value in found.items()
    }
