"""The training loop and its callbacks: epochs, validation, the best weights, early stopping and checkpoints."""

import contextlib
import csv
import dataclasses
import math
import signal
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import keras
import numpy as np
import tensorflow as tf
from tqdm import tqdm

from kmha.errors import InputError
from training.cli.exceptions import Interrupted, TrainingDiverged, deferred_signals
from training.config.config import BATCH_ROWS, TrainSection
from training.data.inputs import Source
from training.data.length_buckets import shares
from training.distributed.coordinator import SINGLE_WORKER, Coordinator
from training.engine.optimizer import AdamW, WeightAverage
from training.engine.train_step import TrainingStep
from training.runs.checkpoint_folder import check_disk_space
from training.runs.checkpoint_io import read_checkpoint, state_size, write_checkpoint


class OptimizerView:
    """The read-only properties that Keras callbacks expect of `model.optimizer`."""

    def __init__(self, optimizer: AdamW):
        self._optimizer = optimizer

    @property
    def iterations(self) -> int:
        """Completed optimizer steps."""
        return self._optimizer.steps_done

    @property
    def learning_rate(self) -> float:
        """Learning rate of the next step."""
        return float(self._optimizer.learning_rate)


@contextlib.contextmanager
def expose_optimizer(model: keras.Model, optimizer: AdamW) -> Iterator[None]:
    """Sets `model.optimizer` inside the block only: `model.save` writes everything that is attached to a model."""
    model.optimizer = OptimizerView(optimizer)
    try:
        yield
    finally:
        del model.optimizer


class EpochLog(keras.callbacks.CSVLogger):
    """Writes one line per epoch into a CSV file. A resumed run first removes the epochs after its checkpoint."""

    def on_train_begin(self, logs=None):
        """Opens the file."""
        path = Path(self.filename)
        if self.append and path.exists():
            # A killed run may have written more epochs, or an incomplete line.
            with open(path, newline="", encoding="utf-8") as file:
                head, *lines = list(csv.reader(file)) or [[]]
            with open(path, "w", newline="", encoding="utf-8") as file:
                if head:
                    done = (self.params or {}).get("done_epochs", 0)
                    csv.writer(file).writerows([head, *lines[:done]])
        super().on_train_begin(logs)


class ProgressBar(keras.callbacks.Callback):
    """A bar on stderr with speed and remaining time of the run, and one line per epoch.

    Each of the parts of an epoch is an epoch to the loop.
    """

    def __init__(self, total_batches: int, metric: str, epochs: int, parts: int = 1):
        super().__init__()
        self.total_batches, self.metric, self.epochs, self.parts = total_batches, metric, epochs, parts

    def on_train_begin(self, logs=None):
        """Opens the bar."""
        self.started, self.seen = time.monotonic(), 0
        done = (self.params or {}).get("done_batches", 0)
        self.left = self.total_batches - done
        self.bar = tqdm(
            total=self.total_batches,
            initial=done,
            unit="batch",
            file=sys.stderr,
            dynamic_ncols=True,
            mininterval=1.0,
            disable=not sys.stderr.isatty(),  # the lines of the epochs are still written
        )

    def on_epoch_begin(self, epoch, logs=None):
        """Starts the clock of the epoch."""
        self.epoch_start = time.monotonic()

    def on_train_batch_end(self, batch, logs=None):
        """Advances the bar."""
        self.bar.update(1)
        self.seen, self.left = self.seen + 1, self.left - 1
        if logs:
            self.bar.set_postfix(loss=f"{logs['loss']:.4f}", refresh=False)

    def on_epoch_end(self, epoch, logs=None):
        """Writes the line of the epoch."""
        logs = logs or {}
        number, part = divmod(epoch, self.parts)
        position = f"epoch {number + 1}/{self.epochs}"
        if self.parts > 1:
            position += f", part {part + 1}/{self.parts}"
        scores = {name: logs[name] for name in ("loss", "val_loss", f"val_{self.metric}")}
        self.bar.write(
            f"{position}: {', '.join(f'{name} {value:.3f}' for name, value in scores.items())},"
            f" {logs['tokens_per_second']:,.0f} tokens/s, {time.monotonic() - self.epoch_start:.0f} s{self._eta()}",
            file=sys.stderr,
        )

    def _eta(self) -> str:
        """Time to the last epoch; early stopping may end the run before."""
        if self.left <= 0 or not self.seen:
            return ""
        seconds = (time.monotonic() - self.started) / self.seen * self.left
        return f", ETA {tqdm.format_interval(seconds).removeprefix('0')}"

    def on_train_end(self, logs=None):
        """Closes the bar."""
        self.bar.close()


