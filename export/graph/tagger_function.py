"""The graph function of a tagger that every format contains: token ids and words in, tags and probabilities out."""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from export.names import ATTENTION, PATH_PROBABILITIES, PROBABILITIES, SCORES, TAG_IDS
from kmha.bundle.bundle import Bundle
from kmha.features import CHARACTER_IDS, PADDING_MASK, SPELLING_LENGTH, TOKEN_IDS, WORD_MASK, WORD_STARTS
from kmha.layers.attention import stack_heads
from kmha.layers.crf import Potentials
from kmha.layers.crf_decoding import decode
from kmha.text.ragged import Ragged

# The outputs of every tagger.
OUTPUTS = (PROBABILITIES, TAG_IDS, PATH_PROBABILITIES, SCORES)
SPECIAL_TOKENS = 2


def tagger_input_names(bundle: Bundle) -> list[str]:
    """Names of a tagger's inputs: tokens, words, and where it reads spelling characters."""
    names = [TOKEN_IDS, PADDING_MASK, WORD_STARTS, WORD_MASK]
    return [*names, CHARACTER_IDS] if bundle.preprocessor.characters else names


def tagger_function(bundle: Bundle, with_attention: bool = False) -> Callable[..., dict[str, Any]]:
    """A tagger's predictions as a function of its inputs.

    Args:
        bundle: A trained tagger.
        with_attention: Whether to return the attention weights.

    Returns:
        A plain function of the inputs in their order that returns {"probabilities": float32 [B, W, K] of each tag over
        all paths, "tag_ids": int32 [B, W] of the best path, "path_probabilities": float32 [B, W] of each of its tags
        given the one before, "scores": float32 [B, W, K] of the words before decoding, with attention "attention":
        float32 [B, L, N, T, T]}; zeros where no word is to be tagged.
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
    """A tagger's inputs for the V windows of sentences.

    Args:
        bundle: A trained tagger.
        sentences: Lists of words.
        length: T of every window, with room for T - 2 words; None pads to the longest window.

    Returns:
        int32 [V, T], [V, W] and [V, W, 20] by name.
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
