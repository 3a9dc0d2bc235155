"""Epochs: batches through the training step, validation, the best weights, and a way to stop and go on."""

import contextlib
import dataclasses
import math
import signal
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from kmha.errors import InputError
from training.cli.exceptions import Interrupted, TrainingDiverged
from training.config.config import BATCH_ROWS, TrainSection
from training.data.inputs import Source
from training.data.worker_shards import shares
from training.distributed.coordinator import SINGLE_WORKER, Coordinator
from training.engine.callbacks import expose_optimizer
from training.engine.ema import WeightAverage
from training.engine.train_step import TrainingStep
from training.runs.checkpoint_folder import check_disk_space
from training.runs.checkpoint_io import read_checkpoint, state_size, write_checkpoint


class RunState(tf.Module):
    """Every variable that a run must find again: of the model, optimizer, average and best weights."""

    def __init__(self, model: keras.Model, step: TrainingStep, average: WeightAverage | None):
        super().__init__(name="run_state")
        self.model_variables = [variable.value for variable in model.variables]
        self.optimizer = step.optimizer
        self.loss_scale = step.loss_scale
        self.average = average
        self.weights = [variable.value for variable in model.trainable_variables]
        # Of a taught model more than its own weights.
        self.step_weights = step.variables_
        self.best = [tf.Variable(weight, trainable=False) for weight in self.weights]

    def keep_best(self) -> None:
        """Copies the weights to the best ones."""
        for best, weight in zip(self.best, self.weights, strict=True):
            best.assign(weight)

    def take_best(self) -> None:
        """Copies the best weights to the model."""
        for best, weight in zip(self.best, self.weights, strict=True):
            weight.assign(best)


@dataclasses.dataclass
class TrainingProgress:
    """How far a run has come. JSON values only."""

    epoch: int = 0  # the one to go on with
    batch: int = 0  # the batch of that epoch to go on with
    batches_done: int = 0  # of the whole run
    best_metric: float | None = None
    best_epoch: int = -1
    ended: bool = False  # a callback stopped the training
    loss_sum: float = 0.0  # of the epoch so far, as the weight
    weight_sum: float = 0.0
    history: list[dict] = dataclasses.field(default_factory=list)

    @classmethod
    def read(cls, progress: dict[str, Any]) -> "TrainingProgress":
        """The standing that a checkpoint tells of; raises InputError where another version of this code wrote it."""
        try:
            return cls(**progress)
        except TypeError as error:
            raise InputError(
                f"--resume: expected a checkpoint of this version, got one of another ({error})"
            ) from None

    def mean_loss(self) -> float:
        """Mean loss of the epoch so far, in nats."""
        return self.loss_sum / max(self.weight_sum, 1e-12)


def epoch_plans(source: Source, lengths: Sequence[Any], settings: TrainSection, epoch: int) -> list[Any]:
    """The batches of an epoch; a function of seed and epoch only, so that a resumed run finds them again."""
    rng = np.random.default_rng([settings.seed, epoch])
    return source.plans(lengths, settings.batch_tokens, settings.batch_rows or BATCH_ROWS, rng)


