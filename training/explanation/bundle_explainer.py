"""Explains the predictions of a run's model, with attention and gradients."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from kmha.bundle.bundle import Bundle
from kmha.bundle.manifest import MASKED_LM, MATCH, MODEL_NAMES, TAG
from kmha.document_windows import window_shape_of
from kmha.errors import InputError
from kmha.features import CHARACTER_IDS, TOKEN_IDS, WORD_STARTS
from kmha.layers.attention import stack_heads
from kmha.layers.linear_ngrams import LinearNgrams
from kmha.models.encoder import traced
from kmha.text.words import Ragged, word_bounds
from training.explanation.attributions import (
    ATTENTION,
    NO_WORD,
    TOKENS,
    LinearTrace,
    RowTrace,
    WindowTrace,
    linear_trace,
)
from training.explanation.explainer import ExplainedOutput


def explainable_model(bundle: Bundle) -> "BundleTextModel | BundleTagModel":
    """A bundle's model as a `TextModel` or a `TagModel`; raises InputError for masked language models."""
    if bundle.task == MASKED_LM:
        raise InputError(f"expected a classifier, a matcher or a tagger, got {MODEL_NAMES[bundle.task]}")
    return BundleTagModel(bundle) if bundle.task == TAG else BundleTextModel(bundle)


class _Gradients:
    """Attention and gradient × input of single rows, in one graph.

    The input of the first block is measured from its value where every token is unknown. From zero the gradients would
    say little about models that normalize each vector before they use it. `output` selects the explained number from
    the model's outputs [1, …] by two integers; `parts` are the preprocessors by the name of their token ids.
    """

    def __init__(self, model: Any, output: Any, parts: dict[str, Any]):
        def forward(features, first, second):
            with traced() as unknown:
                model(features | _unknown(features, parts), training=False)
            with tf.GradientTape() as tape, traced() as traces:
                outputs, weights = model(features, return_attention_weights=True, training=False)
                value = output(outputs, first, second)
            states = [trace.states[0] for trace in traces]
            gradients = tape.gradient(value, states, unconnected_gradients=tf.UnconnectedGradients.ZERO)
            products = [
                tf.reduce_sum(tf.cast(gradient * (state - start.states[0]), tf.float32), axis=-1)
                for gradient, state, start in zip(gradients, states, unknown, strict=True)
            ]
            named = weights if isinstance(weights, dict) else {ATTENTION: weights}
            return {name: stack_heads(each) for name, each in named.items() if each}, products, outputs

        self._function: Any = tf.function(forward, autograph=False)
        self._concrete: Any = None

    def __call__(
        self, features: dict[str, Any], first: int, second: int
    ) -> tuple[dict[str, np.ndarray], list[np.ndarray], np.ndarray]:
        """Attention float32 [B, L, N, T, S] by name, and gradient × input float32 [B, T] of each pass of an encoder.

        B is 1, or the number of windows of a text. Third are the model's outputs, float32 [1, …].
        """
        if self._concrete is None:
            # Traced once, for sequences of any length.
            ranks = {name: ([None] * len(each.shape), each.dtype) for name, each in features.items()}
            specs = {name: tf.TensorSpec(*each) for name, each in ranks.items()}
            self._concrete = self._function.get_concrete_function(specs, *[tf.TensorSpec([], tf.int32)] * 2)
        weights, products, outputs = self._concrete(features, tf.constant(first), tf.constant(second))
        named = {name: each.numpy() for name, each in weights.items()}
        return named, [each.numpy() for each in products], outputs.numpy()


def _unknown(features: dict[str, Any], parts: dict[str, Any]) -> dict[str, Any]:
    """The features with every token unknown except the special ones at the ends, and without character ids."""
    found = {}
    for name, part in parts.items():
        ids = features[name]
        special = (ids == part.start_id) | (ids == part.end_id) | (ids == part.padding_id)
        found[name] = tf.where(special, ids, part.unknown_id)
    if CHARACTER_IDS in features:
        found[CHARACTER_IDS] = tf.zeros_like(features[CHARACTER_IDS])
    return found


