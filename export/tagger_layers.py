"""What each layer of a tagger computes, by names that a reader understands."""

from typing import Any

import tensorflow as tf

from export.pair_layers import encoder_layers
from kmha.features import CHARACTER_IDS, PADDING_MASK, TOKEN_IDS, WORD_STARTS
from kmha.layers.words import first_token_weights


def tagger_layers(model, features: dict[str, Any]) -> dict[str, Any]:
    """The parts of a tagger up to the scores, in the order of computing.

    Args:
        model: A `SequenceTagger`.
        features: Its inputs by name.

    Returns:
        "embedding" float [V, T, D]; where spelling is read "spelling" [V, W, C]; the blocks as in `encoder_layers`;
        "scores" [V, W, K].
    """
    ids, encoder = features[TOKEN_IDS], model.encoder
    found = {"embedding": encoder.embedding(ids, None, training=False)}
    x = encoder.embed(ids, None, training=False)
    if model.spelling is not None:
        spelling = found["spelling"] = model.spelling(features[CHARACTER_IDS], training=False)
        firsts = tf.cast(first_token_weights(features[WORD_STARTS], tf.shape(ids)[1]), x.dtype)
        x += tf.matmul(firsts, model.spelling_in(spelling), transpose_a=True)
    layers, _ = encoder_layers(encoder, x, features[PADDING_MASK])
    return {**found, **layers, "scores": model(features, training=False)}
