"""What each layer of a bundle's model computes, so that an exported copy can be compared layer by layer."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from export.pair_layers import encoder_layers, pair_layers
from kmha.bundle import Bundle, TextRow
from kmha.features import PADDING_MASK, SEGMENT_IDS, TOKEN_IDS
from kmha.layers.windows import cut_documents
from kmha.manifest import MATCH

TOKENIZER = "tokenizer"
CHUNK_ROWS = 1024

# Of each row, for each of the model's texts, its token ids.
RowIds = list[list[int]]


def sequences(bundle: Bundle, rows: Sequence[TextRow], length: int | None = None) -> list[RowIds]:
    """Token ids of texts or pairs in the order of `preprocessor.inputs`, special ones included.

    Args:
        bundle: A trained bundle.
        rows: Texts, or pairs of texts.
        length: Cut to so many tokens as a shorter model would; None cuts nothing.
    """
    texts, found = bundle.preprocessor, []
    for first in range(0, len(rows), CHUNK_ROWS):
        part = rows[first : first + CHUNK_ROWS]
        columns = [part] if texts.num_texts == 1 else zip(*part, strict=True)
        cut = texts.cut(*(tf.constant(list(column), tf.string) for column in columns))
        found += map(list, zip(*(ids.to_list() for ids in cut), strict=True))
    if length is None:
        return found
    return [[_cut(ids, length) for ids in row] for row in found]


def _cut(ids: list[int], length: int) -> list[int]:
    return ids if len(ids) <= length else [*ids[: length - 1], ids[-1]]


def padded(bundle: Bundle, rows: Sequence[RowIds], length: int | None = None) -> dict[str, np.ndarray]:
    """The model's inputs int32 [b, T] by name.

    Args:
        bundle: A trained bundle.
        rows: What `sequences` gives of some rows.
        length: T, or the longest that a text's tokenizer makes where that is less; None: as long as the longest row.
    """
    features = {}
    for given, ids in zip(bundle.preprocessor.inputs, zip(*rows, strict=True), strict=True):
        width = max(map(len, ids)) if length is None else min(length, given.part.max_length)
        token_ids = np.full((len(ids), width), given.part.padding_id, np.int32)
        mask = np.zeros_like(token_ids)
        for row, values in enumerate(ids):
            token_ids[row, : len(values)] = values
            mask[row, : len(values)] = 1
        features |= {given.ids: token_ids, given.mask: mask}
    return features


def layer_outputs(bundle: Bundle, features: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    """The layers' outputs in the order of computing.

    Args:
        bundle: A trained bundle.
        features: The model's inputs int32 [B, T], as `padded` gives them.

    Returns:
        The ids int32 [B, T], "tokenizer" and of several texts "tokenizer a" and so on; "embedding" [B, T, D]; for each
        block "block_i attention weights" [B, N, T, T] and "block_i" [B, T, D]; "pooling" [B, D]; "logits" and
        "probabilities" [B, C]; float32. Of windows each of these as of texts, "windows" int32 [B · W, L] before and
        "window pooling" [B, D] after them. Of pairs what `pair_layers` gives.
    """
    tensors = {name: tf.constant(value) for name, value in features.items()}
    model, found = bundle.model, {}
    for given in bundle.preprocessor.inputs:
        whose = given.ids.replace(TOKEN_IDS, "").replace("_", " ").split()
        found[" ".join((TOKENIZER, *whose))] = tensors[given.ids]
    found |= pair_layers(model, tensors) if bundle.task == MATCH else _classifier_layers(model, tensors)
    found["probabilities"] = model.probabilities(found["logits"])
    return {
        name: np.asarray(value if value.dtype == tf.int32 else tf.cast(value, tf.float32))
        for name, value in found.items()
    }


def _classifier_layers(model, features: dict[str, Any]) -> dict[str, Any]:
    read, votes, cut = features, None, {}
    if model.windows is not None:
        read, votes = cut_documents(features, model.windows)
        cut = {"windows": read[TOKEN_IDS]}
    ids, mask = read[TOKEN_IDS], read[PADDING_MASK]
    segments = tf.zeros_like(ids)
    encoder, read = model.encoder, {**read, SEGMENT_IDS: segments}
    layers, _ = encoder_layers(encoder, encoder.embed(ids, segments, training=False), mask)
    pooled = model.pooling(encoder(read, training=False), padding_mask=mask)
    return {
        **cut,
        "embedding": encoder.embedding(ids, segments, training=False),
        **layers,
        "pooling": pooled,
        **({} if votes is None else {"window pooling": model.joined(pooled, votes)}),
        "logits": model(features, training=False),
    }