class BundleTextModel:
    """See `training.explanation.explainer.TextModel`."""

    def __init__(self, bundle: Bundle):
        model = bundle.model
        self._bundle, self._preprocessor = bundle, bundle.preprocessor
        self._inputs = {each.ids.replace(TOKEN_IDS, TOKENS): each for each in bundle.preprocessor.inputs}
        self.labels = bundle.labels
        is_pair = bundle.task == MATCH
        self.scores = is_pair and model.target == "graded"
        self.decides = is_pair and bundle.uses_thresholds
        self._pairs: list[Any] = model.pairs if is_pair else []
        self.pooling = self._pairs[0].pooling.mode if is_pair else model.pooling.mode
        self.notes: list[str] = []
        if is_pair and model.form == "bi":
            self.notes.append(
                "In the bi form there is no cross-attention: the texts are encoded independently."
            )
        has_blocks = is_pair and any(config.num_layers for config in model.encoder_configs.values())
        if has_blocks and model.form == "joint" and model.symmetric:
            self.notes.append("The pair is encoded in both orders; the attention is that of A before B.")
        if is_pair and self._pairs[0].overlap:
            self.notes.append(
                "Overlap features (shared words) also enter the score directly, without attention."
            )
        self._gradients = _Gradients(
            model,
            lambda logits, output, sign: logits[0, output] * tf.cast(sign, logits.dtype),
            {each.ids: each.part for each in self._inputs.values()},
        )

    def probabilities(self, rows: Sequence[tuple[str, ...]]) -> np.ndarray:
        """See the protocol."""
        single = self._preprocessor.num_texts == 1
        return self._bundle.probabilities([row[0] for row in rows] if single else list(rows))

    def matches(self, row: tuple[str, ...]) -> bool:
        """See the protocol."""
        return self._bundle.predict([row])[0]["match"]

    def word_bounds(self, text: str) -> list[tuple[int, int]]:
        """See the protocol."""
        return word_bounds(text)

    def tokenize_words(self, name: str, words: Sequence[str]) -> list[list[str]]:
        """See the protocol."""
        part = self._inputs[name].part
        if not words:
            return []
        tokens = part.vocabulary.tokens
        pieces = part.tokenize(tf.constant([word.encode("utf-8", "replace") for word in words]))
        return [[tokens[each] for each in ids] for ids in pieces.to_list()]

    def trace(self, row: tuple[str, ...], chosen: ExplainedOutput) -> RowTrace:
        """See the protocol."""
        columns = [tf.constant([text.encode("utf-8", "replace")]) for text in row]
        features = self._preprocessor.pad(self._preprocessor.encode(*columns))
        found, products, logits = self._gradients(features, chosen.output, chosen.sign)
        linear = self._linear(features, logits, chosen)
        tokens = {
            name: [source.part.vocabulary.tokens[each] for each in features[source.ids][0].numpy()]
            for name, source in self._inputs.items()
        }
        windows = window_shape_of(self._bundle.model)
        if not found:
            # No encoder blocks.
            return RowTrace(tokens, {}, None, linear=linear)
        if windows is not None and len(found[ATTENTION]) > 1:
            shares = self._bundle.model.window_shares(features)[0].numpy().tolist()
            places = windows.positions(len(tokens[TOKENS]))
            rows = zip(places, shares, found[ATTENTION], products[0], strict=True)
            return RowTrace(tokens, {}, {}, [WindowTrace(*each) for each in rows], linear)
        weights = {name: each[0] for name, each in found.items()}
        lengths = {name: len(each) for name, each in tokens.items()}
        return RowTrace(
            tokens, weights, self._by_name([each[0] for each in products], lengths), linear=linear
        )

    def _linear(
        self, features: dict[str, Any], logits: np.ndarray, chosen: ExplainedOutput
    ) -> LinearTrace | None:
        """The parts of the explained logit, from all logits float32 [1, C]."""
        model = self._bundle.model
        if not isinstance(getattr(model, "linear", None), LinearNgrams):
            return None
        ngrams, linear, encoder = (each.numpy()[0] for each in model.logit_parts(features, logits))
        return linear_trace(ngrams, linear, encoder, chosen.output, model.multi_label)

    def _by_name(self, products: list[np.ndarray], lengths: dict[str, int]) -> dict[str, np.ndarray]:
        """Gradient × input by the name of the tokens, from the encoder passes in their order."""
        names = list(lengths)
        if not self._pairs or self._bundle.model.form != "joint":
            return dict(zip(names, products, strict=True))
        found = {}
        for index, (a, b) in enumerate(zip(names[::2], names[1::2], strict=True)):
            both = products[index].copy()
            if self._bundle.model.symmetric:
                # The second pass has B first: its [CLS] and B, then A without a [CLS].
                other = products[len(self._pairs) + index]
                both[0] += other[0]
                both[1 : lengths[a]] += other[lengths[b] :]
                both[lengths[a] :] += other[1 : lengths[b]]
            found |= {a: both[: lengths[a]], b: both[lengths[a] :]}
        return found


