"""The text vectors of exported models: which models have them, their inputs, and the graph function."""

from typing import Any

import tensorflow as tf

from export.names import EMBED, EMBED_QUERY
from kmha.bundle.bundle import Bundle
from kmha.bundle.manifest import CLASSIFY, MATCH, MODEL_NAMES
from kmha.errors import InputError
from kmha.features import SIDES, TextInputs


def embedded_texts(bundle: Bundle) -> dict[str, int]:
    """The text of a row, from 0, that each embedding signature reads, by name; empty where exports have no vectors.

    Of a classifier "embed" reads the only text. Of a bi-encoder it reads text B, and where the texts have different
    encoders "embed_query" reads text A.
    """
    if bundle.task == CLASSIFY:
        return {EMBED: 0}
    if bundle.task != MATCH or bundle.model.form != "bi":
        return {}
    return {EMBED: 1} if bundle.model.pairs[0].share_weights else {EMBED: 1, EMBED_QUERY: 0}


def check_embeds(bundle: Bundle) -> None:
    """Raises InputError where exports of a bundle have no text vectors."""
    if not embedded_texts(bundle):
        got = f"one of the {bundle.model.form} form" if bundle.task == MATCH else MODEL_NAMES[bundle.task]
        raise InputError(f"--embed: expected a classifier or a matcher of the bi form, got {got}")


def text_inputs(bundle: Bundle, number: int) -> list[TextInputs]:
    """The model's inputs of one text of a row, from 0."""
    return [each for each in bundle.preprocessor.inputs if each.text == number]


def embedding_names(bundle: Bundle, number: int) -> list[str]:
    """Names of the token ids and mask of one text, in turn for each of its tokenizers."""
    return [name for each in text_inputs(bundle, number) for name in (each.ids, each.mask)]


def vectors_function(bundle: Bundle, number: int) -> Any:
    """A graph function of the `embedding_names`, int32 [B, T] each, that returns unit vectors float32 [B, D].

    Args:
        bundle: A classifier's or a bi-encoder's.
        number: The text of a row to embed, from 0.
    """
    model, names = bundle.model, embedding_names(bundle, number)
    side = {"side": SIDES[number]} if bundle.task == MATCH else {}
    return tf.function(
        lambda *inputs: model.vectors(dict(zip(names, inputs, strict=True)), **side), autograph=False
    )
