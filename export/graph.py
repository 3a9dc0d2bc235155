"""Graph functions that every format carries: token ids in; probabilities, scores, tags or text vectors out."""

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from export.names import (
    ATTENTION,
    EMBED,
    EMBED_QUERY,
    ENCODER_LOGITS,
    LINEAR_LOGITS,
    NGRAMS,
    PATH_PROBABILITIES,
    PROBABILITIES,
    SCORES,
    TAG_IDS,
    VECTORS,
)
from kmha.bundle.bundle import Bundle
from kmha.bundle.manifest import CLASSIFY, CROSS_VALIDATED, MATCH, MODEL_NAMES, TAG
from kmha.document_windows import window_shape_of
from kmha.errors import InputError
from kmha.features import (
    CHARACTER_IDS,
    MIN_WINDOW_LENGTH,
    PADDING_MASK,
    SIDES,
    SPELLING_LENGTH,
    TOKEN_IDS,
    WORD_MASK,
    WORD_STARTS,
    TextInputs,
)
from kmha.layers.attention import MultiHeadAttention, stack_heads
from kmha.layers.crf import Potentials, decode
from kmha.layers.eight_bit import (
    FeedForwardKernels,
    KernelInputs,
    ScaledTable,
    is_uneven,
    outlier_rows,
    recorded_inputs,
    round_for_inputs,
    round_to_8_bits,
    smooth_kernel,
)
from kmha.layers.embedding import Table
from kmha.layers.encoder_block import FeedForward
from kmha.layers.linear_ngrams import LinearNgrams
from kmha.text.preprocessor import Preprocessor
from kmha.text.sentence_preprocessor import SentencePreprocessor
from kmha.text.words import Ragged

# The outputs of every tagger.
OUTPUTS = (PROBABILITIES, TAG_IDS, PATH_PROBABILITIES, SCORES)
SPECIAL_TOKENS = 2
SHORTEST, STEP = 3, 8
# Weights of fewer values stay in float32, as the TFLite converter leaves them.
FEWEST_8_BIT = 1024
# A table of so many columns has a scale for each row: 4 bytes next to 32.
WIDE_COLUMNS = 32
# Scales of rows are multiples of a unit; float32 has all integers up to this one.
SCALE_STEPS = 1 << 24
# Rows of the sample for whose inputs kernels are rounded and smoothed.
ROUNDING_ROWS = 64
# Parts of the names of a matcher's layers that stay in float32 with 8-bit weights and activations.
PAIR_FLOAT_LAYERS = ("/head", "/overlap", "/linear")
# The sample of a run that has none.
PLAIN_TEXTS = ("", "a", "one two three", "一二三")


def output_name(bundle: Bundle) -> str:
    """Name of the first output: the scores of pairs, or the probabilities of labels or tags."""
    return PROBABILITIES if bundle.task in (CLASSIFY, TAG) or bundle.model.target == "classes" else SCORES


def input_names(bundle: Bundle) -> list[str]:
    """Names of the inputs: token ids and padding mask of every text and tokenizer; of taggers words and spelling."""
    if bundle.task == TAG:
        names = [TOKEN_IDS, PADDING_MASK, WORD_STARTS, WORD_MASK]
        return [*names, CHARACTER_IDS] if bundle.preprocessor.characters else names
    return [name for each in bundle.preprocessor.inputs for name in (each.ids, each.mask)]


def check_attention(bundle: Bundle) -> None:
    """Raises InputError for a model without encoder blocks, and for one that reads windows.

    The attention weights of windows do not belong to one text.
    """
    if any(config.num_layers == 0 for config in bundle.model.encoder_configs.values()):
        raise InputError("--attention: expected a run with encoder blocks, got one without")
    windows = window_shape_of(bundle.model)
    if windows is not None:
        raise InputError(
            f"--attention: expected a run that reads whole texts, got one that reads windows of {windows.length} tokens"
        )