class RunState(tf.Module):
    """All variables of a checkpoint: of the model, the optimizer, the average and the best weights.

    The names of the attributes are part of the checkpoint format.
    """

    def __init__(self, model: keras.Model, step: TrainingStep, average: WeightAverage | None):
        super().__init__(name="run_state")
        self.model_variables = [variable.value for variable in model.variables]
        self.optimizer = step.optimizer
        self.loss_scale = step.loss_scale
        self.average = average
        self.weights = [variable.value for variable in model.trainable_variables]
        # With distillation the step trains projections too.
        self.step_weights = step.variables_
        self.best = [tf.Variable(weight, trainable=False) for weight in self.weights]

    def save_best(self) -> None:
        """Copies the weights to the best weights."""
        for best, weight in zip(self.best, self.weights, strict=True):
            best.assign(weight)

    def restore_best(self) -> None:
        """Copies the best weights to the model."""
        for best, weight in zip(self.best, self.weights, strict=True):
            weight.assign(best)


@dataclasses.dataclass
class TrainingProgress:
    """Position and results of a run so far: the JSON values of a checkpoint."""

    epoch: int = 0  # the current epoch
    batch: int = 0  # the next batch of that epoch
    batches_done: int = 0  # in the whole run
    best_metric: float | None = None
    best_epoch: int = -1
    ended: bool = False  # a callback stopped the training
    loss_sum: float = 0.0  # of the current epoch, as weight_sum
    weight_sum: float = 0.0
    history: list[dict] = dataclasses.field(default_factory=list)

    @classmethod
    def read(cls, progress: dict[str, Any]) -> "TrainingProgress":
        """The progress in a checkpoint; raises InputError if another version of this code wrote it."""
        try:
            return cls(**progress)
        except TypeError as error:
            raise InputError(
                f"--resume: expected a checkpoint of this version, got one of another version ({error})"
            ) from None

    def mean_loss(self, terms: int = 1) -> float:
        """Mean loss of the current epoch, per row and per term of a row's loss."""
        return self.loss_sum / max(self.weight_sum, 1e-12) / terms


def epoch_plans(source: Source, lengths: Sequence[Any], settings: TrainSection, epoch: int) -> list[Any]:
    """The batches of an epoch; they depend on seed and epoch only, so that a resumed run has the same ones."""
    rng = np.random.default_rng([settings.seed, epoch])
    return source.plans(lengths, settings.batch_tokens, settings.batch_rows or BATCH_ROWS, rng)


