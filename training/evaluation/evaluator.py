"""A model's probabilities over a part of the data, and the scores they get."""

import dataclasses
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import keras
import numpy as np

from kmha.bundle.bundle import Bundle
from kmha.bundle.files import task_of
from kmha.bundle.manifest import CLASSIFY, MASKED_LM, MATCH, MODEL_NAMES, TAG
from kmha.document_windows import window_shape_of
from kmha.errors import InputError
from training.cli.column_flags import ColumnOverrides
from training.data.inputs import Source
from training.data.masked_batches import MaskedSource
from training.data.packing import cut_pieces
from training.data.sentence_batches import read_sentences
from training.data.sources import file_source, read_examples
from training.data.types import Columns, Subset
from training.evaluation.model_calibration import top_predictions
from training.io.example_store import ExampleSet
from training.runtime.cpu_sharding import run_sharded
from training.runtime.traced import trace_once
from training.tasks.classify.task import ClassifyTask
from training.tasks.masked_lm.task import MaskedLmTask, kept_task
from training.tasks.match.rows import DEFAULT_PAIRS, DEFAULT_TRIPLETS, QUERY
from training.tasks.match.task import MatchTask
from training.tasks.outputs import row_outputs
from training.tasks.protocol import Task
from training.tasks.tag.outputs import word_scores
from training.tasks.tag.rows import tag_columns
from training.tasks.tag.task import TagTask

BATCH_TOKENS = 8192
MOST_ROWS = 512
MOST_BUCKETS = 8
CHUNK_ROWS = 4096


@dataclasses.dataclass
class Evaluator:
    """Computes answers batch by batch, on one device.

    Args:
        model: A built model.
        task: Scores them.
        labels: Names in the order of the model's outputs.
        padded_lengths: What the training rows are padded to; longer rows get lengths of their own.
    """

    model: keras.Model
    task: Task
    labels: list[str]
    padded_lengths: list[Any]

    def __post_init__(self):
        self._read = self.task.reader(self.model)
        self._logits = trace_once(
            lambda features: run_sharded(lambda part: self.model(part, training=False), features)
        )

    def predict(self, source: Source) -> Any:
        """What the task makes of the model's outputs, in the order of the source's rows."""
        return self._read(source, self._outputs(source))

    def raw_outputs(self, source: Source) -> np.ndarray:
        """What comes before probabilities: of rows logits float32 [R, C], of a tagger's words scores float32 [N, K]."""
        return self._gathered(source, self._outputs(source))

    def raw_and_predictions(self, source: Source) -> tuple[np.ndarray, Any]:
        """What `raw` and `answers` give, by asking the model once."""
        outputs = list(self._outputs(source))
        return self._gathered(source, outputs), self._read(source, outputs)

    def _gathered(self, source: Source, outputs: Iterable[tuple[Any, Any]]) -> np.ndarray:
        gather: Any = word_scores if task_of(self.model) == TAG else row_outputs
        return gather(len(self.labels), source, outputs)

    def _outputs(self, source: Source) -> Iterator[tuple[Any, Any]]:
        """Of each batch its plan and what the model gives."""
        plans = source.plans(self.padded_lengths, BATCH_TOKENS, MOST_ROWS, rng=None)
        for plan, batch in zip(plans, source.dataset(plans), strict=True):
            yield plan, self._logits(batch["features"])

    def check(self, part: Subset) -> None:
        """Refuses validation rows that the task's metric is undefined for, before anything is trained."""
        self._scores(part, self.task.guesses(self.model, part))

    def validate(self, source: Source, part: Subset) -> dict[str, float]:
        """Loss and the task's metric, for the end of an epoch."""
        scores = self._scores(part, self.predict(source))
        return {name: float(scores[name]) for name in ("loss", self.task.metric)}

    def _scores(self, part: Subset, answers: Any) -> dict[str, Any]:
        decision = self.task.decision(part, self.labels, answers)
        scores: dict[str, Any] = self.task.scores(part, self.labels, answers, decision)
        if scores[self.task.metric] is None:
            raise InputError(
                f"{part.examples.origin}: expected validation rows that {self.task.metric} is defined for,"
                f" got {len(part.rows):,} that it is not"
            )
        return scores


def resolve_task(bundle: Bundle, given: ColumnOverrides, available: Sequence[str]) -> tuple[Task, Columns]:
    """The task of a bundle, to read and score rows with, and the columns it reads.

    Args:
        bundle: A trained bundle.
        given: Names that are others than in training.
        available: The columns of the file.

    Raises:
        InputError: A column was named that the task or the file does not have.
    """
    trained = _trained_columns(bundle)
    if bundle.task != MATCH:
        for flag, name in (("--text-b-column", given.text_b), ("--query-column", given.query)):
            if name:
                raise InputError(
                    f"{flag}: expected a run that matches pairs beside it, got {MODEL_NAMES[bundle.task]}"
                )
    if bundle.task == MASKED_LM:
        if given.label:
            raise InputError(
                f"--label-column: expected a run that learnt labels, got {MODEL_NAMES[bundle.task]}"
            )
        return kept_task(bundle.details), Columns(given.text or _known(trained.text, available) or "text")
    if bundle.task == TAG:
        task = TagTask(
            scheme=bundle.model.scheme,
            given_scheme=bundle.details.get("given_scheme", bundle.model.scheme),
            split=bundle.preprocessor.split,
            best_by=bundle.details.get("metric", "auto"),
        )
        return task, _columns_of_sentences(trained, given, available)
    if bundle.task == CLASSIFY:
        columns = Columns(
            given.text or trained.text or "text", given.label or trained.label or "label", trained.separator
        )
        return _classify_task(bundle), columns
    if given.query and given.query not in available:
        raise InputError(f"--query-column: expected a column {given.query}, got {', '.join(available)}")
    known = {"target": bundle.model.target, "form": bundle.model.form}
    task = MatchTask(**known, best_by=bundle.details.get("metric", "auto"))
    return task, _columns_of_pairs(trained, given, available)


