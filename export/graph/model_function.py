"""The graph functions that every format contains: token ids in; probabilities, scores, tags or text vectors out."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from export.names import ATTENTION, EMBED, EMBED_QUERY, PATH_PROBABILITIES, PROBABILITIES, SCORES, TAG_IDS
from kmha.bundle.bundle import Bundle
from kmha.bundle.manifest import CLASSIFY, MATCH, MODEL_NAMES, TAG
from kmha.document_windows import window_shape_of
from kmha.errors import InputError
from kmha.features import (
    CHARACTER_IDS,
    PADDING_MASK,
    SIDES,
    SPELLING_LENGTH,
    TOKEN_IDS,
    WORD_MASK,
    WORD_STARTS,
    TextInputs,
)
from kmha.layers.attention import stack_heads
from kmha.layers.crf import Potentials, decode
from kmha.text.preprocessor import Preprocessor
from kmha.text.words import Ragged

# The outputs of every tagger.
OUTPUTS = (PROBABILITIES, TAG_IDS, PATH_PROBABILITIES, SCORES)
SPECIAL_TOKENS = 2


def output_name(bundle: Bundle) -> str:
    """Name of the first output: the scores of pairs, or the probabilities of labels or tags."""
    return PROBABILITIES if bundle.task in (CLASSIFY, TAG) or bundle.model.target == "classes" else SCORES


def input_names(bundle: Bundle) -> list[str]:
    """Names of the inputs: token ids and padding mask of every text and tokenizer; of taggers words too."""
    if bundle.task == TAG:
        return tagger_input_names(bundle)
    return [name for each in bundle.preprocessor.inputs for name in (each.ids, each.mask)]


def check_attention(bundle: Bundle) -> None:
    """Raises InputError for a model that reads windows: their attention weights do not belong to one text."""
    windows = window_shape_of(bundle.model)
    if windows is not None:
        raise InputError(
            f"--attention: expected a run that reads whole texts, got one that reads windows of {windows.length} tokens"
        )


def ids_function(bundle: Bundle, with_attention: bool = False) -> Any:
    """A graph function of a bundle's model; trace it with `ids_specs`.

    Returns:
        A `tf.function` of the `input_names` in their order, int32 [B, T] each, that returns {"probabilities": float32
        [B, C]}, of pairs {"scores": float32 [B, 1]}; with attention also, of every layer L and head N, "attention":
        float32 [B, L, N, T, T], of pairs by direction, such as "attention_a_to_b": float32 [B, L, N, T, S]. Of a
        tagger see `tagger_function`.
    """
    if bundle.task == TAG:
        return tf.function(tagger_function(bundle, with_attention), autograph=False)
    model, names, output = bundle.model, input_names(bundle), output_name(bundle)

    def predict(*inputs):
        features = dict(zip(names, inputs, strict=True))
        logits = model(features, return_attention_weights=with_attention, training=False)
        logits, weights = logits if with_attention else (logits, {})
        named = weights if isinstance(weights, dict) else {ATTENTION: weights}
        return {output: model.probabilities(logits)} | {
            name: stack_heads(each) for name, each in named.items()
        }

    # There is no control flow for autograph to rewrite, and a graph of plain ops converts everywhere.
    return tf.function(predict, autograph=False)


def ids_specs(bundle: Bundle, batch: int | None = None, length: int | None = None) -> list[tf.TensorSpec]:
    """Input specs of `ids_function`: int32 [B, T] by name, None where it may vary; of words [B, T - 2]."""
    if bundle.task == TAG:
        return tagger_specs(bundle, batch, length)
    return [tf.TensorSpec([batch, length], tf.int32, name) for name in input_names(bundle)]


class GraphTokenizer:
    """Tokenizes columns of texts in a graph into the features that a model reads.

    The vocabulary is a constant of megabytes. Each tokenizer is a tf.function, so that the graph contains it once.
    """

    def __init__(self, bundle: Bundle):
        self.inputs: list[TextInputs] = list(bundle.preprocessor.inputs)
        self._functions = {id(each.part): _function(each.part) for each in self.inputs}

    def tokenize(self, columns: Mapping[int, Any]) -> list[tuple[TextInputs, Any]]:
        """Token ids, ragged int32 [B, None], of some of the model's texts, string [B] each, by number from 0."""
        return [
            (each, self._functions[id(each.part)](columns[each.text]))
            for each in self.inputs
            if each.text in columns
        ]

    def features(self, columns: Mapping[int, Any]) -> dict[str, Any]:
        """Features int32 [B, T] of such columns, by name."""
        return pad_tokens(self.tokenize(columns))