def ids_function(bundle: Bundle, with_attention: bool = False, with_parts: bool = False) -> Any:
    """A graph function of a bundle's model; trace it with `ids_specs`.

    Returns:
        A `tf.function` of the `input_names` in their order, int32 [B, T] each, that returns {"probabilities": float32
        [B, C]}, of pairs {"scores": float32 [B, 1]}; with attention also, of every layer L and head N, "attention":
        float32 [B, L, N, T, T], of pairs by direction, such as "attention_a_to_b": float32 [B, L, N, T, S]. With parts
        also `logit_parts`. Of a tagger see `tagger_function`.
    """
    if bundle.task == TAG:
        return tf.function(tagger_function(bundle, with_attention), autograph=False)
    model, names, output = bundle.model, input_names(bundle), output_name(bundle)

    def predict(*inputs):
        features = dict(zip(names, inputs, strict=True))
        logits = model(features, return_attention_weights=with_attention, training=False)
        logits, weights = logits if with_attention else (logits, {})
        named = weights if isinstance(weights, dict) else {ATTENTION: weights}
        outputs = {output: model.probabilities(logits)}
        outputs |= {name: stack_heads(each) for name, each in named.items() if each}
        return outputs | (logit_parts(model, features, logits) if with_parts else {})

    # There is no control flow for autograph to rewrite, and a graph of plain ops converts everywhere.
    return tf.function(predict, autograph=False)


def logit_parts(model: Any, features: Mapping[str, Any], logits: Any) -> dict[str, Any]:
    """The parts of the logits [B, C] of a classifier with a linear path; empty for other models.

    Returns:
        {"ngrams": float32 [B, T, orders, C], see `LinearNgrams.contributions`, "linear_logits" and "encoder_logits":
        float32 [B, C]}.
    """
    if not isinstance(getattr(model, "linear", None), LinearNgrams):
        return {}
    names = NGRAMS, LINEAR_LOGITS, ENCODER_LOGITS
    return dict(zip(names, model.logit_parts(features, logits), strict=True))


def ids_specs(bundle: Bundle, batch: int | None = None, length: int | None = None) -> list[tf.TensorSpec]:
    """Input specs of `ids_function`: int32 [B, T] by name, None where it may vary; of words [B, T - 2]."""
    if bundle.task == TAG:
        words = length and length - SPECIAL_TOKENS
        sizes = {TOKEN_IDS: (length,), PADDING_MASK: (length,), CHARACTER_IDS: (words, SPELLING_LENGTH)}
        shapes = [(name, (batch, *sizes.get(name, (words,)))) for name in input_names(bundle)]
        return [tf.TensorSpec(shape, tf.int32, name) for name, shape in shapes]
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


