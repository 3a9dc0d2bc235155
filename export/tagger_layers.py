"""What each layer of a tagger computes, by names that a reader understands."""

from typing import Any

from export.pair_layers import encoder_layers
from kmha.features import PADDING_MASK, TOKEN_IDS


def tagger_layers(model, features: dict[str, Any]) -> dict[str, Any]:
    """The parts of a tagger up to the scores, in the order of computing.

    Args:
        model: A `SequenceTagger`.
        features: Its inputs by name.

    Returns:
        "embedding" float [V, T, D]; where spelling is read "spelling" [V, W, C]; where neighbours are seen "context"
        [V, T, D]; the blocks as in `encoder_layers`; "scores" [V, W, K].
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
