"""The endpoints of a served tagger: raw texts, words, or ids in; a tag for each word out."""

import types
from typing import Any

import tensorflow as tf

from export.graph.model_function import ATTENTION, PROBABILITIES, SCORES, ids_function, ids_specs, input_names
from export.graph.sentences import cut_function, decode_function, scores_function, split_function
from export.graph.tagger_function import PATH_PROBABILITIES, TAG_IDS
from export.savedmodel.endpoints import (
    EXPLAIN,
    LABELS,
    PREDICT_IDS,
    PREDICT_IDS_XLA,
    PREDICT_TEXT,
    SERVING_DEFAULT,
    TOKENS,
    traced,
)
from export.savedmodel.input_checks import at_compiled_size, checked_sentences
from kmha.bundle.bundle import Bundle
from kmha.features import MAX_WORDS, TOKEN_IDS, WORD_MASK, WORD_STARTS
from kmha.layers.crf_decoding import Decoded

PREDICT_WORDS, EXPLAIN_WORDS = "predict_words", "explain_words"
TEXT, WORDS, NUM_WORDS, STARTS, ENDS = "text", "words", "num_words", "starts", "ends"
TAGS, WINDOWS = "tags", "windows"


class TaggerEndpoints(tf.Module):
    """Tags sentences in one graph: splitting, windows, model, the best path of whole sentences, and checks inside.

    A sentence may have 2,048 words. What a row is answered does not depend on the other rows.

    Args:
        bundle: A trained tagger's.
        xla: Whether `signatures` has the compiled `predict_ids_xla` too.
    """

    def __init__(self, bundle: Bundle, xla: bool = False):
        super().__init__(name="endpoints")
        self.preprocessor = bundle.preprocessor
        self.weights = [variable.value for variable in bundle.model.variables]
        self._labels = bundle.labels
        self._xla = xla
        self._names, self._specs = input_names(bundle), ids_specs(bundle)
        answer = ids_function(bundle)
        # As in `IdsEndpoints`: functions in a plain object, so that each stands in the graph once.
        self._parts = types.SimpleNamespace(
            split=split_function(bundle),
            cut=cut_function(bundle),
            scores=scores_function(bundle),
            decode=decode_function(bundle),
            answer=answer,
            explain=ids_function(bundle, with_attention=True),
            compiled=tf.function(answer.python_function, autograph=False, jit_compile=True),
        )

    def predict_text(self, text):
        """Splits texts into words and tags them.

        Args:
            text: string [B]; any bytes.

        Returns:
            "words" string [B, W], "starts" and "ends" int32 [B, W] (first character and the one after the last, of
            the text), "num_words" int32 [B], and what `predict_words` returns; W is at least 1.

        Raises:
            tf.errors.InvalidArgumentError: When the graph runs; more than 2,048 words.
        """
        found = self._parts.split(text)
        lengths = _checked_lengths(found.words.row_lengths())
        width = _widest(lengths)
        shape = tf.stack([tf.size(lengths), width])
        numbers = {STARTS: found.firsts, ENDS: found.ends}
        return {
            WORDS: found.words.to_tensor("", shape=shape),
            **{name: values.to_tensor(0, shape=shape) for name, values in numbers.items()},
            NUM_WORDS: tf.cast(lengths, tf.int32),
            **self._tagged(found.words.flat_values, lengths, width),
        }

    def predict_words(self, words, num_words):
        """Tags sentences whose words are known.

        Args:
            words: string [B, W]; any bytes, and anything past a sentence's end.
            num_words: int32 [B], of each sentence, at most W.

        Returns:
            "tags" string [B, W] ("" past the end), "tag_ids" int32 [B, W] of the best path of the whole sentence,
            "probabilities" float32 [B, W, K] over all paths, "path_probabilities" float32 [B, W] of each tag given the
            one before it, and "labels" string [B, K], the names in the order of the probabilities.

        Raises:
            tf.errors.InvalidArgumentError: When the graph runs; more than 2,048 words, or a number of words below 0,
                above W or not of each row.
        """
        flat, lengths = _flat_words(words, num_words)
        return self._tagged(flat, lengths, tf.shape(words)[1])

    def predict_ids(self, **inputs):
        """Answers windows given as ids, each decoded by itself.

        Args:
            **inputs: token_ids, padding_mask int32 [B, T], as of a classifier; word_starts int32 [B, W] in [0, T), the
                place of each word's first token (0 = no word), no two alike; word_mask int32 [B, W], above 0 = to be
                tagged, those first; where the tagger reads spelling character_ids int32 [B, W, 20].

        Returns:
            "probabilities" float32 [B, W, K], "tag_ids" int32 [B, W], "path_probabilities" float32 [B, W], and "scores"
            float32 [B, W, K] from which the best path of a sentence of several windows can be found.
        """
        return self._answers(self._parts.answer, checked_sentences(self.preprocessor, inputs))

    def predict_ids_xla(self, **inputs):
        """What `predict_ids` answers, from a model compiled by XLA for each batch size and length it meets."""
        checked = checked_sentences(self.preprocessor, inputs)
        return self._answers(self._parts.compiled, checked, compiled=True)

    def explain(self, text):
        """Tags texts and shows what the model looked at.

        Args:
            text: string [B]; any bytes.

        Returns:
            Of the V windows of all texts, one or more a text, "tokens" string [V, T], "attention" float32 [V, L, N, T,
            T] (from a position, the last axis but one, to every other) and "windows" int32 [V], which text each is part
            of; and "probabilities" float32 [B, W, K], as `predict_text` returns them.
        """
        words = self._parts.split(text).words
        lengths = _checked_lengths(words.row_lengths())
        width = _widest(lengths)
        return self._explained(words.flat_values, lengths, width)

    def explain_words(self, words, num_words):
        """Tags words, as `predict_words`, and shows what the model looked at, as `explain`."""
        flat, lengths = _flat_words(words, num_words)
        return self._explained(flat, lengths, tf.shape(words)[1])

    def signatures(self) -> dict[str, Any]:
        """The concrete functions by signature name, each for batches of any size."""
        text = tf.TensorSpec([None], tf.string, TEXT)
        words = tf.TensorSpec([None, None], tf.string, WORDS), tf.TensorSpec([None], tf.int32, NUM_WORDS)
        specs = dict(zip(self._names, self._specs, strict=True))
        predict_text = traced(self.predict_text, text)
        found = {
            SERVING_DEFAULT: predict_text,
            PREDICT_TEXT: predict_text,
            PREDICT_WORDS: traced(self.predict_words, *words),
            PREDICT_IDS: traced(self.predict_ids, **specs),
            EXPLAIN: traced(self.explain, text),
            EXPLAIN_WORDS: traced(self.explain_words, *words),
        }
        return found | ({PREDICT_IDS_XLA: traced(self.predict_ids_xla, **specs)} if self._xla else {})

    def _answers(self, function, features: dict[str, Any], compiled: bool = False) -> dict[str, Any]:
        """What a function of ids gives, of any number of rows and words.

        Without a row or a word it is asked for one all the same: TensorFlow's convolutions, which read the spelling,
        give other shapes when there is none.
        """
        rows, width = tf.unstack(tf.shape(features[WORD_STARTS]))
        if compiled:
            features = at_compiled_size(self.preprocessor, features)
        expected = {name: features[name] for name in self._names}
        padded = {name: _at_least_one(values) for name, values in expected.items()}
        answers = function(*padded.values())
        return {
            name: values[:rows] if name == ATTENTION else values[:rows, :width]
            for name, values in answers.items()
        }

    def _tagged(self, words, lengths, width) -> dict[str, Any]:
        """What `predict_words` returns, of the words string [N] of sentences of some lengths int64 [B]."""
        found = self._parts.decode(self._parts.scores(self._parts.cut(words, lengths)), lengths)
        mask = tf.sequence_mask(lengths, width)
        tag_ids, probabilities, path = _padded(found, mask)
        labels = tf.constant(self._labels)
        return {
            TAGS: tf.where(mask, tf.gather(labels, tag_ids), ""),
            TAG_IDS: tag_ids,
            PROBABILITIES: probabilities,
            PATH_PROBABILITIES: path,
            LABELS: tf.broadcast_to(labels, [tf.size(lengths), len(self._labels)]),
        }

    def _explained(self, words, lengths, width) -> dict[str, Any]:
        cut = self._parts.cut(words, lengths)
        features = self.preprocessor.pad(cut)
        answers = self._answers(self._parts.explain, features)
        # The words to tag of all windows, one window after another, are the words in their order.
        scores = tf.boolean_mask(answers[SCORES], features[WORD_MASK] > 0)
        found = self._parts.decode(scores, lengths)
        _, probabilities, _ = _padded(found, tf.sequence_mask(lengths, width))
        tokens = tf.constant(self.preprocessor.vocabulary.tokens)
        return {
            TOKENS: tf.gather(tokens, features[TOKEN_IDS]),
            ATTENTION: answers[ATTENTION],
            WINDOWS: tf.cast(cut.windows.sentences, tf.int32),
            PROBABILITIES: probabilities,
        }


