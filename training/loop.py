"""Epochs: batches through the training step, validation, the best weights, and a way to stop and go on."""

import contextlib
import dataclasses
import math
import signal
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import keras
import numpy as np
import tensorflow as tf

from training.averaging import WeightAverage
from training.buckets import BatchPlan, plan_batches
from training.checkpoint import read_checkpoint, write_checkpoint
from training.config import TrainSection
from training.pipeline import BatchSource
from training.replicas import TrainingStep


class Stopped(Exception):
    """The run was told to stop; a checkpoint has been written."""


class Diverged(Exception):
    """The loss is no longer a number."""


class RunState(tf.Module):
    """Every variable that a run must find again: of the model, optimizer, average and best weights."""

    def __init__(self, model: keras.Model, step: TrainingStep, average: WeightAverage | None):
        super().__init__(name="run_state")
        self.model_variables = [variable.value for variable in model.variables]
        self.optimizer = step.optimizer
        self.loss_scale = step.loss_scale
        self.average = average
        self.weights = [variable.value for variable in model.trainable_variables]
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
class Progress:
    """Where a run stands. JSON values only."""

    epoch: int = 0
    batch: int = 0
    step: int = 0
    best_metric: float = -math.inf
    best_epoch: int = -1
    loss_sum: float = 0.0
    weight_sum: float = 0.0
    history: list[dict] = dataclasses.field(default_factory=list)


def epoch_plans(
    source: BatchSource, lengths: list[int], settings: TrainSection, epoch: int
) -> list[BatchPlan]:
    """The batches of an epoch; a function of seed and epoch only, so that a resumed run finds them again."""
    rng = np.random.default_rng([settings.seed, epoch])
    return plan_batches(source.lengths, lengths, settings.batch_tokens, settings.batch_rows, rng)


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
    """

    model: keras.Model
    step: TrainingStep
    source: BatchSource
    lengths: list[int]
    validate: Callable[[], dict[str, float]]
    metric: str
    settings: TrainSection
    average: WeightAverage | None
    checkpoint: Path
    callbacks: Sequence[keras.callbacks.Callback] = ()

    def run(self, resume: bool = False) -> Progress:
        """Trains and leaves the best weights in the model.

        Raises:
            Stopped: After SIGINT or SIGTERM, with a checkpoint on disk.
            Diverged: The loss was not finite.
        """
        state = RunState(self.model, self.step, self.average)
        progress = Progress()
        if resume:
            progress = Progress(**read_checkpoint(self.checkpoint, state))
        callbacks = keras.callbacks.CallbackList(
            list(self.callbacks), model=self.model, epochs=self.settings.epochs, done_steps=progress.step
        )
        self.model.stop_training = False
        callbacks.on_train_begin()
        try:
            with _noted_signals() as signals:
                self._saved = time.monotonic()
                while progress.epoch < self.settings.epochs and not self.model.stop_training:
                    self._epoch(progress, state, callbacks, signals)
                    if progress.epoch - 1 - progress.best_epoch >= self.settings.patience:
                        break
        finally:
            callbacks.on_train_end()
        state.take_best()
        return progress

    def _epoch(self, progress: Progress, state: RunState, callbacks, signals: list[int]) -> None:
        plans = epoch_plans(self.source, self.lengths, self.settings, progress.epoch)
        callbacks.on_epoch_begin(progress.epoch)
        started, waited, tokens = time.monotonic(), 0.0, 0
        batches = iter(self.source.dataset(plans[progress.batch :]))
        for plan in plans[progress.batch :]:
            asked = time.monotonic()
            batch = next(batches)
            waited += time.monotonic() - asked
            callbacks.on_train_batch_begin(progress.batch)
            self._batch(progress, batch, last=progress.batch + 1 == len(plans))
            tokens += int(self.source.lengths[plan.rows].sum())
            callbacks.on_train_batch_end(
                progress.batch - 1, {"loss": progress.loss_sum / progress.weight_sum}
            )
            self._perhaps_save(progress, state, signals)
        seconds = time.monotonic() - started
        logs = {"loss": progress.loss_sum / progress.weight_sum, **self._validated(progress, state)}
        logs["learning_rate"] = float(self.step.optimizer.learning_rate)
        logs["tokens_per_second"] = tokens / seconds
        logs["input_wait_share"] = waited / seconds
        progress.history.append({"epoch": progress.epoch, **logs})
        callbacks.on_epoch_end(progress.epoch, logs)
        progress.epoch, progress.batch = progress.epoch + 1, 0
        progress.loss_sum = progress.weight_sum = 0.0

    def _batch(self, progress: Progress, batch, last: bool) -> None:
        sums = self.step(batch)
        if last:
            self.step.flush()
        loss, weight = float(sums["loss"]), float(sums["weight"])
        if not math.isfinite(loss):
            raise Diverged(f"loss is {loss} at step {progress.step + 1}")
        progress.batch += 1
        progress.step += 1
        progress.loss_sum += loss
        progress.weight_sum += weight
        if self.average is not None and not self.step.pending:
            self.average.after_step(int(self.step.optimizer.iterations))

    def _validated(self, progress: Progress, state: RunState) -> dict[str, float]:
        """Validation scores of the averaged weights, which are kept if they are the best so far."""
        if self.average is not None:
            self.average.swap()
        scores = self.validate()
        if scores[self.metric] > progress.best_metric:
            progress.best_metric, progress.best_epoch = scores[self.metric], progress.epoch
            state.keep_best()
        if self.average is not None:
            self.average.swap()
        return {f"val_{name}": value for name, value in scores.items()}

    def _perhaps_save(self, progress: Progress, state: RunState, signals: list[int]) -> None:
        if self.step.pending:
            return  # gradients that wait in the accumulators are not part of a checkpoint
        minutes = (time.monotonic() - self._saved) / 60
        if signals or minutes >= self.settings.checkpoint_minutes:
            write_checkpoint(self.checkpoint, state, dataclasses.asdict(progress))
            self._saved = time.monotonic()
        if signals:
            raise Stopped(signal.Signals(signals[0]).name)


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
