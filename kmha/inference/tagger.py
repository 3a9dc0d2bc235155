"""Tags for sentences of any length: windows are scored alone, and the best path is found over the whole sentence."""

from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import keras
import numpy as np
import tensorflow as tf

from kmha.errors import InputError
from kmha.features import CHARACTER_IDS, MAX_WORDS
from kmha.inference.batching import BATCH_TOKENS, length_batches
from kmha.layers.crf_decoding import Decoded, decode
from kmha.tags import Scheme, spans_of
from kmha.text.ragged import Ragged
from kmha.text.sentence_preprocessor import SentencePreprocessor

BATCH_WORDS = 8192
CHUNK_ROWS = 256

# Raw text, or its words.
Sentence = str | bytes | Sequence[str | bytes]


class TaggedSentences(NamedTuple):
    """The tags of some sentences, whose N words lie one after another.

    Attributes:
        lengths: Words of each sentence, int64 [R].
        tag_ids: int32 [N], of the best path of each sentence.
        probabilities: float32 [N, K], of each tag of each word, over all paths.
        path_probabilities: float32 [N], of each word's tag given the one before it; of a first word by itself.
    """

    lengths: np.ndarray
    tag_ids: np.ndarray
    probabilities: np.ndarray
    path_probabilities: np.ndarray

    def sentences(self) -> Iterator["TaggedSentences"]:
        """Each sentence by itself."""
        ends = np.cumsum(self.lengths)
        for first, end in zip(ends - self.lengths, ends, strict=True):
            yield TaggedSentences(np.array([end - first]), *(values[first:end] for values in self[1:]))


class PathDecoder:
    """Finds the best paths of sentences whose words have been scored.

    Args:
        model: A built `SequenceTagger`.
    """

    def __init__(self, model: keras.Model):
        def decoded(scores, mask) -> Decoded:
            return decode(model.potentials(scores, mask))

        self.num_tags = model.num_labels
        signature = [tf.TensorSpec([None, None, self.num_tags]), tf.TensorSpec([None, None], tf.int32)]
        self._decode = tf.function(decoded, input_signature=signature, autograph=False)

    def __call__(self, scores: np.ndarray, lengths: np.ndarray) -> TaggedSentences:
        """The tags of sentences.

        Args:
            scores: float32 [N, K], of all words, one sentence after another.
            lengths: Words of each sentence, integers [R]; their sum is N.
        """
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
    """Batches of sentences of similar lengths: which of all words stand in one, and where in its rows.

    Args:
        lengths: Words of each sentence, int64 [R]; sentences lie one after another.

    Returns:
        Of each batch the numbers of its words, int64 [n], and bool [B, W] with n true, in their order.
    """
    begins = np.cumsum(lengths) - lengths
    for chosen in length_batches(lengths, BATCH_WORDS):
        width = int(lengths[chosen].max(initial=0))
        if width:
            mask = np.arange(width) < lengths[chosen][:, None]
            yield (begins[chosen][:, None] + np.arange(width))[mask], mask


class Split(NamedTuple):
    """Sentences as words.

    Attributes:
        words: Of each sentence.
        bounds: Of each word of a raw text its first character and the one after its last; None where words were given.
    """

    words: list[list[str]]
    bounds: list[list[tuple[int, int]] | None]


