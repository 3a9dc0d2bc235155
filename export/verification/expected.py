"""The bundle's predictions for texts, pairs and sentences, which those of exported models are compared with."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from export.graph import embedding_names, encode_words, vectors_function
from export.predictors.artifacts import Row
from export.verification.layer_outputs import TOKENIZER, layer_outputs, padded, sequences, tagger_layers
from export.verification.rows import Rows
from export.verification.tolerances import Differences, differences, row_differences
from kmha.bundle.bundle import Bundle
from kmha.bundle.manifest import MATCH
from kmha.features import SEGMENT_IDS, SIDES, TOKEN_IDS, WORD_MASK
from kmha.inference.retrieval import TextVectors
from kmha.inference.tagger import TaggedSentences, Tagger
from kmha.layers.crf import decode

CHUNK_ROWS = 64
# Difference of the scores of two paths up to which they count as equal.
TIE = 1e-3
DECODING = "decoding"


class ExpectedRows:
    """The bundle's predictions for rows of texts or pairs."""

    def __init__(self, bundle: Bundle, rows: Rows):
        self._bundle, self._rows = bundle, rows
        self._decision = {"thresholds": bundle.thresholds}
        self.texts: list[Row] = rows.texts
        self.predictions = bundle.probabilities(rows.texts)
        self._ids = sequences(bundle, rows.texts)
        self.metric = self.metric_of(self.predictions)

    def truncated_predictions(self, longest: int | None) -> tuple[np.ndarray, np.ndarray]:
        """The bundle's predictions for texts truncated to `longest` tokens, and which rows have a longer text."""
        longer = np.array([longest is not None and max(map(len, row)) > longest for row in self._ids])
        if longest is None or not longer.any():
            return self.predictions, longer
        truncated = sequences(self._bundle, self.texts, longest)
        expected = self.predictions.copy()
        rows = np.flatnonzero(longer)
        for first in range(0, len(rows), CHUNK_ROWS):
            chosen = rows[first : first + CHUNK_ROWS]
            features = padded(self._bundle, [truncated[row] for row in chosen], longest)
            expected[chosen] = self._bundle.probabilities_of_features(features)
        return expected, longer

    def compare(self, expected: np.ndarray, found: np.ndarray, longest: int | None = None) -> Differences:
        """The differences from the expected predictions, those of `truncated_predictions(longest)`."""
        bundle = self._bundle
        graded = bundle.task == MATCH and bundle.model.target == "graded"
        return differences(expected, found, self._rows.compared, bundle.thresholds, graded=graded)

    def vectors(self, number: int, longest: int | None) -> np.ndarray:
        """The vectors float32 [R, D] of one text of each row, truncated to `longest` tokens."""
        columns = [[row] if isinstance(row, bytes) else row for row in self.texts]
        side = SIDES[number] if self._bundle.preprocessor.num_texts == 2 else SIDES[-1]
        found = TextVectors(self._bundle, side)([row[number] for row in columns])
        longer = np.flatnonzero(self.truncated_predictions(longest)[1])
        if not len(longer):
            return found
        truncated, embed = (
            sequences(self._bundle, self.texts, longest),
            vectors_function(self._bundle, number),
        )
        for first in range(0, len(longer), CHUNK_ROWS):
            chosen = longer[first : first + CHUNK_ROWS]
            features = padded(self._bundle, [truncated[row] for row in chosen], longest)
            inputs = (features[name] for name in embedding_names(self._bundle, number))
            found[chosen] = embed(*map(tf.constant, inputs)).numpy()
        return found

    def row_of(self, worst: int) -> int:
        """The row of `Differences.worst_row`."""
        return worst

    def rows_with_other_ids(self, ids: list[Any], longest: int | None) -> list[int]:
        """Rows with other token ids than the bundle's."""
        expected = self._ids if longest is None else sequences(self._bundle, self.texts, longest)
        if self._bundle.preprocessor.num_texts == 1:
            ids = [[row] for row in ids]
        return [row for row, pair in enumerate(zip(ids, expected, strict=True)) if pair[0] != pair[1]]

    def probe(self, worst: int) -> list[Row]:
        """The row with the largest difference and one of another length, so that one of them is padded."""
        lengths = [[len(ids) for ids in row] for row in self._ids]
        worst_lengths = np.array(lengths[worst])
        others = [row for row, each in enumerate(lengths) if (np.array(each) < worst_lengths).all()] or [
            row for row, each in enumerate(lengths) if each != lengths[worst]
        ]
        # Half the length is enough padding; much longer texts only cost time.
        chosen = min(
            others, key=lambda row: np.abs(np.array(lengths[row]) - worst_lengths / 2).sum(), default=worst
        )
        return [self.texts[worst], self.texts[chosen]]

    def layers(
        self, texts: Sequence[Row], lengths: list[int] | None, own_tokenizer: bool
    ) -> dict[str, np.ndarray]:
        """The outputs of the bundle's layers for the rows of `probe`, by name.

        The exported model takes these lengths in tokens, ascending; None: any. With its own tokenizer, its tensors do
        not contain the token ids.
        """
        ids = sequences(self._bundle, texts, lengths[-1] if lengths else None)
        longest = max(len(each) for row in ids for each in row)
        length = None if not lengths else next(each for each in lengths if each >= longest)
        found = layer_outputs(self._bundle, padded(self._bundle, ids, length))
        return {
            name: value for name, value in found.items() if not (own_tokenizer and name.startswith(TOKENIZER))
        }

    def metric_of(self, probabilities: np.ndarray) -> float | None:
        """The task's metric of predictions for the labeled rows; None where it is not defined."""
        return self._rows.metric(self._bundle.labels, probabilities[: self._rows.real], self._decision)


