"""Evaluates a bundle on a file: resolves its task and columns, reads the rows, predicts and scores them."""

import dataclasses
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from kmha.bundle.bundle import Bundle
from kmha.bundle.manifest import CLASSIFY, MASKED_LM, MATCH, MODEL_NAMES, TAG
from kmha.document_windows import window_shape_of
from kmha.errors import InputError
from training.cli.column_flags import ColumnOverrides
from training.data.masked_batches import MaskedSource
from training.data.packing import cut_pieces
from training.data.sentence_batches import read_sentences
from training.data.sources import file_source, read_examples
from training.data.types import Columns, Subset
from training.evaluation.abstention import evaluate_threshold, top_predictions
from training.evaluation.evaluator import Evaluator
from training.tasks.classify.task import ClassifyTask
from training.tasks.masked_lm.task import MaskedLmTask, kept_task
from training.tasks.match.rows import DEFAULT_PAIRS, DEFAULT_TRIPLETS, QUERY
from training.tasks.match.task import MatchTask
from training.tasks.protocol import Task
from training.tasks.tag.rows import tag_columns
from training.tasks.tag.task import TagTask

CHUNK_ROWS = 4096


def evaluate_file(
    bundle: Bundle, path: Path, overrides: ColumnOverrides, intervals: bool, folder: Path
) -> dict[str, Any]:
    """Scores of a bundle on the rows of a file.

    Args:
        bundle: A trained bundle.
        path: Labelled rows.
        overrides: Column names that differ from those in training.
        intervals: Whether to add bootstrap intervals.
        folder: Temporary folder for the rows.

    Raises:
        InputError: The file or a row of it cannot be used.
    """
    task, part, predictions = predict_file(bundle, path, overrides, folder)
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
    if isinstance(task, MaskedLmTask):
        tokens, _ = cut_pieces(part.examples, bundle.preprocessor, folder / "tokens")
        source = MaskedSource(tokens, part.rows, task.masking)
        return task, part, Evaluator.for_bundle(bundle, task, source).predict(source)
    return task, part, predict_probabilities(bundle, part)


def read_rows(bundle: Bundle, path: Path, overrides: ColumnOverrides, folder: Path) -> tuple[Task, Subset]:
    """The task of a bundle and all rows of a file; see `evaluate_file`."""
    source = file_source(path)
    task, columns = resolve_task(bundle, overrides, source.columns or ())
    examples = read_examples(source, task, columns, folder)
    return task, Subset(examples, np.arange(len(examples)))


def read_labelled_rows(
    bundle: Bundle, path: Path, overrides: ColumnOverrides, folder: Path
) -> tuple[Task, Subset]:
    """As `read_rows`; raises InputError also if the file of --data has no rows."""
    task, part = read_rows(bundle, path, overrides, folder)
    if not len(part.rows):
        raise InputError(f"--data {path}: expected at least one labelled row, got none")
    return task, part


def read_inputs(bundle: Bundle, part: Subset) -> list[Any]:
    """The rows as a bundle takes them: texts, pairs of texts, or the words of sentences."""
    if bundle.tagger is not None:
        return read_sentences(part.examples, part.rows)
    fields = range(len(part.examples.texts))
    columns = [part.examples.read_texts(part.rows, field) for field in fields]
    return columns[0] if len(columns) == 1 else list(zip(*columns, strict=True))


def predict_probabilities(bundle: Bundle, part: Subset) -> np.ndarray:
    """A bundle's probabilities for texts or pairs, read from disk in chunks: float32 [R, C]."""
    chunks = [part.rows[i : i + CHUNK_ROWS] for i in range(0, len(part.rows), CHUNK_ROWS)]
    parts = [dataclasses.replace(part, rows=chunk) for chunk in chunks] or [part]
    return np.concatenate([bundle.probabilities(read_inputs(bundle, each)) for each in parts])


