"""Graph functions of a served tagger: raw texts, words or token ids in, a tag for each word out."""

from collections.abc import Callable
from typing import Any

import tensorflow as tf

from export import names
from export.savedmodel.endpoints import Endpoints, concrete_function
from export.savedmodel.input_checks import check_sentences, pad_sentences_to_compiled_length
from kmha.bundle.bundle import Bundle
from kmha.features import MAX_WORDS, TOKEN_IDS, WORD_MASK, WORD_STARTS
from kmha.inference.tagger import BATCH_TOKENS, BATCH_WORDS
from kmha.layers.crf import Decoded, decode
from kmha.text.sentence_preprocessor import EncodedSentences
from kmha.text.words import Ragged


class TaggerEndpoints(Endpoints):
    """A tagger's endpoints: word splitting, windows, model, decoding of whole sentences and input checks in one graph.

    A sentence may have 2,048 words. The predictions of a row do not depend on the other rows.
    """

    def __init__(self, bundle: Bundle, xla: bool = False):
        super().__init__(bundle, xla)
        self._parts.split = tf.function(bundle.preprocessor.words, autograph=False)
        self._parts.windows = tf.function(
            lambda words, lengths: bundle.preprocessor.encode(Ragged.from_row_lengths(words, lengths)),
            autograph=False,
        )
        self._parts.scores = scores_function(bundle)
        self._parts.decode = decode_function(bundle)

    def predict_text(self, text):
        """Splits texts, string [B], into words and tags them.

        Returns "words" string [B, W], "starts" and "ends" int32 [B, W] (first character and the one after the last,
        of the text), "num_words" int32 [B], and what `predict_words` returns; W is at least 1. More than 2,048 words
        are an error.
        """
        found = self._parts.split(text)
        lengths = _checked_lengths(found.words.row_lengths())
        width = _max_words(lengths)
        shape = tf.stack([tf.size(lengths), width])
        numbers = {names.STARTS: found.firsts, names.ENDS: found.ends}
        return {
            names.WORDS: found.words.to_tensor("", shape=shape),
            **{name: values.to_tensor(0, shape=shape) for name, values in numbers.items()},
            names.NUM_WORDS: tf.cast(lengths, tf.int32),
            **self._tagged(found.words.flat_values, lengths, width),
        }

    def predict_words(self, words, num_words):
        """Tags sentences of words, string [B, W], with num_words int32 [B]; values past a sentence's end are ignored.

        Returns "tags" string [B, W] ("" past the end), "tag_ids" int32 [B, W] of the best path of the whole sentence,
        "probabilities" float32 [B, W, K] over all paths, "path_probabilities" float32 [B, W] of each tag given the
        one before it, and "labels" string [B, K], the tags in the order of the probabilities. More than 2,048 words,
        a number of words below 0 or above W, or numbers of words for other than B rows are errors.
        """
        flat, lengths = _flat_words(words, num_words)
        return self._tagged(flat, lengths, tf.shape(words)[1])

    def predict_ids(self, **inputs):
        """Tags windows of token ids, each decoded by itself.

        Inputs are token_ids, padding_mask int32 [B, T], as of a classifier; word_starts int32 [B, W] in [0, T), the
        position of each word's first token (0 = no word), all different; word_mask int32 [B, W], above 0 = to be
        tagged, those first; where the tagger reads spelling character_ids int32 [B, W, 20].

        Returns "probabilities" float32 [B, W, K], "tag_ids" int32 [B, W], "path_probabilities" float32 [B, W], and
        "scores" float32 [B, W, K], from which the best path of a sentence of several windows can be decoded.
        """
        return self._predict(self._parts.predict, check_sentences(self.preprocessor, inputs))

    def predict_ids_xla(self, **inputs):
        """As `predict_ids`, with a model that XLA compiles for each batch size and compiled length."""
        checked = check_sentences(self.preprocessor, inputs)
        return self._predict(self._parts.compiled, checked, compiled=True)

    def explain(self, text):
        """Tags texts, string [B], and returns the attention weights.

        Returns of the V windows of all texts, one or more a text, "tokens" string [V, T], "attention" float32 [V, L,
        N, T, T] (from a position, the last axis but one, to every other) and "windows" int32 [V], the number of each
        window's text; and "probabilities" float32 [B, W, K], as `predict_text` returns them.
        """
        words = self._parts.split(text).words
        lengths = _checked_lengths(words.row_lengths())
        return self._explained(words.flat_values, lengths, _max_words(lengths))

    def explain_words(self, words, num_words):
        """As `explain`, for sentences that are split into words; see `predict_words`."""
        flat, lengths = _flat_words(words, num_words)
        return self._explained(flat, lengths, tf.shape(words)[1])

    def signatures(self) -> dict[str, Any]:
        """The concrete functions by signature name, each for batches of any size."""
        text = tf.TensorSpec([None], tf.string, names.TEXT)
        words = (
            tf.TensorSpec([None, None], tf.string, names.WORDS),
            tf.TensorSpec([None], tf.int32, names.NUM_WORDS),
        )
        specs = self._specs_by_name()
        predict_text = concrete_function(self.predict_text, text)
        found = {
            names.SERVING_DEFAULT: predict_text,
            names.PREDICT_TEXT: predict_text,
            names.PREDICT_WORDS: concrete_function(self.predict_words, *words),
            names.PREDICT_IDS: concrete_function(self.predict_ids, **specs),
            names.EXPLAIN: concrete_function(self.explain, text),
            names.EXPLAIN_WORDS: concrete_function(self.explain_words, *words),
        }
        if self._xla:
            found[names.PREDICT_IDS_XLA] = concrete_function(self.predict_ids_xla, **specs)
        return found

    def _predict(self, function, features: dict[str, Any], compiled: bool = False) -> dict[str, Any]:
        """The outputs of a function of ids, for any number of rows and words.

        Without rows or words the function gets one row or word of zeros: TensorFlow's convolutions, which read the
        spelling, return other shapes for empty inputs.
        """
        rows, width = tf.unstack(tf.shape(features[WORD_STARTS]))
        if compiled:
            features = pad_sentences_to_compiled_length(self.preprocessor, features)
        padded = [_at_least_one(features[name]) for name in self._names]
        return {
            name: values[:rows] if name == names.ATTENTION else values[:rows, :width]
            for name, values in function(*padded).items()
        }

    def _tagged(self, words, lengths, width) -> dict[str, Any]:
        """What `predict_words` returns, of the words string [N] of sentences with these lengths int64 [B]."""
        found = self._parts.decode(self._parts.scores(self._parts.windows(words, lengths)), lengths)
        mask = tf.sequence_mask(lengths, width)
        tag_ids, probabilities, path = _padded(found, mask)
        labels = tf.constant(self._labels)
        return {
            names.TAGS: tf.where(mask, tf.gather(labels, tag_ids), ""),
            names.TAG_IDS: tag_ids,
            names.PROBABILITIES: probabilities,
            names.PATH_PROBABILITIES: path,
            names.LABELS: tf.broadcast_to(labels, [tf.size(lengths), len(self._labels)]),
        }

    def _explained(self, words, lengths, width) -> dict[str, Any]:
        encoded = self._parts.windows(words, lengths)
        features = self.preprocessor.pad(encoded)
        outputs = self._predict(self._parts.explain, features)
        # Window by window, the words to tag are all words in their order.
        scores = tf.boolean_mask(outputs[names.SCORES], features[WORD_MASK] > 0)
        found = self._parts.decode(scores, lengths)
        _, probabilities, _ = _padded(found, tf.sequence_mask(lengths, width))
        tokens = tf.constant(self.preprocessor.vocabulary.tokens)
        return {
            names.TOKENS: tf.gather(tokens, features[TOKEN_IDS]),
            names.ATTENTION: outputs[names.ATTENTION],
            names.WINDOWS: tf.cast(encoded.windows.sentences, tf.int32),
            names.PROBABILITIES: probabilities,
        }