class ExpectedSentences:
    """The bundle's predictions for sentences: float32 [N, K + 2] of all their words, as a predictor returns them."""

    def __init__(self, bundle: Bundle, rows: Rows):
        self._bundle, self._rows = bundle, rows
        self.texts: list[Row] = rows.texts
        self._words = bundle.tagger.split(rows.texts).words
        self._ends = np.cumsum([len(words) for words in self._words])
        self.predictions = as_array(bundle.tagger.tag(self._words))
        self._ids = window_ids(bundle.tagger, self._words)
        self.metric = self.metric_of(self.predictions)

    def truncated_predictions(self, longest: int | None) -> tuple[np.ndarray, np.ndarray]:
        """The bundle's predictions with windows of at most `longest` tokens, and which rows these windows change."""
        tagger, longer = self._tagger(longest), np.zeros(len(self.texts), bool)
        if tagger is self._bundle.tagger:
            return self.predictions, longer
        longer[self.rows_with_other_ids(window_ids(tagger, self._words, longest), None)] = True
        return as_array(tagger.tag(self._words)), longer

    def compare(self, expected: np.ndarray, found: np.ndarray, longest: int | None = None) -> Differences:
        """As `ExpectedRows.compare`, over all words."""
        by_word = np.abs(found[:, :-1].astype(np.float64) - expected[:, :-1]).max(axis=1, initial=0.0)
        compared = int(self._ends[self._rows.compared - 1])
        summary = row_differences(by_word, compared)
        return Differences(
            **summary,
            label_agreement=float((found[:, -1] == expected[:, -1])[:compared].mean()) if compared else 1.0,
            set_agreement=None,
            other_paths=0
            if summary["not_finite"]
            else self._other_paths(expected[:, -1], found[:, -1], longest),
        )

    def row_of(self, worst: int) -> int:
        """The sentence of the word with the largest difference."""
        return int(np.searchsorted(self._ends, worst, side="right"))

    def rows_with_other_ids(self, ids: list[Any], longest: int | None) -> list[int]:
        """Sentences with other token ids in their windows than the bundle's."""
        expected = self._ids if longest is None else window_ids(self._tagger(None), self._words, longest)
        return [row for row, pair in enumerate(zip(ids, expected, strict=True)) if pair[0] != pair[1]]

    def probe(self, worst: int) -> list[Row]:
        """The sentence with the largest difference and a shorter one of its kind, so that one of them is padded."""
        lengths = [sum(map(len, row)) for row in self._ids]
        raw = isinstance(self.texts[worst], bytes)
        others = [
            row
            for row, each in enumerate(lengths)
            if each != lengths[worst] and isinstance(self.texts[row], bytes) == raw
        ]
        chosen = min(others, key=lambda row: abs(lengths[row] - lengths[worst] / 2), default=worst)
        return [self.texts[worst], self.texts[chosen]]

    def layers(
        self, texts: Sequence[Row], lengths: list[int] | None, own_tokenizer: bool
    ) -> dict[str, np.ndarray]:
        """The outputs of the bundle's layers for a few sentences; see `ExpectedRows.layers`.

        These are the ids int32 [V, T] as "tokenizer", what `tagger_layers` returns, and "decoding": the probabilities
        of tags over all paths, float32 [V, W, K] where windows are decoded and [B, W, K] where whole sentences are.
        """
        tagger = self._tagger(lengths[-1] if lengths else None)
        words = tagger.split(texts).words
        tokenized = encode_words(tagger.preprocessor, words, lengths[-1] if lengths else None)
        longest = int(tokenized.windows.sequences.row_lengths().numpy().max())
        length = None if not lengths else next(each for each in lengths if each >= longest)
        features = tagger.preprocessor.pad(tokenized, (length, length and length - 2))
        del features[SEGMENT_IDS]
        model = self._bundle.model
        found = {TOKENIZER: features[TOKEN_IDS], **tagger_layers(model, features)}
        if own_tokenizer:
            del found[TOKENIZER]
            found[DECODING] = decode(model.potentials(found["scores"], features[WORD_MASK])).marginals
        else:
            sizes = [len(each) for each in words]
            mask = np.arange(max(sizes)) < np.array(sizes)[:, None]
            whole = np.zeros((*mask.shape, model.num_labels), np.float32)
            whole[mask] = tagger.tag(words).probabilities
            found[DECODING] = tf.constant(whole)
        return {
            name: np.asarray(value if value.dtype == tf.int32 else tf.cast(value, tf.float32))
            for name, value in found.items()
        }

    def _tagger(self, longest: int | None) -> Tagger:
        bundle, most = self._bundle, self._bundle.preprocessor.max_length
        if longest is None or longest >= most:
            return bundle.tagger
        return Tagger(bundle.model, bundle.preprocessor, longest)

    def _other_paths(self, expected: np.ndarray, found: np.ndarray, longest: int | None) -> int:
        """Sentences whose path has a lower score than the bundle's, with the bundle's scores."""
        if (expected == found).all():
            return 0
        scores = self._tagger(longest).scores(self._words)
        parts = self._bundle.model.potentials(np.zeros((1, 1, scores.shape[1]), np.float32), np.ones((1, 1)))
        transitions, start, end = (
            np.asarray(part, np.float64) for part in (parts.transitions, parts.start, parts.end)
        )
        count, begin = 0, 0
        for last in self._ends:
            words, begin = slice(begin, last), last
            right, other = (tags[words].astype(np.int64) for tags in (expected, found))
            if (right == other).all():
                continue
            if other.min() < 0 or other.max() >= len(start):
                count += 1
                continue
            right_score, other_score = (
                scores[words][np.arange(len(tags)), tags].sum(dtype=np.float64)
                + transitions[tags[:-1], tags[1:]].sum()
                + start[tags[0]]
                + end[tags[-1]]
                for tags in (right, other)
            )
            count += bool(other_score < right_score - TIE)
        return count

    def metric_of(self, predictions: np.ndarray) -> float | None:
        """See `ExpectedRows.metric_of`."""
        lengths = np.diff(self._ends[: self._rows.real], prepend=0)
        part, most = predictions[: lengths.sum()], len(self._bundle.labels) - 1
        tag_ids = np.clip(part[:, -1], 0, most).astype(np.int32)
        tagged = TaggedSentences(lengths, tag_ids, part[:, :-2], part[:, -2])
        return self._rows.metric(self._bundle.labels, tagged, {})


def as_array(tagged: TaggedSentences) -> np.ndarray:
    """Tags as a predictor returns them: of each word the marginals, the path probability and the tag id."""
    columns = (tagged.path_probabilities, tagged.tag_ids.astype(np.float32))
    return np.concatenate([tagged.probabilities, *(column[:, None] for column in columns)], axis=1)


def window_ids(
    tagger: Tagger, sentences: Sequence[Sequence[str]], length: int | None = None
) -> list[list[list[int]]]:
    """The token ids of the windows, of at most `length` tokens, of each sentence."""
    windows = encode_words(tagger.preprocessor, sentences, length).windows
    found: list[list[list[int]]] = [[] for _ in sentences]
    for ids, sentence in zip(windows.sequences.to_list(), windows.sentences.numpy(), strict=True):
        found[sentence].append(ids)
    return found
