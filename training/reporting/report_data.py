"""The data of a report: a run, and its predictions for rows that the model was not trained on."""

import dataclasses
from collections.abc import Sequence
from pathlib import Path, PurePath
from typing import Any

import numpy as np

from kmha.bundle.bundle import parts_of
from kmha.bundle.manifest import MATCH, TAG
from kmha.calibration import Calibration
from training.data.sentence_batches import read_sentences
from training.evaluation.model_calibration import tag_ids
from training.io.examples import Subset, label_ids, label_matrix
from training.reporting.blocks import format_score
from training.tasks.protocol import Task

MAX_TEXT_LENGTH = 400
CONTEXT_WORDS = 6
SHOWN = 15


@dataclasses.dataclass(frozen=True)
class ScoredSplit:
    """Rows that the model was not trained on, with its predictions."""

    name: str  # "validation", "test", or the name of a file
    part: Subset
    # As the task computes them from the model's outputs: probabilities float32 [R, C],
    # `kmha.inference.tagger.TaggedSentences`, or `training.metrics.masked_lm.MaskedPredictions`.
    predictions: Any


@dataclasses.dataclass(frozen=True)
class ReportData:
    """The data of a report."""

    name: str
    kind: str  # the task: "classify", "match", "tag" or "masked-lm"
    task: Task
    target: str  # of a matcher: "binary", "classes" or "graded"; else empty
    labels: Sequence[str]
    thresholds: Sequence[float] | None
    calibration: Calibration
    metric: str  # by which the weights were selected
    splits: Sequence[ScoredSplit]  # the last one is the evaluated one
    scores: dict[str, Any]
    metrics: dict[str, Any]  # content of metrics.json; empty without the file
    details: dict[str, Any]  # other entries of bundle.json: hashes of the data, columns, initial weights
    versions: dict[str, str]
    lengths: dict[str, np.ndarray]  # tokens of each text as the model reads it, integers, by split
    max_tokens: int  # that the model reads at once
    train: Subset | None
    command: str  # that trains the run again; empty if it is not known
    files: dict[str, int]  # bytes of each file of the run
    mask_texts: bool = False  # whether digits and e-mail addresses in texts are hidden

    @classmethod
    def of_bundle(cls, bundle: Any, manifest: dict[str, Any], folder: Path, **values: Any) -> "ReportData":
        """Reads the attributes that the bundle in a run folder defines; `values` are the others."""
        found = {
            "kind": bundle.task,
            "target": bundle.model.target if bundle.task == MATCH else "",
            "labels": bundle.labels,
            "thresholds": bundle.thresholds,
            "calibration": Calibration.of(bundle.details),
            "details": bundle.details,
            "versions": manifest["versions"],
            "max_tokens": max(part.max_length for part in parts_of(bundle.preprocessor).values()),
            "files": {
                name: (folder / name).stat().st_size
                for name in manifest["files"]
                if (folder / name).is_file()
            },
        }
        return cls(**found | values)

    @property
    def evaluated(self) -> ScoredSplit:
        """The split that the scores belong to."""
        return self.splits[-1]

    @property
    def is_multi_label(self) -> bool:
        """Whether a row may have any number of labels."""
        return self.kind == "classify" and self.task.traits.is_multi_label

    @property
    def is_graded(self) -> bool:
        """Whether the model predicts a number."""
        return self.target == "graded"

    def scores_of(self, name: str) -> dict[str, Any]:
        """Scores of the evaluated rows by "baseline", "linear_path" or "teacher"; empty if there are none."""
        return self.metrics.get(name, {}) if self.metrics.get("judged_on") == self.evaluated.name else {}


def row_location(part: Subset, row: int) -> str:
    """File name and line of a row of a part's set."""
    return PurePath(part.examples.place(row)).name


def truncate(text: str) -> str:
    """A text as a table shows it, at most 400 characters."""
    return text if len(text) <= MAX_TEXT_LENGTH else f"{text[:MAX_TEXT_LENGTH]}…"


