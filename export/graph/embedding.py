"""The vectors of texts that exports carry: of which models, under which names, and as a graph function."""

from typing import Any

import tensorflow as tf

from kmha.bundle.bundle import Bundle
from kmha.bundle.manifest import CLASSIFY, MATCH, MODEL_NAMES
from kmha.errors import InputError
from kmha.features import SIDES, TextInputs

EMBED, EMBED_QUERY, EMBED_IDS, EMBED_QUERY_IDS = "embed", "embed_query", "embed_ids", "embed_query_ids"
VECTORS = "vectors"


def embeddings(bundle: Bundle) -> dict[str, int]:
    """Which text of a row each way to embed reads, by name; none where exports carry no vectors.

    Of a classifier "embed" reads the only text. Of a matcher of the bi form it reads texts B, and where they have an
    encoder of their own "embed_query" reads texts A.
    """
    if bundle.task == CLASSIFY:
        return {EMBED: 0}
    if bundle.task != MATCH or bundle.model.form != "bi":
        return {}
    return {EMBED: 1} if bundle.model.pairs[0].share_weights else {EMBED: 1, EMBED_QUERY: 0}


def check_embeds(bundle: Bundle) -> None:
    """Raises InputError where exports carry no vectors of a bundle's texts."""
    if not embeddings(bundle):
        given = f"one of the {bundle.model.form} form" if bundle.task == MATCH else MODEL_NAMES[bundle.task]
        raise InputError(f"--embed: expected a classifier or a matcher of the bi form, got {given}")


def text_inputs(bundle: Bundle, number: int) -> list[TextInputs]:
    """What the model reads of one text of a row, from 0."""
    return [given for given in bundle.preprocessor.inputs if given.text == number]


def embedding_names(bundle: Bundle, number: int) -> list[str]:
    """Names of token ids and mask of one text, in turn for each way to cut it."""
    return [name for given in text_inputs(bundle, number) for name in (given.ids, given.mask)]


def vectors_function(bundle: Bundle, number: int) -> Any:
    """A graph function of `embedding_names` in their order, int32 [B, T] each, that gives unit vectors float32 [B, D].

    Args:
        bundle: Of a classifier or of a matcher of the bi form.
        number: Which text of a row they are of, from 0.
    """
    model, names = bundle.model, embedding_names(bundle, number)
    side = {"side": SIDES[number]} if bundle.task == MATCH else {}
    return tf.function(
        lambda *inputs: model.vectors(dict(zip(names, inputs, strict=True)), **side), autograph=False
    )
