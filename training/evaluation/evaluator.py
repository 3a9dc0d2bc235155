"""Evaluates a model on tokenized rows, and a bundle on a file: predictions, raw outputs and scores."""

import dataclasses
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import keras
import numpy as np

from kmha.bundle.bundle import Bundle
from kmha.bundle.manifest import CLASSIFY, MATCH, MODEL_NAMES, TAG
from kmha.errors import InputError, format_names
from training.data.inputs import Source
from training.data.masked_batches import MaskedSource, split_into_pieces
from training.data.sentence_batches import read_sentences
from training.data.sources import file_source, read_examples
from training.io.examples import ColumnOverrides, Columns, Subset, label_ids
from training.metrics.thresholds import evaluate_threshold
from training.runtime.cpu_sharding import sharded_predict_function
from training.tasks.create import task_from_bundle
from training.tasks.protocol import Task

BATCH_TOKENS = 8192
MAX_ROWS = 512

CHUNK_ROWS = 4096


@dataclasses.dataclass
class OutOfFold:
    """Outputs of other models for some rows, most often of models that were not trained on them.

    Attributes:
        source: The rows.
        logits: float32 [R, C], in the order of the source's rows.
        predictable: Whether the training rows of that model had the label of the row, bool [R].
        is_cross_validated: Whether the rows are all training rows, each predicted by a model trained on others.
    """

    source: Source
    logits: np.ndarray
    predictable: np.ndarray
    is_cross_validated: bool = False


@dataclasses.dataclass
class Evaluator:
    """Computes the outputs of a model batch by batch on one device, and scores them."""

    model: keras.Model
    task: Task
    labels: list[str]
    padded_lengths: list[Any]  # of the training rows; longer rows get additional lengths
    # Outputs to use for the rows that the model was trained on, in place of its own.
    out_of_fold: OutOfFold | None = None
    # The linear path as it was fitted without validation rows, and as it is in the model.
    linear_paths: tuple[Any, Any] | None = None

    def __post_init__(self):
        self._read = self.task.postprocessor(self.model)
        self._logits = sharded_predict_function(self.model)

    @classmethod
    def for_bundle(
        cls, bundle: Bundle, task: Task, source: Source, labels: list[str] | None = None
    ) -> "Evaluator":
        """The evaluator of a bundle's model for the rows of a source, with the bundle's labels by default."""
        lengths = source.buckets([])
        return cls(bundle.model, task, bundle.labels if labels is None else labels, lengths)

    def with_outputs(self, source: Source, logits: np.ndarray) -> "Evaluator":
        """An evaluator that uses logits float32 [R, C] for the rows of a source in place of the model's."""
        return dataclasses.replace(
            self, out_of_fold=OutOfFold(source, logits, np.ones(len(logits), bool)), linear_paths=None
        )

    def predict(self, source: Source) -> Any:
        """The task's predictions in the order of the source's rows."""
        return self._read(source, self._outputs(source))

    def raw_outputs(self, source: Source) -> np.ndarray:
        """The model's outputs: logits of rows float32 [R, C], or a tagger's scores of all words float32 [N, K]."""
        return self._gather(source, self._outputs(source))

    def raw_and_predictions(self, source: Source) -> tuple[np.ndarray, Any]:
        """The results of `raw_outputs` and `predict` from one pass of the model."""
        outputs = list(self._outputs(source))
        return self._gather(source, outputs), self._read(source, outputs)

    def _gather(self, source: Source, outputs: Iterable[tuple[Any, Any]]) -> np.ndarray:
        return self.task.gather_outputs(len(self.labels), source, outputs)

    def _outputs(self, source: Source) -> Iterator[tuple[Any, Any]]:
        """The plan and the model's outputs of each batch."""
        plans = source.plans(self.padded_lengths, BATCH_TOKENS, MAX_ROWS, rng=None)
        if self.out_of_fold is not None and source is self.out_of_fold.source:
            yield from ((plan, self.out_of_fold.logits[plan.rows]) for plan in plans)
            return
        for plan, batch in zip(plans, source.dataset(plans), strict=True):
            yield plan, self._logits(batch["features"])

    def check_metric_is_defined(self, part: Subset) -> None:
        """Raises InputError if the task's metric is undefined for the validation rows, before training."""
        self._scores(part, self.task.dummy_predictions(self.model, part))

    def validate(self, source: Source, part: Subset) -> dict[str, float]:
        """Loss and the task's metric, for the end of an epoch."""
        scores = self._scores(part, self.predict(source))
        return {name: float(scores[name]) for name in ("loss", self.task.metric)}

    def _scores(self, part: Subset, predictions: Any) -> dict[str, Any]:
        decision = self.task.tune_thresholds(part, self.labels, predictions)
        scores: dict[str, Any] = self.task.scores(part, self.labels, predictions, decision)
        if scores[self.task.metric] is None:
            raise InputError(
                f"{part.examples.origin}: expected validation rows with a defined {self.task.metric},"
                f" got {len(part.rows):,} without"
            )
        return scores