@dataclasses.dataclass
class Loop:
    """Trains until the last epoch, early stopping, a callback or a signal ends the run."""

    model: keras.Model
    step: TrainingStep
    # The rows of an epoch. Of large data each part counts as an epoch here.
    source_of: Callable[[int], Source]
    lengths: Sequence[Any]  # the padded lengths to compute
    validate: Callable[[], dict[str, float]]  # {"loss", metric, …} of the current weights
    metric: str  # the score that selects the best weights; higher is better
    settings: TrainSection
    average: WeightAverage | None  # evaluated in place of the last weights
    checkpoint: Path  # folder of the checkpoints
    callbacks: Sequence[keras.callbacks.Callback] = ()
    loss_terms: int = 1  # by what reported training losses are divided; see `Task.loss_terms`
    evaluate_first: bool = False  # whether the initial weights can be the best ones, as epoch -1
    coordinator: Coordinator = SINGLE_WORKER

    def run(self, resume: bool = False) -> TrainingProgress:
        """Trains and leaves the best weights in the model. The last checkpoint has the trained model.

        Raises:
            Interrupted: After SIGINT or SIGTERM, with a checkpoint on disk.
            TrainingDiverged: The loss, a gradient or the validation metric was not finite.
            InputError: No checkpoint to resume from, one of another model, or too little free disk.
            CheckpointWriteError: A checkpoint could not be written; earlier ones are intact.
        """
        self._state = RunState(self.model, self.step, self.average)
        check_disk_space(self.checkpoint, state_size(self._state), self.settings.checkpoints_kept)
        self._progress = progress = TrainingProgress()
        if resume:
            self._progress = progress = TrainingProgress.read(read_checkpoint(self.checkpoint, self._state))
        elif self.evaluate_first:
            progress.best_metric = self.validate()[self.metric]
        callbacks = keras.callbacks.CallbackList(
            list(self.callbacks),
            model=self.model,
            epochs=self.settings.epochs,
            done_batches=progress.batches_done,
            done_epochs=progress.epoch,
        )
        self.model.stop_training = False
        self._saved, self._saved_steps = time.monotonic(), self.step.optimizer.steps_done
        with deferred_signals() as self._signals, expose_optimizer(self.model, self.step.optimizer):
            callbacks.on_train_begin()
            try:
                while not self._is_over():
                    self._epoch(callbacks)
            finally:
                callbacks.on_train_end()
        # A signal after the last checkpoint: evaluation can follow when the run is resumed.
        self._stop_if(self.coordinator.any_signaled(self._signals, now=True))
        self._state.restore_best()
        return progress

    def _is_over(self) -> bool:
        progress = self._progress
        epochs_without_improvement = progress.epoch - 1 - progress.best_epoch
        return (
            progress.ended
            or progress.epoch >= self.settings.epochs
            or epochs_without_improvement >= max(1, self.settings.patience)
        )

    def _epoch(self, callbacks: keras.callbacks.CallbackList) -> None:
        progress = self._progress
        source = self.source_of(progress.epoch)
        row_lengths = source.lengths
        plans = epoch_plans(source, self.lengths, self.settings, progress.epoch)
        callbacks.on_epoch_begin(progress.epoch)
        started, waited, tokens = time.monotonic(), 0.0, 0
        cpu_started = time.process_time()
        own_plans = shares(source, plans[progress.batch :], self.coordinator.index, self.coordinator.count)
        batches = iter(source.dataset(own_plans))
        for plan in plans[progress.batch :]:
            wait_started = time.monotonic()
            batch = next(batches)
            waited += time.monotonic() - wait_started
            callbacks.on_train_batch_begin(progress.batch)
            self._batch(batch, last=progress.batch + 1 == len(plans))
            tokens += int(row_lengths[plan.rows].sum())
            callbacks.on_train_batch_end(progress.batch - 1, {"loss": progress.mean_loss(self.loss_terms)})
            self._save_if_due()
            if self.model.stop_training:
                self.step.flush()
                break
        seconds, cpu_seconds = time.monotonic() - started, time.process_time() - cpu_started
        with self._averaged():
            logs = {"loss": progress.mean_loss(self.loss_terms), **self._validate()}
            logs["learning_rate"] = float(self.step.optimizer.learning_rate)
            logs["tokens_per_second"] = tokens / seconds
            # CPU time of all threads: comparable on a busy machine too.
            logs["tokens_per_cpu_second"] = tokens / cpu_seconds
            logs["input_wait_share"] = waited / seconds
            progress.history.append({"epoch": progress.epoch, **logs})
            # With the averaged weights, so that a callback saves the weights that were evaluated.
            callbacks.on_epoch_end(progress.epoch, logs)
        progress.epoch, progress.batch = progress.epoch + 1, 0
        progress.loss_sum = progress.weight_sum = 0.0
        progress.ended = bool(self.model.stop_training)
        self._save_if_due(due=self._is_over())

    def _batch(self, batch: Any, last: bool) -> None:
        progress, optimizer = self._progress, self.step.optimizer
        steps_before = optimizer.steps_done
        sums = self.step(batch)
        if last:
            self.step.flush()
        loss, weight = float(sums["loss"]), float(sums["weight"])
        progress.batch += 1
        progress.batches_done += 1
        progress.loss_sum += loss
        progress.weight_sum += weight
        if not math.isfinite(loss):
            raise TrainingDiverged(f"loss is {loss} at batch {progress.batches_done}")
        if self.step.pending:
            return
        steps = optimizer.steps_done
        # With float16 a step is skipped when the loss scale was too large.
        if steps == steps_before and weight > 0 and self.step.loss_scale is None:
            raise TrainingDiverged(f"the gradient is not finite at batch {progress.batches_done}")
        if steps > steps_before and self.average is not None:
            self.average.after_step(steps)

    @contextlib.contextmanager
    def _averaged(self) -> Iterator[None]:
        """Inside, the model has the averaged weights, if there is an average."""
        if self.average is None:
            yield
            return
        self.average.swap()
        try:
            yield
        finally:
            self.average.swap()

    def _validate(self) -> dict[str, float]:
        """Validation scores of the current weights; saves the weights if they are the best so far."""
        progress, scores = self._progress, self.validate()
        metric = scores[self.metric]
        if not math.isfinite(metric):
            raise TrainingDiverged(f"{self.metric} is {metric} after epoch {progress.epoch + 1}")
        if progress.best_metric is None or metric > progress.best_metric:
            progress.best_metric, progress.best_epoch = metric, progress.epoch
            self._state.save_best()
        return {f"val_{name}": value for name, value in scores.items()}

    def _save_if_due(self, due: bool = False) -> None:
        """Writes a checkpoint if it is due or a signal came; raises Interrupted after a signal."""
        if self.step.pending:
            return  # a checkpoint has no accumulated gradients
        signals = self.coordinator.any_signaled(self._signals, now=due)
        minutes = (time.monotonic() - self._saved) / 60
        steps, interval = self.step.optimizer.steps_done, self.settings.checkpoint_steps
        due = due or 0 < interval <= steps - self._saved_steps
        if due or signals or minutes >= self.settings.checkpoint_minutes:
            if self.coordinator.is_chief:
                progress = dataclasses.asdict(self._progress)
                write_checkpoint(self.checkpoint, self._state, progress, self.settings.checkpoints_kept)
            self._saved, self._saved_steps = time.monotonic(), steps
        self._stop_if(signals)

    def _stop_if(self, signals: Sequence[int]) -> None:
        if signals:
            # All workers wait for the checkpoint: a worker that exits early can abort the chief worker.
            self.coordinator.broadcast("saved", lambda: None)
            raise Interrupted(signal.Signals(signals[0]).name)