class BundleTagModel:
    """See `training.explanation.explainer.TagModel`."""

    def __init__(self, bundle: Bundle):
        self._tagger: Any = bundle.tagger
        self._model, self._preprocessor = bundle.model, bundle.preprocessor
        self.labels = bundle.labels
        self.notes: list[str] = []
        parts = {TOKEN_IDS: bundle.preprocessor.part}
        self._gradients = _Gradients(bundle.model, lambda scores, word, tag: scores[0, word, tag], parts)

    def words(self, text: str) -> list[str]:
        """Splits a raw text into words."""
        return self._tagger.split([text]).words[0]

    def tagged(self, sentences: Sequence[Sequence[str]]) -> list[tuple[list[int], np.ndarray]]:
        """See the protocol."""
        found = self._tagger.tag(sentences).sentences()
        return [(each.tag_ids.tolist(), each.probabilities) for each in found]

    def trace(self, words: Sequence[str], word: int, tag: int) -> tuple[RowTrace, list[int], list[int]]:
        """See the protocol."""
        flat = tf.constant([each.encode("utf-8", "replace") for each in words])
        encoded = self._preprocessor.encode(Ragged.from_row_lengths(flat, [len(words)]))
        firsts = np.cumsum(encoded.windows.counts.numpy()) - encoded.windows.counts.numpy()
        window = int(np.searchsorted(firsts, word, side="right")) - 1
        features = self._preprocessor.pad(self._preprocessor.select_windows(encoded, [window]))
        numbers = encoded.windows.words[window].numpy().tolist()
        place = numbers.index(word)
        found, products, _ = self._gradients(features, place, tag)
        weights = {name: each[0] for name, each in found.items()}
        ids = features[TOKEN_IDS][0].numpy()
        of_tokens = words_of_tokens(features[WORD_STARTS][0].numpy()[: len(numbers)], numbers, len(ids))
        tokens = [self._preprocessor.vocabulary.tokens[each] for each in ids]
        own = [token for token, number in enumerate(of_tokens) if number == word]
        read_from = own[:1] if self._model.word_pooling == "first" else own
        return RowTrace({TOKENS: tokens}, weights, {TOKENS: products[0][0]}), of_tokens, read_from


def words_of_tokens(starts: np.ndarray, numbers: Sequence[int], length: int) -> list[int]:
    """The word of each token of a window of `length` tokens, with special ones, without padding.

    `starts` are the index of each word's first token, integers [W]; `numbers` are the indices of the words.
    """
    found = [NO_WORD] * length
    order = np.argsort(starts, kind="stable")
    ends = [*starts[order][1:], length - 1]
    for index, end in zip(order, ends, strict=True):
        found[starts[index] : end] = [numbers[index]] * (end - starts[index])
    return found