def _classify_task(bundle: Bundle) -> ClassifyTask:
    """The task of a classifier, with its windows, which say how large batches may be."""
    task, windows = ClassifyTask(multi_label=bundle.multi_label), window_shape_of(bundle.model)
    if windows is None:
        return task
    return dataclasses.replace(task, window=windows.length, window_overlap=windows.overlap)


def _trained_columns(bundle: Bundle) -> Columns:
    """The columns of the training rows, as far as a bundle tells them."""
    kept = bundle.details.get("columns")
    names = {field.name for field in dataclasses.fields(Columns)}
    pairs = kept.items() if isinstance(kept, dict) else ()
    return Columns(
        **{"text": "", **{key: name for key, name in pairs if key in names and isinstance(name, str)}}
    )


def _columns_of_pairs(trained: Columns, given: ColumnOverrides, available: Sequence[str]) -> Columns:
    """Those given; else as in training; else, where the file has other ones, pairs or triplets by the usual names."""
    query = next((name for name in (given.query, trained.query, QUERY) if name and name in available), "")
    asked = bool(given.text or given.text_b or given.label)
    for columns in (trained, DEFAULT_PAIRS, DEFAULT_TRIPLETS):
        if not asked and columns.text and set(columns.required) <= set(available):
            return dataclasses.replace(columns, query=query)
    # What the file lacks is told when it is read.
    defaults = trained if trained.text and not trained.wrong else DEFAULT_PAIRS
    return Columns(
        given.text or defaults.text,
        given.label or defaults.label,
        text_b=given.text_b or defaults.text_b,
        query=query,
    )


def _columns_of_sentences(trained: Columns, given: ColumnOverrides, available: Sequence[str]) -> Columns:
    """Those given; else as in training where the file has them; else the usual ones."""
    defaults = (name if name in available else "" for name in (trained.text, trained.label))
    text, label = (one or other for one, other in zip((given.text, given.label), defaults, strict=True))
    return tag_columns(available, Columns(text, label))


def _known(name: str, available: Sequence[str]) -> str:
    return name if name in available else ""


def read_inputs(examples: ExampleSet, rows: np.ndarray) -> list[Any]:
    """What a bundle answers of some rows: texts, or pairs of texts."""
    columns = [examples.read_texts(rows, field) for field in range(len(examples.texts))]
    return columns[0] if len(columns) == 1 else list(zip(*columns, strict=True))


def evaluate_file(
    bundle: Bundle, path: Path, given: ColumnOverrides, intervals: bool, folder: Path
) -> dict[str, Any]:
    """Scores of a bundle on a file.

    Args:
        bundle: A trained bundle.
        path: Labelled rows.
        given: Names of columns that are others than in training.
        intervals: Whether to add bootstrap intervals.
        folder: Where the rows are kept meanwhile.

    Raises:
        InputError: The file or a row of it cannot be used.
    """
    task, part, answers = predict_file(bundle, path, given, folder)
    decision = {"thresholds": bundle.thresholds}
    scores = task.scores(part, bundle.labels, answers, decision, intervals)
    if bundle.abstain_below is not None:
        from training.evaluation.abstention import evaluate_threshold

        sure_and_right = top_predictions(task, part, bundle.labels, answers, bundle.thresholds)
        scores["abstention"] = evaluate_threshold(bundle.abstain_below, *sure_and_right).values()
    return scores


def predict_file(
    bundle: Bundle, path: Path, given: ColumnOverrides, folder: Path
) -> tuple[Task, Subset, Any]:
    """The task of a bundle, the rows of a file, and what the bundle answers to them; see `bundle_scores`."""
    task, part = read_rows(bundle, path, given, folder)
    examples = part.examples
    if bundle.tagger is not None:
        return task, part, bundle.tagger.tag(read_sentences(examples, part.rows))
    if isinstance(task, MaskedLmTask):
        tokens, _ = cut_pieces(examples, bundle.preprocessor, folder / "tokens")
        pieces = MaskedSource(tokens, part.rows, task.masking)
        evaluator = Evaluator(bundle.model, task, bundle.labels, pieces.buckets([], MOST_BUCKETS))
        return task, part, evaluator.predict(pieces)
    return task, part, predict_examples(bundle, part)


def read_rows(bundle: Bundle, path: Path, given: ColumnOverrides, folder: Path) -> tuple[Task, Subset]:
    """The task of a bundle, and the rows of a file; see `bundle_scores`."""
    source = file_source(path)
    task, columns = resolve_task(bundle, given, source.columns or ())
    examples = read_examples(source, task, columns, folder)
    return task, Subset(examples, np.arange(len(examples)))


def read_labelled_rows(
    bundle: Bundle, path: Path, given: ColumnOverrides, folder: Path
) -> tuple[Task, Subset]:
    """As `read_rows`; raises InputError also where the file of --data has no row."""
    task, part = read_rows(bundle, path, given, folder)
    if not len(part.rows):
        raise InputError(f"--data {path}: expected a labelled row or more, got none")
    return task, part


def predict_examples(bundle: Bundle, part: Subset) -> np.ndarray:
    """What a bundle answers to texts or pairs, of which not all are in memory at once: float32 [R, C]."""
    chunks = [part.rows[i : i + CHUNK_ROWS] for i in range(0, len(part.rows), CHUNK_ROWS)]
    # No rows make no chunk.
    found = [bundle.probabilities(read_inputs(part.examples, chunk)) for chunk in chunks or [part.rows]]
    return np.concatenate(found)