def evaluate_file(
    bundle: Bundle, path: Path, overrides: ColumnOverrides, intervals: bool, folder: Path
) -> dict[str, Any]:
    """Scores of a bundle on the labeled rows of a file, with column names that differ from those in training.

    The folder is a temporary one for the rows. Raises InputError for a file or row that cannot be used.
    """
    task, part, predictions = predict_file(bundle, path, overrides, folder)
    names = part.examples.label_names
    has_names = bundle.task in (CLASSIFY, TAG) or (bundle.task == MATCH and bundle.model.target == "classes")
    if has_names and not set(names) & set(bundle.labels):
        raise InputError(
            f"--data {path}: expected labels of the run, {format_names(bundle.labels)}, got only {format_names(names)}"
        )
    decision = {"thresholds": bundle.thresholds}
    scores = task.scores(part, bundle.labels, predictions, decision, intervals)
    if bundle.abstain_below is not None:
        confidence_and_correct = top_predictions(task, part, bundle.labels, predictions, bundle.thresholds)
        scores["abstention"] = evaluate_threshold(bundle.abstain_below, *confidence_and_correct).values()
    return scores


def predict_file(
    bundle: Bundle, path: Path, overrides: ColumnOverrides, folder: Path
) -> tuple[Task, Subset, Any]:
    """The task of a bundle, the rows of a file, and the bundle's predictions; see `evaluate_file`."""
    task, part = read_rows(bundle, path, overrides, folder)
    if bundle.tagger is not None:
        return task, part, bundle.tagger.tag(read_inputs(bundle, part))
    if task.masking is not None:
        tokens, _ = split_into_pieces(part.examples, bundle.preprocessor, folder / "tokens")
        source = MaskedSource(tokens, part.rows, task.masking)
        return task, part, Evaluator.for_bundle(bundle, task, source).predict(source)
    return task, part, predict_probabilities(bundle, part)


def read_rows(bundle: Bundle, path: Path, overrides: ColumnOverrides, folder: Path) -> tuple[Task, Subset]:
    """The task of a bundle and all rows of a file; see `evaluate_file`."""
    source = file_source(path, overrides.form)
    task, columns = resolve_task(bundle, overrides, source.columns or ())
    examples = read_examples(source, task, columns, folder)
    return task, Subset(examples, np.arange(len(examples)))


def read_labeled_rows(
    bundle: Bundle, path: Path, overrides: ColumnOverrides, folder: Path
) -> tuple[Task, Subset]:
    """As `read_rows`; raises InputError also if the file of --data has no rows."""
    task, part = read_rows(bundle, path, overrides, folder)
    if not len(part.rows):
        raise InputError(f"--data {path}: expected at least one labeled row, got none")
    return task, part


def read_inputs(bundle: Bundle, part: Subset) -> list[Any]:
    """The rows as a bundle takes them: texts, pairs of texts, or the words of sentences."""
    if bundle.tagger is not None:
        return read_sentences(part.examples, part.rows)
    columns = [part.texts(field) for field in range(len(part.examples.texts))]
    return columns[0] if len(columns) == 1 else list(zip(*columns, strict=True))


def predict_probabilities(bundle: Bundle, part: Subset) -> np.ndarray:
    """A bundle's probabilities for texts or pairs, read from disk in chunks: float32 [R, C]."""
    chunks = [part.rows[i : i + CHUNK_ROWS] for i in range(0, len(part.rows), CHUNK_ROWS)]
    parts = [dataclasses.replace(part, rows=chunk) for chunk in chunks] or [part]
    return np.concatenate([bundle.probabilities(read_inputs(bundle, each)) for each in parts])


def resolve_task(
    bundle: Bundle, overrides: ColumnOverrides, available: Sequence[str]
) -> tuple[Task, Columns]:
    """The task of a bundle, and the columns that it reads; InputError if the task or the file lacks an override."""
    task = task_from_bundle(bundle)
    if task.traits.num_texts == 1:
        for flag, name in (("--text-b-column", overrides.text_b), ("--query-column", overrides.query)):
            if name:
                raise InputError(f"{flag}: expected a run that matches pairs, got {MODEL_NAMES[bundle.task]}")
    if task.masking is not None and overrides.label:
        raise InputError(f"--label-column: expected a run with labels, got {MODEL_NAMES[bundle.task]}")
    return task, task.columns_of_file(_trained_columns(bundle), overrides, available)


def _trained_columns(bundle: Bundle) -> Columns:
    """The columns of the training rows, as far as the bundle has them."""
    return Columns(**{"text": "", **Columns.saved_names(bundle.details)})


def top_predictions(
    task: Any,
    part: Subset,
    labels: Sequence[str],
    probabilities: np.ndarray,
    thresholds: Sequence[float] | None,
) -> tuple[np.ndarray, np.ndarray]:
    """The probability of the single prediction for each row, float32 [R], and whether it is correct, bool [R].

    It is the label of the highest probability, float32 [R, C], or with thresholds whether a pair matches, [R, 1].
    """
    if thresholds is None:
        ids, _ = label_ids(part.examples, part.rows, labels)
        return probabilities.max(axis=1), probabilities.argmax(axis=1) == ids
    score = np.asarray(probabilities, np.float32)[:, 0]
    is_match = score >= np.float32(thresholds[0])
    correct = is_match == (task.targets(part, labels)[:, 0] > 0)
    return np.where(is_match, score, np.float32(1) - score), correct
