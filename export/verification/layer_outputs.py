"""The outputs of each layer of a bundle's model, to compare an exported model layer by layer."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from kmha.bundle.bundle import Bundle, TextRow
from kmha.bundle.manifest import MATCH
from kmha.features import PADDING_MASK, SEGMENT_IDS, SIDES, TOKEN_IDS, input_names
from kmha.layers.document_windows import split_documents
from kmha.models.pair_encoder import PairEncoder

OTHER = {"a": "b", "b": "a"}


def encoder_layers(encoder, x, mask, prefix: str = "") -> tuple[dict[str, Any], Any]:
    """The outputs of an encoder's blocks for an input float [B, T, D] with a mask int32 [B, T], and the last one.

    For each block these are "block_i attention weights" [B, N, T, T] and "block_i" [B, T, D], after the prefix.
    """
    found = {}
    for index, block in enumerate(encoder.blocks):
        x, weights = block(x, attention_mask=mask, return_attention_weights=True, training=False)
        found |= {f"{prefix}block_{index} attention weights": weights, f"{prefix}block_{index}": x}
    return found, x


def pair_layers(model, features: dict[str, Any]) -> dict[str, Any]:
    """The outputs of a matcher's layers in the order of computation, from its inputs int32 [B, T] by name.

    For each text, such as "a embedding" or with several granularities "char a embedding": the embedding [B, T, D],
    the blocks as in `encoder_layers`, "overlap marks" [B, T, D], for each round "a round_i attention weights" [B, N,
    T, S] and "a round_i" [B, T, D], and the "pooling" [B, D]; then "logits" [B, C]. In the joint form only embeddings
    and marks are separate for both texts. A symmetric joint matcher reads a pair in both orders; the outputs are
    those of the first order.
    """
    found = {}
    for name, pair in zip(model.granularities, model.pairs, strict=True):
        prefix = name if len(model.pairs) > 1 else ""
        texts = {side: [features[each] for each in input_names(side, prefix)] for side in SIDES}
        layers = _joint_layers(pair, texts) if pair.form == "joint" else _layers(pair, texts)
        found |= {f"{prefix} {key}".lstrip(): value for key, value in layers.items()}
    return found | {"logits": model(features, training=False)}


def _layers(pair: PairEncoder, texts: dict[str, Any]) -> dict[str, Any]:
    found, states = {}, {}
    for side, (ids, mask) in texts.items():
        encoder = pair.encoder_a if side == "a" else pair.encoder_b
        layers, x = encoder_layers(encoder, encoder.embed(ids, training=False), mask, f"{side} ")
        found |= {f"{side} embedding": encoder.embedding(ids, None, training=False), **layers}
        states[side] = x * tf.cast(mask[..., None], x.dtype)
    for side, marked in _marks(pair, texts).items():
        found[f"{side} overlap marks"] = marked
        states[side] += marked
    for index, rounds in enumerate(zip(pair.rounds_a, pair.rounds_b, strict=True)):
        before = dict(states)
        for side, block in zip(SIDES, rounds, strict=True):
            other = OTHER[side]
            states[side], weights = block(
                before[side],
                before[other],
                attention_mask=texts[other][1],
                return_attention_weights=True,
                training=False,
            )
            name = f"{side} round_{index}"
            found |= {f"{name} attention weights": weights, name: states[side]}
    return found | {f"{side} pooling": pair.pool(states[side], texts[side][1]) for side in SIDES}


def _joint_layers(pair: PairEncoder, texts: dict[str, Any]) -> dict[str, Any]:
    (ids_a, mask_a), (ids_b, mask_b) = texts["a"], texts["b"]
    encoder, last_of_a = pair.encoder_a, tf.maximum(tf.reduce_sum(mask_a, axis=1), 1) - 1
    found = {
        "a embedding": encoder.embedding(ids_a, tf.zeros_like(ids_a), training=False),
        "b embedding": encoder.embedding(
            ids_b, tf.ones_like(ids_b), first_position=last_of_a, training=False
        ),
    }
    a = encoder.embed(ids_a, tf.zeros_like(ids_a), training=False)
    b = encoder.embed(ids_b, tf.ones_like(ids_b), last_of_a, training=False)
    if marks := _marks(pair, texts):
        found |= {f"{side} overlap marks": marked for side, marked in marks.items()}
        a, b = a + marks["a"], b + marks["b"]
    mask = tf.concat([mask_a, mask_b[:, 1:]], axis=1)
    layers, x = encoder_layers(encoder, tf.concat([a, b[:, 1:]], axis=1), mask)
    found |= layers
    return found | {"pooling": pair.pool(x * tf.cast(tf.expand_dims(mask, -1), x.dtype), mask)}


def _marks(pair: PairEncoder, texts: dict[str, Any]) -> dict[str, Any]:
    """What is added to tokens that also occur in the other text, float [B, T, D] for each text."""
    if not pair.overlap:
        return {}
    (ids_a, mask_a), (ids_b, mask_b) = texts["a"], texts["b"]
    marks_a, marks_b, *_ = pair.token_overlap(ids_a, ids_b, mask_a, mask_b)
    return {"a": pair.mark(marks_a), "b": pair.mark(marks_b)}


TOKENIZER = "tokenizer"
CHUNK_ROWS = 1024

# The token ids of a row, a list for each of the model's inputs.
RowIds = list[list[int]]


def sequences(bundle: Bundle, rows: Sequence[TextRow], length: int | None = None) -> list[RowIds]:
    """Token ids of texts or pairs in the order of `preprocessor.inputs`, special ones included.

    They are truncated to a length in tokens, as a shorter model does; None truncates nothing.
    """
    texts, found = bundle.preprocessor, []
    for first in range(0, len(rows), CHUNK_ROWS):
        part = rows[first : first + CHUNK_ROWS]
        columns = [part] if texts.num_texts == 1 else zip(*part, strict=True)
        tokenized = texts.encode(*(tf.constant(list(column), tf.string) for column in columns))
        found += map(list, zip(*(ids.to_list() for ids in tokenized), strict=True))
    if length is None:
        return found
    return [[ids if len(ids) <= length else [*ids[: length - 1], ids[-1]] for ids in row] for row in found]


def padded(bundle: Bundle, rows: Sequence[RowIds], length: int | None = None) -> dict[str, np.ndarray]:
    """The model's inputs int32 [b, T] by name, of rows of `sequences`.

    T is the length, or the longest of a text's tokenizer if that is less; None: the length of the longest row.
    """
    features = {}
    for each, ids in zip(bundle.preprocessor.inputs, zip(*rows, strict=True), strict=True):
        width = max(map(len, ids)) if length is None else min(length, each.part.max_length)
        token_ids = np.full((len(ids), width), each.part.padding_id, np.int32)
        mask = np.zeros_like(token_ids)
        for row, values in enumerate(ids):
            token_ids[row, : len(values)] = values
            mask[row, : len(values)] = 1
        features |= {each.ids: token_ids, each.mask: mask}
    return features


def layer_outputs(bundle: Bundle, features: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    """The outputs of all layers in the order of computation, from the inputs of `padded`.

    These are the ids int32 [B, T], "tokenizer" and of several texts "tokenizer a" and so on; "embedding" [B, T, D];
    for each block "block_i attention weights" [B, N, T, T] and "block_i" [B, T, D]; "pooling" [B, D]; "logits" and
    "probabilities" [B, C]; float32. A model of windows has these for each window, with "windows" int32 [B · W, L]
    before and "window pooling" [B, D] after them. Of pairs what `pair_layers` returns.
    """
    tensors = {name: tf.constant(value) for name, value in features.items()}
    model, found = bundle.model, {}
    for each in bundle.preprocessor.inputs:
        text = each.ids.replace(TOKEN_IDS, "").replace("_", " ").split()
        found[" ".join((TOKENIZER, *text))] = tensors[each.ids]
    found |= pair_layers(model, tensors) if bundle.task == MATCH else _classifier_layers(model, tensors)
    found["probabilities"] = model.probabilities(found["logits"])
    return {
        name: np.asarray(value if value.dtype == tf.int32 else tf.cast(value, tf.float32))
        for name, value in found.items()
    }


def _classifier_layers(model, features: dict[str, Any]) -> dict[str, Any]:
    read, votes, windows = features, None, {}
    if model.windows is not None:
        read, votes = split_documents(features, model.windows)
        windows = {"windows": read[TOKEN_IDS]}
    ids, mask = read[TOKEN_IDS], read[PADDING_MASK]
    segments = tf.zeros_like(ids)
    encoder, read = model.encoder, {**read, SEGMENT_IDS: segments}
    layers, _ = encoder_layers(encoder, encoder.embed(ids, segments, training=False), mask)
    pooled = model.pooling(encoder(read, training=False), padding_mask=mask)
    return {
        **windows,
        "embedding": encoder.embedding(ids, segments, training=False),
        **layers,
        "pooling": pooled,
        **({} if votes is None else {"window pooling": model.join_windows(pooled, votes)}),
        "logits": model(features, training=False),
    }


def tagger_layers(model, features: dict[str, Any]) -> dict[str, Any]:
    """The outputs of a `SequenceTagger`'s layers up to the scores, in the order of computation.

    These are "embedding" float [V, T, D]; where spelling is read "spelling" [V, W, C]; with context convolutions
    "context" [V, T, D]; the blocks as in `encoder_layers`; "scores" [V, W, K].
    """
    ids, encoder = features[TOKEN_IDS], model.encoder
    found = {"embedding": encoder.embedding(ids, None, training=False)}
    x, spelling = model.embed(features, training=False)
    if spelling is not None:
        found["spelling"] = spelling
    if model.context is not None:
        x = found["context"] = model.context(x, features[PADDING_MASK], training=False)
    layers, _ = encoder_layers(encoder, x, features[PADDING_MASK])
    return {**found, **layers, "scores": model(features, training=False)}
