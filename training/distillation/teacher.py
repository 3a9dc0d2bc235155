"""The teacher of a distillation: its outputs for many rows, cached on disk, and its scores."""

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
from training.evaluation.evaluator import Evaluator
from training.io.examples import Subset
from training.runtime.cpu_sharding import sharded_predict_function

logger = logging.getLogger("kmha")

BUCKETS = 16
BATCH_TOKENS, MOST_ROWS = 8192, 512


@dataclasses.dataclass(frozen=True)
class Teacher:
    """A trained model whose outputs are put in the order of the student's labels."""

    bundle: Bundle
    order: np.ndarray  # the index of each label of the student among the teacher's labels, integers [C]
    sha256: str  # of its bundle.json, which has the digests of its files

    @classmethod
    def load(cls, run: Path, labels: list[str]) -> "Teacher":
        """Loads a run folder; raises InputError if it cannot be used."""
        try:
            bundle = Bundle.load(run)
        except InputError as error:
            raise InputError(f"--distill.teacher {run}: {error}") from error
        order = np.array([bundle.labels.index(label) for label in labels], np.int64)
        return cls(bundle, order, sha256(run / MANIFEST))

    def potentials(self, emissions, word_mask) -> Potentials:
        """For a tagger, the CRF potentials of emissions float32 [B, W, K] in the student's order."""
        found = self.bundle.model.potentials(emissions, word_mask)
        start, end = (ops.take(each, self.order, axis=-1) for each in (found.start, found.end))
        pairs = ops.take(ops.take(found.transitions, self.order, axis=0), self.order, axis=1)
        return found._replace(transitions=pairs, start=start, end=end)

    def scores(self, task: Any, part: Subset, labels: list[str], folder: Path) -> dict[str, Any]:
        """The scores of the teacher's predictions."""
        windows = window_shape_of(self.bundle.model)
        inputs = cut_parts(self.bundle.preprocessor, {"rows": part}, folder, windows=windows)
        source = inputs.evaluated("rows", task.targets(part, labels))
        evaluator = Evaluator.for_bundle(self.bundle, task, source, labels)
        predictions, thresholds = evaluator.predict(source), self.bundle.thresholds
        if isinstance(predictions, TaggedSentences):
            places = np.argsort(self.order).astype(np.int32)
            predictions = predictions._replace(
                tag_ids=places[predictions.tag_ids], probabilities=predictions.probabilities[:, self.order]
            )
        else:
            predictions = predictions[:, self.order]
        decision = {} if thresholds is None else {"thresholds": [thresholds[place] for place in self.order]}
        return task.scores(part, labels, predictions, decision, intervals=True)


def cached_predictions(
    folder: Path, key: dict[str, Any], shape: tuple[int, int], write: Callable[[Path], None]
) -> np.ndarray:
    """A memory-mapped float32 array of predictions from a cache folder, which is written if the folder lacks it."""
    folder.mkdir(parents=True, exist_ok=True)
    name = hashlib.sha256(json.dumps(key, sort_keys=True).encode("utf-8")).hexdigest()
    path = folder / f"{name[:32]}.npy"
    found = _opened(path, shape)
    if found is not None:
        logger.info(f"teacher: predictions for {shape[0]:,} rows found in {path}")
        return found
    unfinished = path.with_name(f"{path.name}.{os.getpid()}.partial")
    try:
        write(unfinished)
        unfinished.replace(path)
    finally:
        unfinished.unlink(missing_ok=True)
    found = _opened(path, shape)
    if found is None:
        raise ValueError(f"{path}: expected an array {shape}, got another one")
    return found


def _opened(path: Path, shape: tuple[int, int]) -> np.ndarray | None:
    """The array in a file; None if it is missing, truncated or of another shape."""
    try:
        table = np.load(path, mmap_mode="r", allow_pickle=False)
    except (OSError, ValueError, EOFError):
        return None
    return table if table.shape == shape and table.dtype == np.float32 else None


def write_predictions(model: Any, source: Source, path: Path) -> None:
    """Writes the outputs of a model for each row of a source, or each word of sentences: float32 [R, C]."""
    logits = sharded_predict_function(model)
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
        f"teacher: {len(source.rows):,} rows predicted in {seconds:.1f} s, {total / seconds:,.0f} tokens/s"
    )


def count_predictions(source: Source) -> int:
    """Number of predictions for a source: one per word of sentences, else one per row."""
    return int(source.counts.sum()) if isinstance(source, SentenceSource) else len(source.rows)
