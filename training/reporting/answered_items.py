"""Things with one label and one answer each: texts, pairs of texts, or the words of sentences."""

import dataclasses
from collections.abc import Sequence
from pathlib import PurePath

import numpy as np

from kmha.bundle.manifest import TAG
from training.data.sentence_batches import read_sentences
from training.data.types import Subset
from training.evaluation.model_calibration import tag_ids
from training.io.example_store import label_ids
from training.reporting.report_data import ReportData, ScoredSplit

LONGEST_TEXT = 400
WORDS_AROUND = 6
SHOWN = 15


@dataclasses.dataclass(frozen=True)
class Answered:
    """N things of some rows.

    Attributes:
        name: Where the rows come from, as of `ScoredSplit`.
        part: The rows.
        names: Of labels: those that the model knows, then others that the rows have.
        true: Places in `names`, int64 [N]; -1 for tags that the model does not know.
        given: Likewise, of the answers.
        probabilities: Of the labels that the model knows, float32 [N, C]; they add up to 1.
        rows: Which row of the part each is or stands in, int64 [N].
        words: Which word of its sentence each is, int64 [N]; None of whole rows.
    """

    name: str
    part: Subset
    names: list[str]
    true: np.ndarray
    given: np.ndarray
    probabilities: np.ndarray
    rows: np.ndarray
    words: np.ndarray | None = None

    @property
    def sure(self) -> np.ndarray:
        """The probability of each answer, float32 [N]."""
        return self.probabilities[np.arange(len(self.given)), self.given]

    @property
    def right(self) -> np.ndarray:
        """Whether each answer is right, bool [N]."""
        return self.given == self.true

    def label(self, place: int) -> str:
        """A label's name."""
        return self.names[place] if place >= 0 else "(a tag that no training row has)"

    def shown(self, places: Sequence[int]) -> list[tuple[str, tuple[str, ...]]]:
        """Where some of the things stand, and their texts.

        Args:
            places: Which of the N.

        Returns:
            Of each the file's name and line, and the text; of a pair both; of a word, in «», those around it too.
        """
        rows = self.part.rows[self.rows[list(places)]]
        found = []
        if self.words is not None:
            sentences = read_sentences(self.part.examples, rows)
            for row, place, words in zip(rows, places, sentences, strict=True):
                found.append((place_of(self.part, int(row)), (_around(words, int(self.words[place])),)))
            return found
        fields = (
            self.part.examples.read_texts(rows, field) for field in range(len(self.part.examples.texts))
        )
        for row, texts in zip(rows, zip(*fields, strict=True), strict=True):
            found.append((place_of(self.part, int(row)), tuple(cut(text) for text in texts)))
        return found


def place_of(part: Subset, row: int) -> str:
    """Where a row of a part's set stands: the file's name and the line."""
    return PurePath(part.examples.place(row)).name


def cut(text: str) -> str:
    """A text as it is shown."""
    return text if len(text) <= LONGEST_TEXT else f"{text[:LONGEST_TEXT]}…"


def answered(report_data: ReportData, asked: ScoredSplit) -> Answered | None:
    """The things in some rows that have one answer each; None of several labels, of numbers, and of hidden tokens."""
    if report_data.kind == TAG:
        return _words(report_data, asked)
    if report_data.kind not in ("classify", "match") or report_data.several_labels or report_data.graded:
        return None
    part, rows = asked.part, np.arange(len(asked.part.rows))
    if report_data.target == "binary":
        assert report_data.thresholds is not None
        score = np.asarray(asked.answers, np.float32)[:, 0]
        true = (report_data.task.targets(part, report_data.labels)[:, 0] > 0).astype(np.int64)
        given = (score >= np.float32(report_data.thresholds[0])).astype(np.int64)
        both = np.stack([1 - score, score], axis=1)
        return Answered(asked.name, part, ["0", "1"], true, given, both, rows)
    true, names = label_ids(part.examples, part.rows, report_data.labels)
    probabilities = np.asarray(asked.answers, np.float32)
    return Answered(asked.name, part, names, true, probabilities.argmax(axis=1), probabilities, rows)


def _words(report_data: ReportData, asked: ScoredSplit) -> Answered:
    true, counts = tag_ids(report_data.task, asked.part, report_data.labels)
    rows = np.repeat(np.arange(len(counts)), counts)
    words = np.arange(len(true)) - (np.cumsum(counts) - counts)[rows]
    tagged = asked.answers
    return Answered(
        asked.name,
        asked.part,
        list(report_data.labels),
        true.astype(np.int64),
        tagged.tag_ids.astype(np.int64),
        tagged.probabilities,
        rows,
        words,
    )


def _around(words: Sequence[str], place: int) -> str:
    gap = "" if all(len(word) == 1 for word in words) else " "
    first, end = max(0, place - WORDS_AROUND), min(len(words), place + WORDS_AROUND + 1)
    sides = gap.join(words[first:place]), gap.join(words[place + 1 : end])
    before, after = f"{'… ' if first else ''}{sides[0]}", f"{sides[1]}{' …' if end < len(words) else ''}"
    return cut(f"{before} «{words[place]}» {after}".strip())


def confident_errors(given: Answered, most: int = SHOWN) -> list[int]:
    """Of the wrong answers those with the highest probability, the surest first."""
    wrong = np.flatnonzero(~given.right)
    return wrong[np.argsort(-given.sure[wrong], kind="stable")][:most].tolist()


def uncertain(given: Answered, most: int = SHOWN) -> list[int]:
    """The answers between whose two most probable labels there is least, the least sure first."""
    if given.probabilities.shape[1] < 2:
        return []
    two = np.partition(given.probabilities, -2, axis=1)[:, -2:]
    return np.argsort(two[:, 1] - two[:, 0], kind="stable")[:most].tolist()
