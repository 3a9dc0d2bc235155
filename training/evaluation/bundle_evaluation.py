"""Evaluates a bundle on a file: resolves its task and columns, reads the rows, predicts and scores them."""

import dataclasses
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from kmha.bundle.bundle import Bundle
from kmha.bundle.manifest import MODEL_NAMES
from kmha.errors import InputError
from training.data.masked_batches import MaskedSource, cut_pieces
from training.data.sentence_batches import read_sentences
from training.data.sources import file_source, read_examples
from training.evaluation.abstention import evaluate_threshold, top_predictions
from training.evaluation.evaluator import Evaluator
from training.io.examples import ColumnOverrides, Columns, Subset
from training.tasks.create import task_from_bundle
from training.tasks.protocol import Task

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
    if task.masking is not None:
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
    saved = bundle.details.get("columns")
    names = {field.name for field in dataclasses.fields(Columns)}
    pairs = saved.items() if isinstance(saved, dict) else ()
    return Columns(
        **{"text": "", **{key: name for key, name in pairs if key in names and isinstance(name, str)}}
    )