@dataclasses.dataclass(frozen=True)
class SingleLabelItems:
    """N items of one label each: texts, pairs of texts, or the words of sentences."""

    part: Subset
    names: list[str]  # labels: those of the model, then others that the rows have
    true: np.ndarray  # indices in `names`, int64 [N]; -1 for tags that the model does not have
    predicted: np.ndarray  # likewise
    probabilities: np.ndarray  # of the model's labels, float32 [N, C]; they sum to 1
    rows: np.ndarray  # row of the part that each item is, or is in, int64 [N]
    words: np.ndarray | None = None  # index of each word in its sentence, int64 [N]; None for whole rows

    @property
    def confidence(self) -> np.ndarray:
        """The probability of each predicted label, float32 [N]."""
        return self.probabilities[np.arange(len(self.predicted)), self.predicted]

    @property
    def correct(self) -> np.ndarray:
        """Whether each predicted label is the true one, bool [N]."""
        return self.predicted == self.true

    def label(self, index: int) -> str:
        """The name of a label."""
        return self.names[index] if index >= 0 else "(a tag that no training row has)"

    def locate(self, items: Sequence[int]) -> list[tuple[str, tuple[str, ...]]]:
        """File name and line, and the texts of some items: two of a pair; a word is marked by «» in its context."""
        rows = self.part.rows[self.rows[list(items)]]
        locations = [row_location(self.part, int(row)) for row in rows]
        examples = self.part.examples
        if self.words is not None:
            sentences = zip(items, read_sentences(examples, rows), strict=True)
            texts = [(_in_context(words, int(self.words[item])),) for item, words in sentences]
        else:
            fields = (map(truncate, examples.read_texts(rows, field)) for field in range(len(examples.texts)))
            texts = list(zip(*fields, strict=True))
        return list(zip(locations, texts, strict=True))

    def confident_errors(self, most: int = SHOWN) -> list[int]:
        """The wrong predictions with the highest probabilities, most confident first."""
        wrong = np.flatnonzero(~self.correct)
        return wrong[np.argsort(-self.confidence[wrong], kind="stable")][:most].tolist()

    def uncertain(self, most: int = SHOWN) -> list[int]:
        """The items with the smallest margin between the two most probable labels, least confident first."""
        if self.probabilities.shape[1] < 2:
            return []
        two = np.partition(self.probabilities, -2, axis=1)[:, -2:]
        return np.argsort(two[:, 1] - two[:, 0], kind="stable")[:most].tolist()


def single_label_items(report_data: ReportData, split: ScoredSplit) -> SingleLabelItems | None:
    """The items of a split; None for several labels a row, graded targets, and masked tokens."""
    if report_data.kind == TAG:
        return _words(report_data, split)
    if report_data.kind not in ("classify", "match") or report_data.is_multi_label or report_data.is_graded:
        return None
    part, rows = split.part, np.arange(len(split.part.rows))
    if report_data.target == "binary":
        assert report_data.thresholds is not None
        score = np.asarray(split.predictions, np.float32)[:, 0]
        true = (report_data.task.targets(part, report_data.labels)[:, 0] > 0).astype(np.int64)
        predicted = (score >= np.float32(report_data.thresholds[0])).astype(np.int64)
        both = np.stack([1 - score, score], axis=1)
        return SingleLabelItems(part, ["0", "1"], true, predicted, both, rows)
    true, names = label_ids(part.examples, part.rows, report_data.labels)
    probabilities = np.asarray(split.predictions, np.float32)
    return SingleLabelItems(part, names, true, probabilities.argmax(axis=1), probabilities, rows)


def _words(report_data: ReportData, split: ScoredSplit) -> SingleLabelItems:
    true, counts = tag_ids(report_data.task, split.part, report_data.labels)
    rows = np.repeat(np.arange(len(counts)), counts)
    words = np.arange(len(true)) - (np.cumsum(counts) - counts)[rows]
    names, tagged = list(report_data.labels), split.predictions
    true, predicted = true.astype(np.int64), tagged.tag_ids.astype(np.int64)
    return SingleLabelItems(split.part, names, true, predicted, tagged.probabilities, rows, words)