@dataclasses.dataclass
class Loop:
    """Trains until the epochs are over, the validation metric stops rising, or somebody stops it.

    Args:
        model: A built model.
        step: Its training step.
        source: The training batches.
        lengths: The padded lengths to compute.
        validate: Returns {"loss", metric, …} of the model as it is.
        metric: The score that picks the best weights; higher is better.
        settings: How long and how much at once.
        average: The moving average that is judged in place of the last weights, or None.
        checkpoint: Folder of the checkpoint.
        callbacks: More Keras callbacks.
        judge_first: Whether the weights that training begins with stay where none are better; their epoch is -1.
        crew: The workers that train together.
        source_of: Gives the batches of each epoch, where they are not those of `source`: of large data, whose parts
            count as epochs here.
    """

    model: keras.Model
    step: TrainingStep
    source: Source
    lengths: Sequence[Any]
    validate: Callable[[], dict[str, float]]
    metric: str
    settings: TrainSection
    average: WeightAverage | None
    checkpoint: Path
    callbacks: Sequence[keras.callbacks.Callback] = ()
    evaluate_first: bool = False
    coordinator: Coordinator = SINGLE_WORKER
    source_of: Callable[[int], Source] | None = None

    def run(self, resume: bool = False) -> TrainingProgress:
        """Trains and leaves the best weights in the model.

        A checkpoint of the trained model stays on disk, so that a kill while it is judged loses nothing.

        Raises:
            Interrupted: After SIGINT or SIGTERM, with a checkpoint on disk.
            TrainingDiverged: The loss, a gradient or the validation metric was not finite.
            InputError: Nothing to resume, it belongs to another model, or the disk has too little room.
            CheckpointWriteError: A checkpoint could not be written; those before it stand.
        """
        state = RunState(self.model, self.step, self.average)
        check_disk_space(self.checkpoint, state_size(state), self.settings.checkpoints_kept)
        training_progress = TrainingProgress()
        if resume:
            training_progress = TrainingProgress.read(read_checkpoint(self.checkpoint, state))
        elif self.evaluate_first:
            training_progress.best_metric = self.validate()[self.metric]
        callbacks = keras.callbacks.CallbackList(
            list(self.callbacks),
            model=self.model,
            epochs=self.settings.epochs,
            done_batches=training_progress.batches_done,
            done_epochs=training_progress.epoch,
        )
        self.model.stop_training = False
        self._saved, self._saved_steps = time.monotonic(), self.step.optimizer.steps_done
        with _noted_signals() as signals, expose_optimizer(self.model, self.step.optimizer):
            callbacks.on_train_begin()
            try:
                while not self._is_over(training_progress):
                    self._epoch(training_progress, state, callbacks, signals)
            finally:
                callbacks.on_train_end()
        # One that came after the last checkpoint, which is that of the trained model: judging may wait.
        self._stop_if(self.coordinator.any_signaled(signals, now=True))
        state.take_best()
        return training_progress

    def _is_over(self, training_progress: TrainingProgress) -> bool:
        fruitless = training_progress.epoch - 1 - training_progress.best_epoch
        return (
            training_progress.ended
            or training_progress.epoch >= self.settings.epochs
            or fruitless >= max(1, self.settings.patience)
        )

    def _epoch(
        self, training_progress: TrainingProgress, state: RunState, callbacks, signals: list[int]
    ) -> None:
        source = self.source if self.source_of is None else self.source_of(training_progress.epoch)
        row_lengths = source.lengths
        plans = epoch_plans(source, self.lengths, self.settings, training_progress.epoch)
        callbacks.on_epoch_begin(training_progress.epoch)
        started, waited, tokens = time.monotonic(), 0.0, 0
        worked = time.process_time()
        own = shares(source, plans[training_progress.batch :], self.coordinator.index, self.coordinator.count)
        batches = iter(source.dataset(own))
        for plan in plans[training_progress.batch :]:
            asked = time.monotonic()
            batch = next(batches)
            waited += time.monotonic() - asked
            callbacks.on_train_batch_begin(training_progress.batch)
            self._batch(training_progress, batch, last=training_progress.batch + 1 == len(plans))
            tokens += int(row_lengths[plan.rows].sum())
            callbacks.on_train_batch_end(training_progress.batch - 1, {"loss": training_progress.mean_loss()})
            self._perhaps_save(training_progress, state, signals)
            if self.model.stop_training:
                self.step.flush()
                break
        seconds, cpu_seconds = time.monotonic() - started, time.process_time() - worked
        with self._averaged():
            logs = {"loss": training_progress.mean_loss(), **self._validated(training_progress, state)}
            logs["learning_rate"] = float(self.step.optimizer.learning_rate)
            logs["tokens_per_second"] = tokens / seconds
            # Of all threads; on a busy machine it tells more of the model than the clock does.
            logs["tokens_per_cpu_second"] = tokens / cpu_seconds
            logs["input_wait_share"] = waited / seconds
            training_progress.history.append({"epoch": training_progress.epoch, **logs})
            # Within the average, so that what a callback saves is what was judged.
            callbacks.on_epoch_end(training_progress.epoch, logs)
        training_progress.epoch, training_progress.batch = training_progress.epoch + 1, 0
        training_progress.loss_sum = training_progress.weight_sum = 0.0
        training_progress.ended = bool(self.model.stop_training)
        self._perhaps_save(training_progress, state, signals, due=self._is_over(training_progress))

    def _batch(self, training_progress: TrainingProgress, batch, last: bool) -> None:
        steps_before = self.step.optimizer.steps_done
        sums = self.step(batch)
        if last:
            self.step.flush()
        loss, weight = float(sums["loss"]), float(sums["weight"])
        training_progress.batch += 1
        training_progress.batches_done += 1
        training_progress.loss_sum += loss
        training_progress.weight_sum += weight
        if not math.isfinite(loss):
            raise TrainingDiverged(f"loss is {loss} at batch {training_progress.batches_done}")
        if self.step.pending:
            return
        steps = self.step.optimizer.steps_done
        # Only float16 may skip a step: its loss scale was too large.
        if steps == steps_before and weight > 0 and self.step.loss_scale is None:
            raise TrainingDiverged(f"the gradient is not finite at batch {training_progress.batches_done}")
        if steps > steps_before and self.average is not None:
            self.average.after_step(steps)

    @contextlib.contextmanager
    def _averaged(self):
        """Inside, the model has the averaged weights, if there is an average."""
        if self.average is None:
            yield
            return
        self.average.swap()
        try:
            yield
        finally:
            self.average.swap()

    def _validated(self, training_progress: TrainingProgress, state: RunState) -> dict[str, float]:
        """Validation scores of the model's weights, which are kept if they are the best so far."""
        scores = self.validate()
        metric = scores[self.metric]
        if not math.isfinite(metric):
            raise TrainingDiverged(f"{self.metric} is {metric} after epoch {training_progress.epoch + 1}")
        if training_progress.best_metric is None or metric > training_progress.best_metric:
            training_progress.best_metric, training_progress.best_epoch = metric, training_progress.epoch
            state.keep_best()
        return {f"val_{name}": value for name, value in scores.items()}

    def _perhaps_save(
        self, training_progress: TrainingProgress, state: RunState, signals: list[int], due: bool = False
    ) -> None:
        if self.step.pending:
            return  # gradients that wait in the accumulators are not part of a checkpoint
        signals = self.coordinator.any_signaled(signals, now=due)
        minutes = (time.monotonic() - self._saved) / 60
        steps, often = self.step.optimizer.steps_done, self.settings.checkpoint_steps
        due = due or 0 < often <= steps - self._saved_steps
        if due or signals or minutes >= self.settings.checkpoint_minutes:
            if self.coordinator.is_chief:
                progress = dataclasses.asdict(training_progress)
                write_checkpoint(self.checkpoint, state, progress, self.settings.checkpoints_kept)
            self._saved, self._saved_steps = time.monotonic(), steps
        self._stop_if(signals)

    def _stop_if(self, signals: Sequence[int]) -> None:
        if signals:
            # Nobody leaves before the checkpoint is written: who waits for all might end the chief.
            self.coordinator.broadcast("saved", lambda: None)
            raise Interrupted(signal.Signals(signals[0]).name)


@contextlib.contextmanager
def _noted_signals():
    """Collects SIGINT and SIGTERM instead of dying of them; a second one ends the run at once."""
    noted: list[int] = []

    def note(number, frame):
        if noted:
            raise KeyboardInterrupt
        noted.append(number)
        print("\nstopping after this batch", file=sys.stderr)

    try:
        before = {number: signal.signal(number, note) for number in (signal.SIGINT, signal.SIGTERM)}
    except ValueError:  # not the main thread: signals are its business
        before = {}
    try:
        yield noted
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