def pad_tokens(tokens: Sequence[tuple[TextInputs, Any]]) -> dict[str, Any]:
    """Features int32 [B, T] of ragged token ids, each as long as its longest row."""
    features = {}
    for each, sequences in tokens:
        features |= each.part.pad_sequences(sequences, each.ids, each.mask)
    return features


def _function(part: Preprocessor) -> Callable:
    return tf.function(lambda texts: part.add_special_tokens(part.tokenize(texts)), autograph=False)


def tagger_input_names(bundle: Bundle) -> list[str]:
    """Names of a tagger's inputs: tokens, words, and where it reads spelling characters."""
    names = [TOKEN_IDS, PADDING_MASK, WORD_STARTS, WORD_MASK]
    return [*names, CHARACTER_IDS] if bundle.preprocessor.characters else names


def tagger_function(bundle: Bundle, with_attention: bool = False) -> Callable[..., dict[str, Any]]:
    """A tagger's predictions as a plain function of its inputs in their order.

    It returns {"probabilities": float32 [B, W, K] of each tag over all paths, "tag_ids": int32 [B, W] of the best
    path, "path_probabilities": float32 [B, W] of each of its tags given the one before, "scores": float32 [B, W, K]
    of the words before decoding, with attention "attention": float32 [B, L, N, T, T]}; zeros where no word is to be
    tagged.
    """
    model, names = bundle.model, tagger_input_names(bundle)

    def predict(*inputs):
        features = dict(zip(names, inputs, strict=True))
        scores = model(features, return_attention_weights=with_attention, training=False)
        scores, weights = scores if with_attention else (scores, [])
        found = decode(_computed(model.potentials(scores, features[WORD_MASK])))
        outputs = {
            PROBABILITIES: found.marginals,
            TAG_IDS: found.tag_ids,
            PATH_PROBABILITIES: found.path_probabilities,
            SCORES: scores,
        }
        return outputs | {ATTENTION: stack_heads(weights)} if with_attention else outputs

    return predict


def _computed(potentials: Potentials) -> Potentials:
    """The same potentials, with transitions that a converter does not recognize as a table of weights.

    Quantized to 8 bits from -1e4 up they would all be equal. So 0 is added, in a way that is not constant-folded.
    """
    mask = potentials.word_mask
    nothing = tf.cast(tf.minimum(tf.reduce_max(mask * mask), 0), tf.float32)
    return potentials._replace(transitions=potentials.transitions + nothing)


def tagger_specs(bundle: Bundle, batch: int | None = None, length: int | None = None) -> list[tf.TensorSpec]:
    """Input specs of `tagger_function`, int32 by name; a length T leaves room for T - 2 words."""
    words = length and length - SPECIAL_TOKENS
    sizes = {TOKEN_IDS: (length,), PADDING_MASK: (length,), CHARACTER_IDS: (words, SPELLING_LENGTH)}
    names = tagger_input_names(bundle)
    return [tf.TensorSpec((batch, *sizes.get(name, (words,))), tf.int32, name) for name in names]


def window_features(
    bundle: Bundle, sentences: Sequence[Sequence[str]], length: int | None = None
) -> dict[str, np.ndarray]:
    """A tagger's inputs for the V windows of lists of words: int32 [V, T], [V, W] and [V, W, 20] by name.

    A length is T of every window, with room for T - 2 words; None pads to the longest window.
    """
    texts = bundle.preprocessor
    flat = [word.encode("utf-8", "replace") for words in sentences for word in words]
    words = Ragged.from_row_lengths(tf.constant(flat, tf.string), [len(words) for words in sentences])
    sizes = (None, None) if length is None else (length, length - SPECIAL_TOKENS)
    made = texts.pad(texts.encode(words, length), sizes)
    return {name: made[name].numpy() for name in tagger_input_names(bundle)}


def one_window(features: dict[str, np.ndarray], window: int) -> dict[str, np.ndarray]:
    """The inputs of one of many windows, without padding."""
    inputs = {name: values[window : window + 1] for name, values in features.items()}
    tokens = int(inputs[PADDING_MASK].sum())
    words = max(1, int((inputs[WORD_STARTS] > 0).sum()))
    return {
        name: values[:, : tokens if name in (TOKEN_IDS, PADDING_MASK) else words]
        for name, values in inputs.items()
    }


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
    """A graph function of one text's `embedding_names`, int32 [B, T] each, that returns unit vectors float32 [B, D]."""
    model, names = bundle.model, embedding_names(bundle, number)
    side = {"side": SIDES[number]} if bundle.task == MATCH else {}
    return tf.function(
        lambda *inputs: model.vectors(dict(zip(names, inputs, strict=True)), **side), autograph=False
    )
