"""Rows that may have any number of labels, each of which is given or not by a threshold of its own."""

import dataclasses

import numpy as np

from training.data.types import Subset
from training.io.example_store import label_matrix
from training.reporting.answered_items import cut, place_of
from training.reporting.blocks import score
from training.reporting.report_data import ReportData, ScoredSplit


@dataclasses.dataclass(frozen=True)
class SeveralLabels:
    """R rows.

    Attributes:
        part: The rows.
        names: L labels: those that the model knows, then others that these rows have, sorted.
        true: Whether a row has a label, bool [R, L].
        given: Whether the model gives it, bool [R, L].
        probabilities: Of the labels that the model knows, float64 [R, C].
        thresholds: Of these labels, float64 [C].
    """

    part: Subset
    names: list[str]
    true: np.ndarray
    given: np.ndarray
    probabilities: np.ndarray
    thresholds: np.ndarray

    def confident_errors(self, most: int) -> list[tuple[int, int]]:
        """Row and label of wrong decisions, those that the probability speaks most clearly for first."""
        known = self.probabilities.shape[1]
        given = self.given[:, :known]
        sure = np.where(given, self.probabilities, 1.0 - self.probabilities)
        return self._first(np.where(self.true[:, :known] != given, -sure, np.inf), most)

    def uncertain(self, most: int) -> list[tuple[int, int]]:
        """Row and label of decisions whose probability is nearest to the threshold."""
        return self._first(np.abs(self.probabilities - self.thresholds), most)

    def _first(self, order: np.ndarray, most: int) -> list[tuple[int, int]]:
        flat = order.ravel()
        places = np.argsort(flat, kind="stable")[:most]
        columns = order.shape[1]
        return [(int(place) // columns, int(place) % columns) for place in places if np.isfinite(flat[place])]

    def decision(self, row: int, column: int) -> tuple[str, ...]:
        """Text, label, whether it is wanted and given, its probability and threshold, and the row's place."""
        chances = (score(float(each)) for each in (self.probabilities[row, column], self.thresholds[column]))
        said = ("yes" if each[row, column] else "no" for each in (self.true, self.given))
        return (self._text(row), self.names[column], *said, *chances, self._place(row))

    def named(self, row: int) -> tuple[str, ...]:
        """Text, labels and labels given, and the row's place."""
        sides = (
            ", ".join(name for name, there in zip(self.names, each[row], strict=True) if there) or "–"
            for each in (self.true, self.given)
        )
        return (self._text(row), *sides, self._place(row))

    def _text(self, row: int) -> str:
        return cut(self.part.examples.read_texts(self.part.rows[row : row + 1])[0])

    def _place(self, row: int) -> str:
        return place_of(self.part, int(self.part.rows[row]))


def several_labels(report_data: ReportData, asked: ScoredSplit) -> SeveralLabels:
    """The rows that were asked, of a model of several labels."""
    part = asked.part
    ids, _ = part.examples.local_labels(part.rows)
    seen = {part.examples.label_names[place] for place in np.unique(ids)}
    others = sorted(seen.difference(report_data.labels))
    names = [*report_data.labels, *others]
    true = label_matrix(part.examples, part.rows, names)[0] != 0
    thresholds = np.asarray(report_data.thresholds, np.float32)
    given = np.asarray(asked.answers, np.float32) >= thresholds
    given = np.pad(given, ((0, 0), (0, len(others))))
    probabilities = np.asarray(asked.answers, np.float64)
    return SeveralLabels(part, names, true, given, probabilities, thresholds.astype(np.float64))
