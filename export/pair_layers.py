"""What each layer of an encoder, and each part of a matcher, computes; by names that a reader understands."""

from typing import Any

import tensorflow as tf

from kmha.features import SIDES, input_names
from kmha.models.pair_encoder import PairEncoder

OTHER = {"a": "b", "b": "a"}


def encoder_layers(encoder, x, mask, whose: str = "") -> tuple[dict[str, Any], Any]:
    """The blocks of an encoder one by one.

    Args:
        encoder: A `TransformerEncoder`.
        x: float [B, T, D], what enters the first.
        mask: int32 [B, T].
        whose: Stands before each name.

    Returns:
        For each block "block_i attention weights" [B, N, T, T] and "block_i" [B, T, D]; and what the last one gives.
    """
    found = {}
    for index, block in enumerate(encoder.blocks):
        x, weights = block(x, attention_mask=mask, return_attention_weights=True, training=False)
        found |= {f"{whose}block_{index} attention weights": weights, f"{whose}block_{index}": x}
    return found, x


def pair_layers(model, features: dict[str, Any]) -> dict[str, Any]:
    """The parts of a matcher in the order of computing.

    Args:
        model: A `TextMatcher`.
        features: Its inputs int32 [B, T] by name.

    Returns:
        For each text, such as "a embedding" or with several granularities "char a embedding": the embedding [B, T, D],
        the blocks as in `encoder_layers`, "overlap marks" [B, T, D], for each round "a round_i attention weights"
        [B, N, T, S] and "a round_i" [B, T, D], and the "pooling" [B, D]; then "logits" [B, C]. In the joint form both
        texts have embeddings and marks of their own and the rest together. Of a symmetric one in that form, which
        reads a pair both ways, those of the first.
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
    """What is added to the tokens of each text for those that stand in the other one too, float [B, T, D]."""
    if not pair.overlap:
        return {}
    (ids_a, mask_a), (ids_b, mask_b) = texts["a"], texts["b"]
    marks_a, marks_b, *_ = pair.token_overlap(ids_a, ids_b, mask_a, mask_b)
    return {"a": pair.mark(marks_a), "b": pair.mark(marks_b)}