class Tagger:
    """Tags sentences given as raw texts or as words.

    Args:
        model: A built `SequenceTagger`.
        preprocessor: The one it was trained with.
        length: Most tokens of a window; None takes as many as in training.
    """

    def __init__(self, model: keras.Model, preprocessor: SentencePreprocessor, length: int | None = None):
        self.model, self.preprocessor = model, preprocessor
        self.scheme = model.scheme
        self._num_tags = model.num_labels
        self._decoder = PathDecoder(model)
        self._words = tf.function(
            preprocessor.words, input_signature=[tf.TensorSpec([None], tf.string)], autograph=False
        )
        self._cut = tf.function(
            lambda words, lengths: preprocessor.encode(Ragged.from_row_lengths(words, lengths), length),
            input_signature=[tf.TensorSpec([None], tf.string), tf.TensorSpec([None], tf.int64)],
            autograph=False,
        )
        ids, characters = tf.TensorSpec([None, None], tf.int32), tf.TensorSpec([None, None, None], tf.int32)
        features = {name: characters if name == CHARACTER_IDS else ids for name in preprocessor.feature_names}
        self._scores = tf.function(
            lambda features: model(features, training=False), input_signature=[features], autograph=False
        )

    def split(self, sentences: Sequence[Sentence], number: int = 1) -> Split:
        """The words of sentences, the first of which has a number for messages; of raw texts also where they stand.

        Raises:
            InputError: One is neither text nor words, or has more than 2,048 words.
        """
        if isinstance(sentences, str | bytes):
            raise InputError("sentences must be a list of texts or of lists of words, got one text")
        texts = [_text(each) for each in sentences]
        raw = [text.encode("utf-8", "replace") for text in texts if text is not None]
        found = iter(self._bounds(raw))
        words, bounds = [], []
        for sentence, text in zip(sentences, texts, strict=True):
            where: list[tuple[int, int]] = [] if text is None else next(found)
            given = _words(sentence) if text is None else [text[first:end] for first, end in where]
            if len(given) > MAX_WORDS:
                raise InputError(
                    f"sentence {number + len(words)}: expected at most {MAX_WORDS:,} words, got {len(given):,}"
                )
            words.append(given)
            bounds.append(None if text is None else where)
        return Split(words, bounds)

    def _bounds(self, texts: list[bytes]) -> list[list[tuple[int, int]]]:
        found: Any = self._words(tf.constant(texts, tf.string))
        pairs = zip(
            found.firsts.flat_values.numpy().tolist(), found.ends.flat_values.numpy().tolist(), strict=True
        )
        pairs = list(pairs)
        splits = found.firsts.row_splits.numpy().tolist()
        return [pairs[first:end] for first, end in zip(splits, splits[1:], strict=False)]

    def tag(self, sentences: Sequence[Sequence[str]]) -> TaggedSentences:
        """The tags of sentences given as words, whatever their number."""
        lengths = np.array([len(sentence) for sentence in sentences], np.int64)
        return self._decoder(self.scores(sentences), lengths)

    def scores(self, sentences: Sequence[Sequence[str]]) -> np.ndarray:
        """What the model gives of each word by itself, float32 [N, K], one sentence after another."""
        chunks = [sentences[i : i + CHUNK_ROWS] for i in range(0, len(sentences), CHUNK_ROWS)]
        scores = [self._chunk(chunk) for chunk in chunks]
        return np.concatenate([*scores, np.zeros((0, self._num_tags), np.float32)])

    def predict(
        self, sentences: Sequence[Sentence], labels: Sequence[str], number: int = 1
    ) -> list[dict[str, Any]]:
        """What `sentence_answer` tells of each sentence; labels name the tags, and for the rest see `split`."""
        split = self.split(sentences, number)
        rows = zip(split.words, split.bounds, self.tag(split.words).sentences(), strict=True)
        return [sentence_prediction(*row, labels, self.scheme) for row in rows]

    def _chunk(self, sentences: Sequence[Sequence[str]]) -> np.ndarray:
        """Scores float32 [N, K] of the words of some sentences."""
        flat = [word.encode("utf-8", "replace") for sentence in sentences for word in sentence]
        lengths = np.array([len(sentence) for sentence in sentences], np.int64)
        cut = self._cut(tf.constant(flat, tf.string), lengths)
        windows = cut.windows
        counts = windows.counts.numpy()
        scores = np.zeros((len(flat), self._num_tags), np.float32)
        begins = np.cumsum(counts) - counts
        for chosen in length_batches(windows.sequences.row_lengths().numpy(), BATCH_TOKENS):
            part = self.preprocessor.select_windows(cut, chosen)
            found: Any = self._scores(self.preprocessor.pad(part)).numpy()
            scatter_scores(scores, found, begins[chosen], counts[chosen])
        return scores


def scatter_scores(scores: np.ndarray, found: np.ndarray, begins: np.ndarray, counts: np.ndarray) -> None:
    """Puts the scores of windows where their words to tag lie among all words.

    Args:
        scores: float32 [N, K], of all words; changed.
        found: float32 [V or more, W, K], of the words of V windows.
        begins: Where each window's words to tag begin among all, integers [V].
        counts: How many these are, integers [V].
    """
    for window, begin, count in zip(found, begins, counts, strict=False):
        scores[begin : begin + count] = window[:count]


def sentence_prediction(
    words: Sequence[str], bounds: Any, tagged: TaggedSentences, labels: Sequence[str], scheme: Scheme
) -> dict[str, Any]:
    """What the tags of a sentence amount to, as JSON values.

    Args:
        words: Of the sentence.
        bounds: First and last character plus 1 of each word in the raw text; None where words were given.
        tagged: Its tags.
        labels: Names of the tags.
        scheme: How they spell spans.

    Returns:
        {"words": […], "tags": […], "probabilities": [of each word's tag]}; of a raw text also {"starts": […], "ends":
        […]} in characters; with a scheme {"spans": [{"type", "first_word", "end_word", "probability" that all its
        words have these tags, and of a raw text "start", "end"}]}.
    """
    tags = [str(labels[index]) for index in tagged.tag_ids]
    each = tagged.probabilities[np.arange(len(tags)), tagged.tag_ids]
    answer: dict[str, Any] = {"words": list(words)}
    if bounds is not None:
        answer |= {"starts": [first for first, _ in bounds], "ends": [end for _, end in bounds]}
    answer |= {"tags": tags, "probabilities": [float(p) for p in each]}
    if scheme == "none":
        return answer
    answer["spans"] = []
    for span in spans_of(tags, scheme):
        rest = tagged.path_probabilities[span.first + 1 : span.end]
        found: dict[str, Any] = {"type": span.type, "first_word": span.first, "end_word": span.end}
        if bounds is not None:
            found |= {"start": bounds[span.first][0], "end": bounds[span.end - 1][1]}
        answer["spans"].append(found | {"probability": float(each[span.first] * np.prod(rest))})
    return answer


def _text(sentence: Sentence) -> str | None:
    """A raw text; None where words were given."""
    if isinstance(sentence, bytes):
        return sentence.decode("utf-8", "replace")
    return sentence if isinstance(sentence, str) else None


def _words(sentence: Any) -> list[str]:
    words = [_text(word) for word in sentence] if isinstance(sentence, list | tuple) else [None]
    if any(word is None for word in words):
        raise InputError(f"sentences must be texts or lists of words, got {type(sentence).__name__}")
    return words  # pyright: ignore  (no None among them)