def _in_context(words: Sequence[str], index: int) -> str:
    gap = "" if all(len(word) == 1 for word in words) else " "
    first, end = max(0, index - CONTEXT_WORDS), min(len(words), index + CONTEXT_WORDS + 1)
    before = f"{'… ' if first else ''}{gap.join(words[first:index])}"
    after = f"{gap.join(words[index + 1 : end])}{' …' if end < len(words) else ''}"
    return truncate(f"{before} «{words[index]}» {after}".strip())


@dataclasses.dataclass(frozen=True)
class MultiLabelRows:
    """R rows of any number of labels, each of which the model decides by a threshold."""

    part: Subset
    names: list[str]  # L labels: those of the model, then others that these rows have, sorted
    true: np.ndarray  # whether a row has a label, bool [R, L]
    predicted: np.ndarray  # whether the model predicts it, bool [R, L]
    probabilities: np.ndarray  # of the model's labels, float64 [R, C]
    thresholds: np.ndarray  # of these labels, float64 [C]

    def confident_errors(self, most: int = SHOWN) -> list[tuple[int, int]]:
        """Row and label of wrong decisions, most confident first."""
        known = self.probabilities.shape[1]
        predicted = self.predicted[:, :known]
        confidence = np.where(predicted, self.probabilities, 1.0 - self.probabilities)
        return self._smallest(np.where(self.true[:, :known] != predicted, -confidence, np.inf), most)

    def uncertain(self, most: int = SHOWN) -> list[tuple[int, int]]:
        """Row and label of the decisions whose probability is closest to the threshold."""
        return self._smallest(np.abs(self.probabilities - self.thresholds), most)

    def _smallest(self, values: np.ndarray, most: int) -> list[tuple[int, int]]:
        flat, columns = values.ravel(), values.shape[1]
        places = np.argsort(flat, kind="stable")[:most]
        return [(int(place) // columns, int(place) % columns) for place in places if np.isfinite(flat[place])]

    def decision(self, row: int, column: int) -> tuple[str, ...]:
        """Cells: text, label, whether it is true and predicted, its probability and threshold, location."""
        numbers = self.probabilities[row, column], self.thresholds[column]
        flags = ("yes" if each[row, column] else "no" for each in (self.true, self.predicted))
        text, location = self._locate(row)
        return (text, self.names[column], *flags, *(format_score(float(each)) for each in numbers), location)

    def labels_of(self, row: int) -> tuple[str, ...]:
        """Cells: text, true labels, predicted labels, location."""
        sides = (
            ", ".join(name for name, has in zip(self.names, each[row], strict=True) if has) or "–"
            for each in (self.true, self.predicted)
        )
        text, location = self._locate(row)
        return (text, *sides, location)

    def _locate(self, row: int) -> tuple[str, str]:
        rows = self.part.rows[row : row + 1]
        return truncate(self.part.examples.read_texts(rows)[0]), row_location(self.part, int(rows[0]))


def multi_label_rows(report_data: ReportData, split: ScoredSplit) -> MultiLabelRows:
    """The rows of a split, for a model of several labels."""
    part = split.part
    ids, _ = part.examples.local_labels(part.rows)
    row_labels = {part.examples.label_names[index] for index in np.unique(ids)}
    others = sorted(row_labels.difference(report_data.labels))
    names = [*report_data.labels, *others]
    true = label_matrix(part.examples, part.rows, names)[0] != 0
    thresholds = np.asarray(report_data.thresholds, np.float32)
    predicted = np.asarray(split.predictions, np.float32) >= thresholds
    predicted = np.pad(predicted, ((0, 0), (0, len(others))))
    probabilities = np.asarray(split.predictions, np.float64)
    return MultiLabelRows(part, names, true, predicted, probabilities, thresholds.astype(np.float64))
