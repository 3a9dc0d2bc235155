"""A trained model as a teacher: asked in the order of its student's labels, judged beside it."""

import dataclasses
import hashlib
import json
import logging
import os
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from keras import ops
from tqdm import tqdm

from kmha.bundle.bundle import Bundle
from kmha.bundle.manifest import MANIFEST, sha256
from kmha.document_windows import window_shape_of
from kmha.errors import InputError
from kmha.inference.tagger import TaggedSentences, scatter_scores
from kmha.layers.crf import Potentials
from training.data.inputs import Source, cut_parts
from training.data.sentence_batches import SentenceSource
from training.data.types import Subset
from training.evaluation.evaluator import Evaluator
from training.runtime.cpu_sharding import run_sharded
from training.runtime.traced import trace_once

logger = logging.getLogger("kmha")

EVALUATED_LENGTHS = 8


@dataclasses.dataclass(frozen=True)
class Teacher:
    """A trained model, asked in the order of its student's labels.

    Args:
        bundle: The model.
        order: Of each label of the student its place among the teacher's, integers [C].
        sha256: Of its bundle.json, which holds the hashes of its files.
    """

    bundle: Bundle
    order: np.ndarray
    sha256: str

    @classmethod
    def load(cls, run: Path, labels: list[str]) -> "Teacher":
        """Reads a run folder; raises InputError where it cannot be used."""
        try:
            bundle = Bundle.load(run)
        except InputError as error:
            raise InputError(f"--distill.teacher {run}: {error}") from error
        order = np.array([bundle.labels.index(label) for label in labels], np.int64)
        return cls(bundle, order, sha256(run / MANIFEST))

    def potentials(self, emissions, word_mask) -> Potentials:
        """Of a tagger, the potentials of emissions float32 [B, W, K] in the student's order."""
        found = self.bundle.model.potentials(emissions, word_mask)
        start, end = (ops.take(each, self.order, axis=-1) for each in (found.start, found.end))
        pairs = ops.take(ops.take(found.transitions, self.order, axis=0), self.order, axis=1)
        return found._replace(transitions=pairs, start=start, end=end)

    def scores(self, task: Any, part: Subset, labels: list[str], folder: Path) -> dict[str, Any]:
        """What `task.scores` says of the teacher's own answers to the rows of a part.

        Args:
            task: The student's.
            part: The rows.
            labels: The student's.
            folder: Where token ids are kept meanwhile.
        """
        windows = window_shape_of(self.bundle.model)
        inputs = cut_parts(self.bundle.preprocessor, {"judged": part}, folder, windows=windows)
        source = inputs.evaluated("judged", task.targets(part, labels))
        evaluator = Evaluator(self.bundle.model, task, labels, source.buckets([], EVALUATED_LENGTHS))
        answers, thresholds = evaluator.predict(source), self.bundle.thresholds
        if isinstance(answers, TaggedSentences):
            places = np.argsort(self.order).astype(np.int32)
            answers = answers._replace(
                tag_ids=places[answers.tag_ids], probabilities=answers.probabilities[:, self.order]
            )
        else:
            answers = answers[:, self.order]
        decision = {} if thresholds is None else {"thresholds": [thresholds[place] for place in self.order]}
        return task.scores(part, labels, answers, decision, intervals=True)


BUCKETS = 16
BATCH_TOKENS, MOST_ROWS = 8192, 512


def cached_predictions(
    folder: Path, facts: dict[str, Any], shape: tuple[int, int], write: Callable[[Path], None]
) -> np.ndarray:
    """A table of answers on disk: the one in a folder, or where that has none of these facts, a new one.

    Args:
        folder: Made where it does not exist. The name of a table follows from its facts.
        facts: All that the answers depend on, JSON values.
        shape: Of the table, which is float32.
        write: Writes the table to a path.

    Returns:
        float32 `shape`, mapped from the file: read only.
    """
    folder.mkdir(parents=True, exist_ok=True)
    name = hashlib.sha256(json.dumps(facts, sort_keys=True).encode("utf-8")).hexdigest()
    path = folder / f"{name[:32]}.npy"
    found = _opened(path, shape)
    if found is not None:
        logger.info(f"teacher: answers to {shape[0]:,} rows found in {path}")
        return found
    beside = path.with_name(f"{path.name}.{os.getpid()}.partial")
    try:
        write(beside)
        beside.replace(path)
    finally:
        beside.unlink(missing_ok=True)
    found = _opened(path, shape)
    if found is None:
        raise ValueError(f"{path}: expected a table {shape}, something else was written")
    return found


def _opened(path: Path, shape: tuple[int, int]) -> np.ndarray | None:
    """The table of a file; None where it is missing, cut short or of another shape."""
    try:
        table = np.load(path, mmap_mode="r", allow_pickle=False)
    except (OSError, ValueError, EOFError):
        return None
    return table if table.shape == shape and table.dtype == np.float32 else None


def write_predictions(model: Any, source: Source, path: Path) -> None:
    """Writes what a model gives of each row of a source, of sentences of each word: float32 [R, C].

    Rows of similar length go together. A bar shows how far it is where there is a terminal; a line tells the speed.

    Args:
        model: A built model.
        source: The rows.
        path: A file in NumPy's format, written a batch at a time.
    """
    logits = trace_once(lambda features: run_sharded(lambda part: model(part, training=False), features))
    plans = source.plans(source.buckets([], BUCKETS), BATCH_TOKENS, MOST_ROWS, rng=None)
    table = np.lib.format.open_memmap(
        path, "w+", np.dtype(np.float32), (count_predictions(source), model.num_labels)
    )
    started, total = time.monotonic(), int(source.lengths.sum())
    with tqdm(
        total=total,
        desc="teacher",
        unit="token",
        unit_scale=True,
        file=sys.stderr,
        dynamic_ncols=True,
        disable=not sys.stderr.isatty(),
    ) as bar:
        for plan, batch in zip(plans, source.dataset(plans), strict=True):
            found = logits(batch["features"]).numpy()
            if isinstance(source, SentenceSource):
                scatter_scores(table, found, source.begins[plan.rows], source.counts[plan.rows])
            else:
                table[plan.rows] = found[: len(plan.rows)]
            bar.update(int(source.lengths[plan.rows].sum()))
    table.flush()
    seconds = time.monotonic() - started
    logger.info(
        f"teacher: {len(source.rows):,} rows answered in {seconds:.1f} s ({total / seconds:,.0f} tokens/s)"
    )


def count_predictions(source: Source) -> int:
    """How many answers there are to a source: of sentences one a word, else one a row."""
    return int(source.counts.sum()) if isinstance(source, SentenceSource) else len(source.rows)