def tagger_function(bundle: Bundle, with_attention: bool = False) -> Callable[..., dict[str, Any]]:
    """A tagger's predictions as a plain function of its inputs in their order.

    It returns {"probabilities": float32 [B, W, K] of each tag over all paths, "tag_ids": int32 [B, W] of the best
    path, "path_probabilities": float32 [B, W] of each of its tags given the one before, "scores": float32 [B, W, K]
    of the words before decoding, with attention "attention": float32 [B, L, N, T, T]}; zeros where no word is to be
    tagged.
    """
    model, names = bundle.model, input_names(bundle)

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

    Quantized to 8 bits from -1e4 up they would all be equal.
    """
    return potentials._replace(transitions=potentials.transitions + _computed_zero(potentials.word_mask))


def _computed_zero(mask: Any) -> Any:
    """0, float32, computed from a mask in a way that is not constant-folded: weights plus 0 are not quantized."""
    return tf.cast(tf.minimum(tf.reduce_max(mask * mask), 0), tf.float32)


def with_float_head(bundle: Bundle, predict: Callable[..., dict[str, Any]]) -> Callable[..., dict[str, Any]]:
    """A function of `device_function` whose head a converter leaves in float32; of a matcher only.

    The head adds up vectors and shares of overlap, which have no common scale in 8 bits.
    """
    if bundle.task != MATCH or bundle.model.head is None:
        return predict
    kernel, mask = bundle.model.head.kernel, input_names(bundle).index(bundle.preprocessor.inputs[0].mask)

    def with_head(*inputs):
        with keras.StatelessScope(state_mapping=[(kernel, kernel + _computed_zero(inputs[mask]))]):
            return predict(*inputs)

    return with_head


def eight_bit_forms(bundle: Bundle) -> tuple[dict[int, Any], list[tf.Variable]]:
    """The forms of weights that lose less in 8 bits, see `forms_of_layers`, and their variables.

    Tables are integers with a scale for each row, of narrow tables for each column. Scales of rows are integers too:
    the TFLite converter would quantize fractions with one scale. Kernels of encoder blocks are rounded for the inputs
    that they have in the bundle's sample, and the outliers of feed-forward networks have products of their own.
    Because activations may be in 8 bits too, inputs whose columns have very different ranges are scaled.
    """
    forms, variables = {}, []
    inputs = _kernel_inputs(bundle) if bundle.sample else {}

    def stored(values: np.ndarray) -> tf.Variable:
        variables.append(tf.Variable(tf.constant(values), trainable=False))
        return variables[-1]

    def rounded(kernel: np.ndarray, seen: KernelInputs) -> np.ndarray:
        return kernel if kernel.size < FEWEST_8_BIT else round_for_inputs(kernel, seen.moments)

    def stored_kernel(owner: Any, kernel: np.ndarray, part: Any = np.s_[:], apart: bool = False) -> Any:
        """A kernel for a part of the inputs of another; `apart`: with outliers of the inputs in their own product."""
        if id(owner) not in inputs:
            return stored(kernel)
        seen = inputs[id(owner)].of(part)
        if not is_uneven(seen.largest):
            return stored(rounded(kernel, seen))
        form = smooth_kernel(kernel, seen, rounded, apart)
        return tf.nest.map_structure(lambda values: None if values is None else stored(values), form)

    for layer in bundle.model._flatten_layers():
        if isinstance(layer, Table) and math.prod(layer.embeddings.shape) >= FEWEST_8_BIT:
            by_row = layer.output_dim >= WIDE_COLUMNS
            values, scales = round_to_8_bits(layer.embeddings.numpy(), axis=int(by_row))
            if by_row:
                unit = float(scales.max()) / SCALE_STEPS
                steps = np.rint(scales / unit).astype(np.int32)
                forms[id(layer)] = ScaledTable(stored(values), unit, stored(steps))
            else:
                forms[id(layer)] = ScaledTable(stored(values), scales[0])
        elif isinstance(layer, FeedForward):
            expand, contract = layer.expand.kernel, layer.contract.kernel
            outliers = outlier_rows(contract.numpy())
            if outliers.any() or id(contract) in inputs:
                # Outliers last, so that both parts are slices.
                parts = [np.flatnonzero(part) for part in (~outliers, outliers) if part.any()]
                order = np.concatenate(parts)
                forms[id(layer)] = FeedForwardKernels(
                    stored_kernel(expand, expand.numpy()[:, order], apart=True),
                    stored(layer.expand.bias.numpy()[order]),
                    [stored_kernel(contract, contract.numpy()[part], part) for part in parts],
                )
        elif isinstance(layer, MultiHeadAttention) and id(layer.output_kernel) in inputs:
            kernel, fused = layer.output_kernel, getattr(layer, "query_key_value_kernel", None)
            forms[id(kernel)] = stored(rounded(kernel.numpy(), inputs[id(kernel)]))
            if fused is not None and id(fused) in inputs:
                forms[id(fused)] = stored_kernel(fused, fused.numpy(), apart=True)
    return forms, variables


def _kernel_inputs(bundle: Bundle) -> dict[int, KernelInputs]:
    """Those of `recorded_inputs` on rows of the bundle's sample, one by one: long texts need less memory."""
    with recorded_inputs() as inputs:
        for row in sample_rows(bundle, ROUNDING_ROWS):
            bundle.model(features_of(bundle, [row]), training=False)
    return inputs


def encode_words(
    texts: SentencePreprocessor, sentences: Sequence[Sequence[str]], length: int | None = None
) -> Any:
    """The `EncodedSentences` of lists of words, in windows of at most `length` tokens."""
    flat = [word.encode("utf-8", "replace") for words in sentences for word in words]
    lengths = np.array([len(words) for words in sentences], np.int64)
    return texts.encode(Ragged.from_row_lengths(tf.constant(flat, tf.string), lengths), length)


def window_features(
    bundle: Bundle, sentences: Sequence[Sequence[str]], length: int | None = None
) -> dict[str, np.ndarray]:
    """A tagger's inputs for the V windows of lists of words: int32 [V, T], [V, W] and [V, W, 20] by name.

    A length is T of every window, with room for T - 2 words; None pads to the longest window.
    """
    sizes = (None, None) if length is None else (length, length - SPECIAL_TOKENS)
    made = bundle.preprocessor.pad(encode_words(bundle.preprocessor, sentences, length), sizes)
    return {name: made[name].numpy() for name in input_names(bundle)}


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


