"""Distillation: a task with the predictions of a teacher, cached on disk, as additional targets."""

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
import tensorflow as tf
from keras import ops
from tqdm import tqdm

from kmha.bundle.bundle import Bundle
from kmha.bundle.manifest import CLASSIFY, MANIFEST, MATCH, TAG, sha256
from kmha.document_windows import window_shape_of
from kmha.errors import InputError
from kmha.inference.tagger import TaggedSentences, scatter_scores
from kmha.layers.crf import Potentials
from kmha.models.encoder import traced
from training.config.config import DistillSection, FitConfig
from training.data.inputs import Inputs, Source, tokenize_parts
from training.data.load import Data
from training.data.sentence_batches import SentenceSource, SentenceTokens
from training.distillation.hidden_states import StudentWithProjections, check_same_features, check_same_passes
from training.evaluation.evaluator import Evaluator
from training.io.examples import Subset, TrainingSet
from training.losses import distillation as distill_losses
from training.metrics.bootstrap import ResampledScores
from training.metrics.paired import describe_comparison, with_comparison
from training.runtime.cpu_sharding import sharded_predict_function
from training.tasks.protocol import Task

logger = logging.getLogger("kmha")

BUCKETS = 16
BATCH_TOKENS, MOST_ROWS = 8192, 512
NO_QUERY = -1


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

    def scores(
        self, task: Any, part: Subset, labels: list[str], folder: Path
    ) -> tuple[dict[str, Any], tuple[ResampledScores, ...]]:
        """The scores of the teacher's predictions, with what a comparison needs."""
        windows = window_shape_of(self.bundle.model)
        inputs = tokenize_parts(self.bundle.preprocessor, {"rows": part}, folder, windows=windows)
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
        resampled = task.resampled(part, labels, predictions, decision)
        return task.scores(part, labels, predictions, decision, intervals=True), resampled


