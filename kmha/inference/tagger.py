"""Tagging of sentences of any length: windows are scored separately, the best path is found over whole sentences."""

from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import keras
import numpy as np
import tensorflow as tf

from kmha.errors import InputError
from kmha.features import CHARACTER_IDS, MAX_WORDS
from kmha.inference.batching import BATCH_TOKENS, TEXTS, graph_function, length_batches
from kmha.layers.crf import decode
from kmha.tags import Scheme, spans_of
from kmha.text.sentence_preprocessor import SentencePreprocessor
from kmha.text.words import Ragged

BATCH_WORDS = 8192
CHUNK_ROWS = 256

# Raw text, or its words.
Sentence = str | bytes | Sequence[str | bytes]


class TaggedSentences(NamedTuple):
    """Tags of R sentences, whose N words are concatenated."""

    lengths: np.ndarray  # words of each sentence, int64 [R]
    tag_ids: np.ndarray  # best path of each sentence, int32 [N]
    probabilities: np.ndarray  # probability of each tag of each word over all paths, float32 [N, K]
    # Probability of each word's tag given the previous tag, float32 [N]; for a first word its own probability.
    path_probabilities: np.ndarray

    def sentences(self) -> Iterator["TaggedSentences"]:
        """Yields each sentence."""
        ends = np.cumsum(self.lengths)
        for first, end in zip(ends - self.lengths, ends, strict=True):
            yield TaggedSentences(np.array([end - first]), *(values[first:end] for values in self[1:]))


class PathDecoder:
    """Finds the best path of each sentence from the scores of its words by a `SequenceTagger`."""

    def __init__(self, model: keras.Model):
        self.num_tags = model.num_labels
        signature = tf.TensorSpec([None, None, self.num_tags]), tf.TensorSpec([None, None], tf.int32)
        self._decode = graph_function(lambda scores, mask: decode(model.potentials(scores, mask)), *signature)

    def __call__(self, scores: np.ndarray, lengths: np.ndarray) -> TaggedSentences:
        """Decodes R sentences of these lengths, whose scores are concatenated: float32 [N, K]."""
        lengths = np.asarray(lengths, np.int64)
        count = len(scores)
        tag_ids, path = np.zeros(count, np.int32), np.zeros(count, np.float32)
        probabilities = np.zeros((count, self.num_tags), np.float32)
        for places, mask in word_batches(lengths):
            padded = np.zeros((*mask.shape, self.num_tags), np.float32)
            padded[mask] = scores[places]
            found = self._decode(padded, mask.astype(np.int32))
            tag_ids[places] = found.tag_ids.numpy()[mask]
            probabilities[places] = found.marginals.numpy()[mask]
            path[places] = found.path_probabilities.numpy()[mask]
        return TaggedSentences(lengths, tag_ids, probabilities, path)


def word_batches(lengths: np.ndarray) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """Yields batches of sentences of similar length, whose words are concatenated.

    A batch is the indices of its words, int64 [n], and their places in a padded batch, bool [B, W] with n true.
    """
    begins = np.cumsum(lengths) - lengths
    for rows in length_batches(lengths, BATCH_WORDS):
        width = int(lengths[rows].max(initial=0))
        if width:
            mask = np.arange(width) < lengths[rows][:, None]
            yield (begins[rows][:, None] + np.arange(width))[mask], mask


class SplitSentences(NamedTuple):
    """The words of each sentence, and for raw texts their start and end (exclusive) in characters."""

    words: list[list[str]]
    bounds: list[list[tuple[int, int]] | None]