def _flat_words(words, num_words):
    """The words string [N] of sentences, and their checked lengths int64 [B]."""
    shape = tf.shape(words)
    rows = tf.debugging.Assert(
        tf.equal(shape[0], tf.size(num_words)),
        [f"{names.NUM_WORDS} must have as many rows as {names.WORDS},", shape[0], "got", tf.size(num_words)],
    )
    wrong = tf.boolean_mask(num_words, (num_words < 0) | (num_words > shape[1]))
    fits = tf.debugging.Assert(
        tf.equal(tf.size(wrong), 0),
        [f"{names.NUM_WORDS} must be from 0 to the width of {names.WORDS},", shape[1], "got", wrong[:1]],
    )
    with tf.control_dependencies([rows, fits]):
        lengths = _checked_lengths(tf.cast(num_words, tf.int64))
    return tf.boolean_mask(words, tf.sequence_mask(lengths, shape[1])), lengths


def _checked_lengths(lengths):
    """Words of each sentence, int64 [B], checked against the limit: a sentence is decoded in one piece."""
    most = tf.reduce_max(lengths)
    message = [f"a sentence must have at most {MAX_WORDS:,} words, got", most]
    with tf.control_dependencies([tf.debugging.Assert(most <= MAX_WORDS, message)]):
        return tf.identity(lengths)