def cached_predictions(
    folder: Path, key: dict[str, Any], shape: tuple[int, int], write: Callable[[Path], None]
) -> np.ndarray:
    """A memory-mapped float32 array of predictions from a cache folder, which is written if the folder lacks it."""
    folder.mkdir(parents=True, exist_ok=True)
    name = hashlib.sha256(json.dumps(key, sort_keys=True, allow_nan=False).encode("utf-8")).hexdigest()
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
    shape = count_predictions(source), model.num_labels
    table = np.lib.format.open_memmap(path, "w+", np.dtype(np.float32), shape)
    started, total = time.monotonic(), int(source.lengths.sum())
    with tqdm(
        total=total,
        desc="teacher",
        unit="token",
        unit_scale=True,
        file=sys.stderr,
        dynamic_ncols=True,
        disable=not (sys.stderr.isatty() and logger.isEnabledFor(logging.INFO)),
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
    speed = f"{seconds:.1f} s, {total / seconds:,.0f} tokens/s"
    logger.info(f"teacher: {len(source.rows):,} rows predicted in {speed}")


def count_predictions(source: Source) -> int:
    """Number of predictions for a source: one per word of sentences, else one per row."""
    return int(source.counts.sum()) if isinstance(source, SentenceSource) else len(source.rows)


class DistillationTargets:
    """An array [R', L + 1 + C] whose rows are computed on access.

    Its columns are the targets of the task, 1 for rows with labels, and the outputs of the teacher.

    Args:
        labels: Targets of the task [R, …] for the first R rows, which have labels.
        outputs: The teacher's outputs for all rows, float32 [R', C], possibly a file.
        order: The column of `outputs` of each label, integers [C].
        filler: The targets of rows without labels.
    """

    def __init__(self, labels: np.ndarray, outputs: np.ndarray, order: np.ndarray, filler: Any = 0):
        self._labels, self._outputs, self._order, self._filler = labels, outputs, order, filler
        self._is_flat = labels.ndim == 1
        self._width = 1 if self._is_flat else labels.shape[1]
        self.dtype = np.dtype(np.float32)  # represents integers up to 2**24 exactly
        self.shape = (len(outputs), self._width + 1 + outputs.shape[1])

    def __len__(self) -> int:
        """Number of rows."""
        return self.shape[0]

    def __getitem__(self, rows) -> np.ndarray:
        """Rows by their numbers, integers [B], or by a slice."""
        rows = np.arange(*rows.indices(len(self))) if isinstance(rows, slice) else np.asarray(rows)
        result = np.empty((len(rows), self.shape[1]), np.float32)
        labeled = rows < len(self._labels)
        result[:, : self._width] = self._filler
        own = self._labels[rows[labeled]]
        result[labeled, : self._width] = own[:, None] if self._is_flat else own
        result[:, self._width] = labeled
        result[:, self._width + 1 :] = self._outputs[rows][:, self._order]
        return result

    def parts(self, targets) -> tuple[Any, Any, Any]:
        """Splits a batch [B, …, L + 1 + C] into targets of the task, 0 or 1 [B, …], and teacher outputs [B, …, C]."""
        width = self._width
        labels = targets[..., 0] if self._is_flat else targets[..., :width]
        return (ops.cast(labels, self._labels.dtype.name), targets[..., width], targets[..., width + 1 :])


class DistillationTask:
    """A task, with its name, and the outputs of a teacher as additional targets; other attributes are the task's.

    `training_set` has all rows with `DistillationTargets`; `labeled` has the batches of the rows with labels.
    """

    def __init__(
        self,
        task: Task,
        name: str,
        teacher: Teacher,
        distill: DistillSection,
        training_set: TrainingSet,
        labeled: Any,
    ):
        self._task, self._name, self.teacher, self._distill = task, name, teacher, distill
        self._training_set, self._labeled = training_set, labeled
        self._targets: Any = training_set.targets

    def __getattr__(self, name: str) -> Any:
        if name == "_task":
            raise AttributeError(name)
        return getattr(self._task, name)

    def training_set(self, part: Subset, labels: list[str], seed: int) -> TrainingSet:
        """All rows with outputs of the teacher."""
        return self._training_set

    def initialize(self, model: Any, source: Any) -> None:
        """Initializes the model as the task does, from the rows with labels."""
        self._task.initialize(model, self._labeled)

    def trained(self, model: Any) -> Any:
        """The object that the training step trains: the model, with projections where hidden states are compared.

        Raises InputError if the layers of the teacher cannot be compared with those of the model.
        """
        distill = self._distill
        if not (distill.hidden_states or distill.attention) or distill.teacher is None:
            return model
        check_same_passes(_layer_flag(distill), self.teacher.bundle.model, model)
        teacher = self.teacher.bundle.model
        if tf.distribute.has_strategy():
            # Weights that every replica reads have to be created under the strategy.
            teacher = Bundle.load(distill.teacher).model
        return StudentWithProjections(model, teacher, distill.hidden_states, distill.attention)

    def forward(self, trained: Any, features: Any) -> Any:
        """The input of the task's loss, and the distance of hidden states and attention, float32 [B] or 0."""
        if not isinstance(trained, StudentWithProjections):
            return self._task.forward(trained, features), 0.0
        with traced(weights=bool(self._distill.attention)) as traces:
            outputs = self._task.forward(trained.model, features)
        return outputs, trained.distances(traces, features)

    def row_losses(self, targets: Any, outputs_and_distance: Any) -> Any:
        """Loss of each row, float32 [B]: of the teacher's outputs, of the labels if any, and of the distance."""
        outputs, distance = outputs_and_distance
        labels, labeled, teacher_outputs = self._targets.parts(targets)
        loss = self._distill.weight * self._teacher_losses(teacher_outputs, outputs) + distance
        if self._distill.weight == 1:
            return loss
        # All words of a sentence have tags, or none.
        labeled = labeled[:, 0] if len(labeled.shape) == 2 else labeled
        own = ops.where(labeled > 0, self._task.row_losses(labels, outputs), 0.0)
        return loss + (1 - self._distill.weight) * own

    def compare_with_teacher(
        self,
        scores: dict[str, Any],
        resampled: tuple[ResampledScores, ...],
        part: Subset,
        labels: list[str],
        folder: Path,
    ) -> dict[str, Any]:
        """The teacher's scores; logs a comparison with the student's scores."""
        teacher_scores = with_comparison(
            scores, resampled, *self.teacher.scores(self._task, part, labels, folder), "teacher"
        )
        for sentence in describe_comparison(scores, teacher_scores, self._task.metric, "teacher"):
            logger.info(sentence)
        return teacher_scores

    def _teacher_losses(self, teacher_outputs: Any, outputs: Any) -> Any:
        temperature = self._distill.temperature
        if self._name == TAG:
            expected = self.teacher.potentials(teacher_outputs, outputs.word_mask)
            return distill_losses.chain_divergence(expected, outputs, temperature)
        losses = {
            "softmax": distill_losses.softmax_divergence,
            "sigmoid": distill_losses.sigmoid_divergence,
            "none": distill_losses.squared_distance,
        }
        return losses[self._activation()](teacher_outputs, outputs, temperature)

    def _activation(self) -> str:
        """The function that converts outputs to probabilities."""
        if self._name == CLASSIFY:
            return "sigmoid" if self._task.traits.is_multi_label else "softmax"
        return {"binary": "sigmoid", "classes": "softmax", "graded": "none"}[self._task.target]  # pyright: ignore


def trainable_part(task: Any, model: Any) -> Any:
    """The object that the training step trains, made in the scope of the strategy: see `DistillationTask.trained`."""
    return task.trained(model) if isinstance(task, DistillationTask) else model


def _layer_flag(distill: DistillSection) -> str:
    return f"--distill.{'hidden-states' if distill.hidden_states else 'attention'}"


def add_teacher_predictions(
    config: FitConfig, data: Data, inputs: Inputs, folder: Path
) -> tuple[Data, Inputs]:
    """Computes the teacher's outputs for all training rows and texts without labels, if there is a teacher.

    Returns the data with a `DistillationTask`, and the inputs with the texts added to the training rows. Raises
    InputError if the teacher cannot be used.
    """
    run, distill = config.distill.teacher, config.distill
    if run is None:
        return data, inputs
    teacher = Teacher.load(run, data.labels)
    if distill.hidden_states or distill.attention:
        check_same_features(_layer_flag(distill), teacher.bundle, inputs.preprocessor)
    own = data.task.training_set(data.train, data.labels, config.train.seed)
    labeled = inputs.source("train", own)
    inputs, rows = inputs.with_texts(own.rows)
    more = len(rows) - len(own.rows)
    plain = _without_targets(inputs, rows)
    shape = count_predictions(inputs.source("train", plain)), len(data.labels)
    key = {"teacher": teacher.sha256, "labels": teacher.bundle.labels, "rows": _rows_hash(data, rows)}

    def write(path: Path) -> None:
        parts = {name: part for name, part in data.parts.items() if name in ("train", "texts")}
        (folder / "teacher").mkdir()
        windows = window_shape_of(teacher.bundle.model)
        tokens = tokenize_parts(teacher.bundle.preprocessor, parts, folder / "teacher", windows=windows)
        write_predictions(teacher.bundle.model, tokens.with_texts(own.rows)[0].source("train", plain), path)

    outputs = cached_predictions(distill.cache or folder / "predictions", key, shape, write)
    filler = np.array([0, NO_QUERY], np.float32) if config.task == MATCH else 0
    lists = own.lists
    if lists is not None:
        lists = np.concatenate([lists, lists.max(initial=0) + 1 + np.arange(more)])
    targets: Any = DistillationTargets(own.targets, outputs, teacher.order, filler)
    weights = np.concatenate([own.weights, np.ones(more, np.float32)])
    training_set = TrainingSet(rows, targets, weights, lists)
    task: Any = DistillationTask(data.task, config.task, teacher, distill, training_set, labeled)
    return dataclasses.replace(data, task=task), inputs


def _without_targets(inputs: Inputs, rows: np.ndarray) -> TrainingSet:
    """A training set for prediction only."""
    tokens, shape = inputs.tokens["train"], rows.shape
    if isinstance(tokens, SentenceTokens):
        shape = (int(tokens.counts.sum()),)  # one for each word
    return TrainingSet(rows, np.broadcast_to(np.float32(0), shape), np.ones(len(rows), np.float32))


def _rows_hash(data: Data, rows: np.ndarray) -> str:
    """A digest of the texts of the rows and their order."""
    parts = (data.train,) if data.texts is None else (data.train, data.texts)
    digests = np.concatenate([part.examples.digests for part in parts])
    return hashlib.sha256(digests[rows].tobytes()).hexdigest()