class Tagger:
    """Tags sentences given as raw texts or as lists of words, in windows of `length` tokens (None: as in training)."""

    def __init__(self, model: keras.Model, preprocessor: SentencePreprocessor, length: int | None = None):
        self.model, self.preprocessor = model, preprocessor
        self.scheme = model.scheme
        self._num_tags = model.num_labels
        self._decoder = PathDecoder(model)
        self._words = graph_function(preprocessor.words, TEXTS)
        self._encode = graph_function(
            lambda words, lengths: preprocessor.encode(Ragged.from_row_lengths(words, lengths), length),
            TEXTS,
            tf.TensorSpec([None], tf.int64),
        )
        ids, characters = tf.TensorSpec([None, None], tf.int32), tf.TensorSpec([None, None, None], tf.int32)
        features = {name: characters if name == CHARACTER_IDS else ids for name in preprocessor.feature_names}
        self._scores = graph_function(lambda features: model(features, training=False), features)

    def split(self, sentences: Sequence[Sentence], number: int = 1) -> SplitSentences:
        """Splits raw texts into words and checks lists of words; `number` is the first sentence's, for messages."""
        if isinstance(sentences, str | bytes):
            raise InputError("sentences must be a list of texts or of lists of words, got one text")
        texts = [_decoded(each) for each in sentences]
        raw = [text.encode("utf-8", "replace") for text in texts if text is not None]
        bounds_of_raw = iter(self._bounds(raw))
        all_words, bounds = [], []
        for sentence, text in zip(sentences, texts, strict=True):
            places: list[tuple[int, int]] = [] if text is None else next(bounds_of_raw)
            words = _checked_words(sentence) if text is None else [text[first:end] for first, end in places]
            if len(words) > MAX_WORDS:
                raise InputError(
                    f"sentence {number + len(all_words)}: expected at most {MAX_WORDS:,} words, got {len(words):,}"
                )
            all_words.append(words)
            bounds.append(None if text is None else places)
        return SplitSentences(all_words, bounds)

    def _bounds(self, texts: list[bytes]) -> list[list[tuple[int, int]]]:
        found: Any = self._words(tf.constant(texts, tf.string))
        firsts, ends = (each.flat_values.numpy().tolist() for each in (found.firsts, found.ends))
        pairs = list(zip(firsts, ends, strict=True))
        splits = found.firsts.row_splits.numpy().tolist()
        return [pairs[first:end] for first, end in zip(splits, splits[1:], strict=False)]

    def tag(self, sentences: Sequence[Sequence[str]]) -> TaggedSentences:
        """Tags sentences given as words."""
        lengths = np.array([len(sentence) for sentence in sentences], np.int64)
        return self._decoder(self.scores(sentences), lengths)

    def scores(self, sentences: Sequence[Sequence[str]]) -> np.ndarray:
        """The model's scores of each word's tags, float32 [N, K], the sentences concatenated."""
        chunks = [sentences[i : i + CHUNK_ROWS] for i in range(0, len(sentences), CHUNK_ROWS)]
        scores = [self._chunk(chunk) for chunk in chunks]
        return np.concatenate([*scores, np.zeros((0, self._num_tags), np.float32)])

    def predict(
        self, sentences: Sequence[Sentence], labels: Sequence[str], number: int = 1
    ) -> list[dict[str, Any]]:
        """Predictions of `sentence_prediction`; `labels` are the names of the tags, other arguments as for `split`."""
        split = self.split(sentences, number)
        rows = zip(split.words, split.bounds, self.tag(split.words).sentences(), strict=True)
        return [sentence_prediction(*row, labels, self.scheme) for row in rows]

    def _chunk(self, sentences: Sequence[Sequence[str]]) -> np.ndarray:
        flat = [word.encode("utf-8", "replace") for sentence in sentences for word in sentence]
        lengths = np.array([len(sentence) for sentence in sentences], np.int64)
        encoded = self._encode(tf.constant(flat, tf.string), lengths)
        counts = encoded.windows.counts.numpy()
        scores = np.zeros((len(flat), self._num_tags), np.float32)
        begins = np.cumsum(counts) - counts
        for rows in length_batches(encoded.windows.sequences.row_lengths().numpy(), BATCH_TOKENS):
            batch = self.preprocessor.select_windows(encoded, rows)
            found: Any = self._scores(self.preprocessor.pad(batch)).numpy()
            scatter_scores(scores, found, begins[rows], counts[rows])
        return scores


def scatter_scores(scores: np.ndarray, found: np.ndarray, begins: np.ndarray, counts: np.ndarray) -> None:
    """Writes scores of V windows, float32 [V or more, W, K], to the places of their words in `scores` [N, K].

    A window's words to tag begin at an index of all words, `begins` [V]; `counts` [V] is their number.
    """
    for window, begin, count in zip(found, begins, counts, strict=False):
        scores[begin : begin + count] = window[:count]


def sentence_prediction(
    words: Sequence[str], bounds: Any, tagged: TaggedSentences, labels: Sequence[str], scheme: Scheme
) -> dict[str, Any]:
    """The prediction for one sentence, as JSON values; `bounds` are None for a list of words.

    Returns:
        {"words", "tags", "probabilities": of each word's tag}; for a raw text also {"starts", "ends"} in characters;
        with a scheme also {"spans": [{"type", "first_word", "end_word", "probability" that all its words have these
        tags, and for a raw text "start", "end"}]}.
    """
    tags = [str(labels[index]) for index in tagged.tag_ids]
    probabilities = tagged.probabilities[np.arange(len(tags)), tagged.tag_ids]
    prediction: dict[str, Any] = {"words": list(words)}
    if bounds is not None:
        prediction |= {"starts": [first for first, _ in bounds], "ends": [end for _, end in bounds]}
    prediction |= {"tags": tags, "probabilities": [float(p) for p in probabilities]}
    if scheme == "none":
        return prediction
    prediction["spans"] = []
    for span in spans_of(tags, scheme):
        others = tagged.path_probabilities[span.first + 1 : span.end]
        entry: dict[str, Any] = {"type": span.type, "first_word": span.first, "end_word": span.end}
        if bounds is not None:
            entry |= {"start": bounds[span.first][0], "end": bounds[span.end - 1][1]}
        prediction["spans"].append(
            entry | {"probability": float(probabilities[span.first] * np.prod(others))}
        )
    return prediction


def _decoded(sentence: Sentence) -> str | None:
    """A raw text as a string; None for a list of words."""
    if isinstance(sentence, bytes):
        return sentence.decode("utf-8", "replace")
    return sentence if isinstance(sentence, str) else None


def _checked_words(sentence: Any) -> list[str]:
    words = [_decoded(word) for word in sentence] if isinstance(sentence, list | tuple) else [None]
    if any(word is None for word in words):
        raise InputError(f"sentences must be texts or lists of words, got {type(sentence).__name__}")
    return words  # pyright: ignore  (no None among them)