def _at_least_one(values):
    """The values [B, W, …] with zeros where B or W was 0."""
    missing = tf.maximum(1 - tf.shape(values)[:2], 0)
    paddings = tf.pad(missing[:, None], [[0, len(values.shape) - 2], [1, 0]])
    return tf.pad(values, paddings)


def _max_words(lengths):
    """Words of the longest sentence, int32, at least 1: some clients refuse an axis of size 0."""
    return tf.cast(tf.maximum(tf.reduce_max(lengths), 1), tf.int32)


def _padded(found: Decoded, mask) -> Any:
    """Values of words, [N, …] each, at their positions in sentences, [B, W, …]; zeros elsewhere."""
    places = tf.where(mask)
    return [
        tf.scatter_nd(places, values, tf.concat([tf.shape(mask, tf.int64), values.shape[1:]], axis=0))
        for values in found
    ]


def scores_function(bundle: Bundle) -> Any:
    """A graph function of `EncodedSentences` that returns the scores float32 [N, K] of all its words."""
    model, texts = bundle.model, bundle.preprocessor

    def scores(encoded: EncodedSentences):
        lengths = tf.cast(encoded.windows.sequences.row_lengths(), tf.int32)
        counts, ends = encoded.windows.counts, tf.cumsum(encoded.windows.counts)

        def chunk(chosen, longest):
            features = texts.pad(texts.select_windows(encoded, chosen))
            found = tf.boolean_mask(model(features, training=False), features[WORD_MASK] > 0)
            end = tf.gather(ends, chosen)
            return tf.ragged.range(end - tf.gather(counts, chosen), end).flat_values, (found,)

        (found,) = _by_length(lengths, BATCH_TOKENS, chunk, [tf.TensorSpec([None, model.num_labels])])
        return found

    return tf.function(scores, autograph=False)


def decode_function(bundle: Bundle) -> Any:
    """A graph function of scores float32 [N, K] and lengths int64 [B] that returns the `Decoded` of whole sentences.

    The result has the words of all sentences in order: tag_ids [N], marginals [N, K], path_probabilities [N].
    """
    model = bundle.model

    def decoded(scores, lengths):
        lengths = tf.cast(lengths, tf.int32)
        begins, count = tf.cumsum(lengths, exclusive=True), tf.shape(scores)[0]
        # Padding reads this row of zeros.
        scores = tf.pad(scores, [[0, 1], [0, 0]])

        def chunk(chosen, longest):
            mask = tf.sequence_mask(tf.gather(lengths, chosen), longest)
            places = tf.gather(begins, chosen)[:, None] + tf.range(longest)
            emissions = tf.gather(scores, tf.where(mask, places, count))
            found = decode(model.potentials(emissions, tf.cast(mask, tf.int32)))
            numbers = tf.cast(tf.boolean_mask(places, mask), tf.int64)
            return numbers, tuple(tf.boolean_mask(values, mask) for values in found)

        specs = [
            tf.TensorSpec([None], tf.int32),
            tf.TensorSpec([None, model.num_labels]),
            tf.TensorSpec([None]),
        ]
        return Decoded(*_by_length(lengths, BATCH_WORDS, chunk, specs))

    return tf.function(decoded, autograph=False)


def _by_length(lengths, most: int, chunk: Callable, specs: list[tf.TensorSpec]) -> list[Any]:
    """Computes values of the words of rows in chunks of rows of similar length, which limits memory.

    Lengths are int32 [R]; `most` is the largest padded length of a chunk, but a chunk has at least one row. `chunk`
    gets the numbers of some rows, int32 [r], and their greatest length, at least 1. It returns the numbers of their
    words among all words, int64 [n], and the words' values, [n, …] each. Returns the values of all words in their
    order.
    """
    order = tf.argsort(lengths, direction="DESCENDING", stable=True)

    def step(first, numbers, *values):
        longest = tf.maximum(lengths[order[first]], 1)
        last = first + tf.maximum(most // longest, 1)
        more, found = chunk(order[first:last], longest)
        values = (tf.concat(pair, axis=0) for pair in zip(values, found, strict=True))
        return (last, tf.concat([numbers, more], axis=0), *values)

    empty = [tf.zeros([0, *spec.shape[1:]], spec.dtype) for spec in specs]
    _, numbers, *values = tf.while_loop(
        lambda first, *_: first < tf.size(order),
        step,
        [tf.constant(0), tf.zeros([0], tf.int64), *empty],
        shape_invariants=[tf.TensorShape([]), tf.TensorShape([None]), *(spec.shape for spec in specs)],
        # Parallel chunks would need the memory of all of them.
        parallel_iterations=1,
    )
    places = tf.argsort(numbers)
    return [tf.gather(value, places) for value in values]