def _flat_words(words, num_words):
    """The words string [N] of sentences, and their lengths int64 [B], once these are known to fit."""
    shape = tf.shape(words)
    rows = tf.debugging.Assert(
        tf.equal(shape[0], tf.size(num_words)),
        [f"{NUM_WORDS} must have as many rows as {WORDS},", shape[0], "given", tf.size(num_words)],
    )
    wrong = tf.boolean_mask(num_words, (num_words < 0) | (num_words > shape[1]))
    fits = tf.debugging.Assert(
        tf.equal(tf.size(wrong), 0),
        [f"{NUM_WORDS} must be from 0 to the width of {WORDS},", shape[1], "given", wrong[:1]],
    )
    with tf.control_dependencies([rows, fits]):
        lengths = _checked_lengths(tf.cast(num_words, tf.int64))
    return tf.boolean_mask(words, tf.sequence_mask(lengths, shape[1])), lengths


def _checked_lengths(lengths):
    """Words of each sentence, int64 [B], once none has too many: a best path is found in one piece."""
    most = tf.reduce_max(lengths)
    message = [f"a sentence must have at most {MAX_WORDS:,} words, got", most]
    with tf.control_dependencies([tf.debugging.Assert(most <= MAX_WORDS, message)]):
        return tf.identity(lengths)


def _at_least_one(values):
    """The values [B, W, …] with zeros where B or W was 0."""
    missing = tf.maximum(1 - tf.shape(values)[:2], 0)
    paddings = tf.pad(missing[:, None], [[0, len(values.shape) - 2], [1, 0]])
    return tf.pad(values, paddings)


def _widest(lengths):
    """Words of the longest sentence, int32, at least 1: an axis of no words is more than some clients take."""
    return tf.cast(tf.maximum(tf.reduce_max(lengths), 1), tf.int32)


def _padded(found: Decoded, mask) -> Any:
    """Values of words, [N, …] each, at their places in sentences, [B, W, …]; zeros elsewhere."""
    places = tf.where(mask)
    return [
        tf.scatter_nd(places, values, tf.concat([tf.shape(mask, tf.int64), values.shape[1:]], axis=0))
        for values in found
    ]