def device_function(bundle: Bundle, with_attention: bool = False, with_vectors: bool = False) -> Any:
    """As `ids_function`, a plain function; a bi-encoder also returns the vectors that it compares.

    They are "vectors_a" and "vectors_b", float32 [B, D] of length 1; with stored document vectors, a score is one
    product: scale * (vector_a · vector_b) + bias. A classifier returns "vectors" if `with_vectors` is set.
    """
    predict = ids_function(bundle, with_attention).python_function
    names = input_names(bundle)
    if with_vectors and bundle.task == CLASSIFY:
        vectors = vectors_function(bundle, 0).python_function
        return lambda *inputs: predict(*inputs) | {VECTORS: vectors(*inputs)}
    if bundle.task != MATCH or bundle.model.form != "bi":
        return predict

    def with_both(*inputs):
        features = dict(zip(names, inputs, strict=True))
        return predict(*inputs) | {f"vectors_{side}": bundle.model.vectors(features, side) for side in SIDES}

    return with_both


def sample_rows(bundle: Bundle, most: int | None = None) -> list[Any]:
    """The bundle's sample, or plain texts or pairs where an old run has none; of a tagger lists of words."""
    if bundle.task == TAG:
        return [text.split() for text in (bundle.sample or PLAIN_TEXTS)[:most]]
    if bundle.sample:
        return bundle.sample[:most]
    if bundle.preprocessor.num_texts == 1:
        return list(PLAIN_TEXTS)
    return list(zip(PLAIN_TEXTS, PLAIN_TEXTS[::-1], strict=True))


def features_of(bundle: Bundle, rows: Sequence[Any], length: int | None = None) -> dict[str, np.ndarray]:
    """Features of texts or pairs, truncated to a length with both special tokens retained; of a tagger of windows.

    The length, or a tokenizer's longest if that is less, is that of every sequence; None truncates to the longest and
    pads to the longest row. Returns int32 [B, T] by name; of a tagger what `window_features` gives.
    """
    if bundle.task == TAG:
        return window_features(bundle, rows, length)
    texts = bundle.preprocessor
    columns: Any = [rows] if texts.num_texts == 1 else list(zip(*rows, strict=True))
    sequences, lengths = [], []
    for each in texts.inputs:
        part = each.part
        tokens = part.tokenize(tf.constant(list(columns[each.text]), tf.string))
        lengths.append(length and min(length, part.max_length))
        sequences.append(part.add_special_tokens(tokens if length is None else tokens[:, : lengths[-1] - 2]))
    made = texts.pad(sequences, None if length is None else lengths)
    return {name: values.numpy() for name, values in made.items()}


def longest_length(bundle: Bundle) -> int:
    """The most tokens of a text, special ones included, over all tokenizers."""
    return max(each.part.max_length for each in bundle.preprocessor.inputs)


def chosen_lengths(bundle: Bundle, lengths: Sequence[int] = ()) -> list[int]:
    """The lengths to export, ascending; by default those of the training texts.

    A run of few labels also has its longest: many texts are longer than each of a few training texts. Raises InputError
    for a length below 3, of a tagger below 8, or above the run's longest.
    """
    longest = longest_length(bundle)
    if not lengths:
        more = [longest] if bundle.details.get(CROSS_VALIDATED) else []
        return sorted({*training_lengths(bundle), *more})
    shortest = _shortest_length(bundle)
    for length in lengths:
        if not shortest <= length <= longest:
            raise InputError(f"--length: expected {shortest} to the run's {longest}, got {length}")
    return sorted(set(lengths))


def training_lengths(bundle: Bundle) -> list[int]:
    """Percentiles of the lengths of the training texts, ascending and rounded up; the last one holds all of them.

    The last one of a tagger is the run's longest, because the tags of a sentence depend on the length of its windows;
    so is that of a run without the lengths of its training texts.
    """
    found = bundle.details.get("lengths", {})
    shortest, longest = _shortest_length(bundle), longest_length(bundle)
    last = longest if bundle.task == TAG else found.get("p100", longest)
    ends = [found[name] for name in ("p50", "p90", "p99") if name in found]
    return sorted({max(shortest, min(longest, -(-end // STEP) * STEP)) for end in (*ends, last)})


def _shortest_length(bundle: Bundle) -> int:
    return MIN_WINDOW_LENGTH if bundle.task == TAG else SHORTEST
