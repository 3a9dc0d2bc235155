"""The bundle's predictions for texts or pairs, which exported classifiers and matchers must reproduce."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from export.graph.embedding import embedding_names, vectors_function
from export.predictors.protocol import Row
from export.verification.differences import Differences, differences
from export.verification.layer_outputs import TOKENIZER, layer_outputs, padded, sequences
from export.verification.rows import Rows
from kmha.bundle.bundle import Bundle
from kmha.bundle.manifest import MATCH
from kmha.features import SIDES
from kmha.inference.vectors import TextVectors

CHUNK_ROWS = 64


class ExpectedRows:
    """The bundle's predictions for rows of texts or pairs."""

    def __init__(self, bundle: Bundle, rows: Rows):
        self._bundle, self._rows = bundle, rows
        self._decision = {"thresholds": bundle.thresholds}
        self.texts: list[Row] = rows.texts
        self.predictions = bundle.probabilities(rows.texts)
        self._ids = sequences(bundle, rows.texts)
        self.metric = self._metric(self.predictions)

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

    def compare(
        self, expected: np.ndarray, found: np.ndarray, longest: int | None = None
    ) -> tuple[Differences, Any, Any]:
        """The differences, the metric of the exported model, and its change; None where it is not defined.

        Args:
            expected: What `truncated_predictions` returned.
            found: The exported model's predictions, of the same shape.
            longest: The argument of `truncated_predictions`.
        """
        bundle = self._bundle
        graded = bundle.task == MATCH and bundle.model.target == "graded"
        result = differences(expected, found, self._rows.real, bundle.thresholds, graded=graded)
        if result.not_finite:
            return result, None, None
        metric, before = self._metric(found), self._metric(expected)
        return result, metric, None if metric is None or before is None else metric - before

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
        """The outputs of the bundle's layers for a few rows, by name.

        Args:
            texts: What `probe` returned.
            lengths: The lengths in tokens that the exported model takes, ascending; None: any.
            own_tokenizer: Whether the model's ids are available, so that its tensors do not contain them.
        """
        ids = sequences(self._bundle, texts, lengths[-1] if lengths else None)
        longest = max(len(each) for row in ids for each in row)
        length = None if not lengths else next(each for each in lengths if each >= longest)
        found = layer_outputs(self._bundle, padded(self._bundle, ids, length))
        return {
            name: value for name, value in found.items() if not (own_tokenizer and name.startswith(TOKENIZER))
        }

    def _metric(self, probabilities: np.ndarray) -> float | None:
        return self._rows.metric(self._bundle.labels, probabilities[: self._rows.real], self._decision)