def resolve_task(
    bundle: Bundle, overrides: ColumnOverrides, available: Sequence[str]
) -> tuple[Task, Columns]:
    """The task of a bundle, which reads and scores rows, and the columns that it reads.

    Args:
        bundle: A trained bundle.
        overrides: Column names that differ from those in training.
        available: The columns of the file.

    Raises:
        InputError: The task or the file does not have one of these columns.
    """
    trained = _trained_columns(bundle)
    if bundle.task != MATCH:
        for flag, name in (("--text-b-column", overrides.text_b), ("--query-column", overrides.query)):
            if name:
                raise InputError(f"{flag}: expected a run that matches pairs, got {MODEL_NAMES[bundle.task]}")
    if bundle.task == MASKED_LM:
        if overrides.label:
            raise InputError(f"--label-column: expected a run with labels, got {MODEL_NAMES[bundle.task]}")
        text = overrides.text or (trained.text if trained.text in available else "") or "text"
        return kept_task(bundle.details), Columns(text)
    if bundle.task == TAG:
        task = TagTask(
            scheme=bundle.model.scheme,
            given_scheme=bundle.details.get("given_scheme", bundle.model.scheme),
            split=bundle.preprocessor.split,
            best_by=bundle.details.get("metric", "auto"),
        )
        return task, _sentence_columns(trained, overrides, available)
    if bundle.task == CLASSIFY:
        columns = Columns(
            overrides.text or trained.text or "text",
            overrides.label or trained.label or "label",
            trained.separator,
        )
        return _classify_task(bundle), columns
    if overrides.query and overrides.query not in available:
        raise InputError(f"--query-column: expected a column {overrides.query}, got {', '.join(available)}")
    task = MatchTask(
        target=bundle.model.target, form=bundle.model.form, best_by=bundle.details.get("metric", "auto")
    )
    return task, _pair_columns(trained, overrides, available)


def _classify_task(bundle: Bundle) -> ClassifyTask:
    """The task of a classifier, with its windows, which limit the size of batches."""
    task, windows = ClassifyTask(multi_label=bundle.multi_label), window_shape_of(bundle.model)
    if windows is None:
        return task
    return dataclasses.replace(task, window=windows.length, window_overlap=windows.overlap)


def _trained_columns(bundle: Bundle) -> Columns:
    """The columns of the training rows, as far as the bundle has them."""
    saved = bundle.details.get("columns")
    names = {field.name for field in dataclasses.fields(Columns)}
    pairs = saved.items() if isinstance(saved, dict) else ()
    return Columns(
        **{"text": "", **{key: name for key, name in pairs if key in names and isinstance(name, str)}}
    )


def _pair_columns(trained: Columns, overrides: ColumnOverrides, available: Sequence[str]) -> Columns:
    """The overrides; else those of the training rows; else the default columns of pairs or triplets."""
    query = next((name for name in (overrides.query, trained.query, QUERY) if name and name in available), "")
    if not (overrides.text or overrides.text_b or overrides.label):
        for columns in (trained, DEFAULT_PAIRS, DEFAULT_TRIPLETS):
            if columns.text and set(columns.required) <= set(available):
                return dataclasses.replace(columns, query=query)
    # The reader of the file reports missing columns.
    defaults = trained if trained.text and not trained.wrong else DEFAULT_PAIRS
    return Columns(
        overrides.text or defaults.text,
        overrides.label or defaults.label,
        text_b=overrides.text_b or defaults.text_b,
        query=query,
    )


def _sentence_columns(trained: Columns, overrides: ColumnOverrides, available: Sequence[str]) -> Columns:
    """The overrides; else those of the training rows if the file has them; else the defaults."""
    defaults = (name if name in available else "" for name in (trained.text, trained.label))
    text, label = (
        one or other for one, other in zip((overrides.text, overrides.label), defaults, strict=True)
    )
    return tag_columns(available, Columns(text, label))
