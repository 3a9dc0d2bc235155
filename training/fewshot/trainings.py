"""The trainings of the encoder in a fit with few labels: progress bar, signals and checkpoints."""

import contextlib
import logging
import signal
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
import tensorflow as tf
from tqdm import tqdm

from kmha.errors import InputError
from training.cli.exceptions import Interrupted, deferred_signals
from training.data.inputs import Source
from training.fewshot.contrastive import ContrastiveStage
from training.runs.checkpoint_folder import check_disk_space
from training.runs.checkpoint_io import read_checkpoint, state_size, write_checkpoint
from training.runs.run_folder import CHECKPOINT, RunContext

logger = logging.getLogger("kmha")

# In place of a predicted target of a text.
NO_PREDICTION, DIFFERENT_PREDICTIONS = -1, -2
# If the trainings take so many seconds, there is a checkpoint at their end, so that an interruption during evaluation
# repeats no training. Writing it takes about a second.
MIN_SECONDS = 60


class TrainingState(tf.Module):
    """The variables of a checkpoint.

    It has the vectors of the finished trainings, the mean of the folds' weights, and weights and optimizer of the
    current training. Of texts without labels it has those that have joined this training, their targets, and the
    predictions that all models share. The names of the attributes are part of the format of checkpoints.
    """

    def __init__(
        self,
        stage: ContrastiveStage,
        model: Any,
        shape: tuple[int, int, int],
        joined: Source | None,
    ):
        super().__init__(name="few_labels")
        self.model_variables = [variable.value for variable in model.variables]
        self.optimizer, self.loss_scale = stage.step.optimizer, stage.step.loss_scale
        self.vectors = tf.Variable(tf.zeros(shape), trainable=False)
        averaged = stage.variables if shape[0] else []
        self.mean = [tf.Variable(tf.zeros_like(each), trainable=False) for each in averaged]
        if joined is not None:
            self.targets = tf.Variable(tf.constant(joined.targets), trainable=False)
            self.selected = tf.Variable(tf.zeros(len(joined.targets), tf.bool), trainable=False)
            texts = joined.targets[shape[1] :]
            self.agreed = tf.Variable(tf.fill(texts.shape, NO_PREDICTION), trainable=False)


class Trainings:
    """The trainings, one after the other.

    Args:
        stage: The contrastive stage.
        model: Its model.
        steps: Of each training, in any order.
        averaged: How many of them are averaged.
        shape: Labeled rows, and numbers of a vector.
        joined: The labeled rows followed by texts without labels, if there are any.
        context: Has the folder and the settings of checkpoints.
    """

    def __init__(
        self,
        stage: ContrastiveStage,
        model: Any,
        steps: Sequence[int],
        averaged: int,
        shape: tuple[int, int],
        joined: Source | None,
        context: RunContext,
    ):
        self._state = TrainingState(stage, model, (len(steps), *shape), joined)
        self._variables, self._averaged = stage.variables, averaged
        self._joined = joined
        self._settings, self._resumes = context.config.train, context.config.resume
        self._folder = context.folder / CHECKPOINT
        self._total = sum(steps)
        # The next training, the current one, and the steps of the current one.
        self._next = self._current = self._done = 0
        self._signals: list[int] = []

    @contextlib.contextmanager
    def resumable(self) -> Iterator[None]:
        """Inside the block there is a progress bar, and SIGINT and SIGTERM end the fit after the next step or batch.

        With --resume, it continues from the last checkpoint. The block changes the weights by `run` only.

        Raises:
            Interrupted: After such a signal, with a checkpoint on disk.
            InputError: No checkpoint of this model and choice to resume from, or too little free disk.
        """
        if not self._total:
            yield
            return
        check_disk_space(self._folder, state_size(self._state), self._settings.checkpoints_kept)
        started = self._saved = time.monotonic()
        self._unsaved_steps = 0
        # None: on a terminal only.
        disabled = None if logger.isEnabledFor(logging.INFO) else True
        with (
            deferred_signals() as self._signals,
            tqdm(total=self._total, desc="contrastive", unit="step", disable=disabled) as self._bar,
        ):
            if self._resumes:
                self._resume()
            yield
            if self._next < self._current or self._done:
                raise InputError(
                    "--resume: expected the choice of the interrupted run, got another one, as on another machine;"
                    " use --overwrite in place of --resume to start over"
                )
            if self._resumes or time.monotonic() - started >= MIN_SECONDS:
                self._save()
        # After the block, which receives signals while it writes.
        self.stop_if_signaled()

    def run(
        self,
        steps: int,
        train: Callable[[int], Iterator[float]],
        encode: Callable[[], np.ndarray],
        joins_mean: bool = False,
    ) -> np.ndarray:
        """Runs the next training, unless it was finished before the interruption.

        Args:
            steps: Of the training.
            train: From the number of steps that are done to the losses of the others.
            encode: Makes the vectors of the labeled rows after the training, float32 [R, D].
            joins_mean: Whether its weights are part of `mean_weights`.

        Returns:
            These vectors.
        """
        number, self._next = self._next, self._next + 1
        if number < self._current:
            self._bar.update(steps)
            return self._state.vectors[number].numpy()
        self._bar.update(self._done)
        for loss in train(self._done):
            self._bar.set_postfix(loss=f"{loss:.3f}", refresh=False)
            self._bar.update()
            self._done += 1
            self._unsaved_steps += 1
            self.stop_if_signaled()
            if self._is_due():
                self._save()
        vectors = encode()
        self._state.vectors[number].assign(vectors)
        for mean, weight in zip(self._state.mean, self._variables, strict=True) if joins_mean else ():
            mean.assign_add(weight / self._averaged)
        # At once, so that no checkpoint repeats the end of this training.
        self._current, self._done = number + 1, 0
        return vectors

    def mean_weights(self) -> list[tf.Variable]:
        """The mean of weights that were trained without a fold, float32, in the order of the stage's variables."""
        return self._state.mean

    def stop_if_signaled(self) -> None:
        """Raises Interrupted after SIGINT or SIGTERM, with a checkpoint on disk."""
        if self._signals:
            self._save()
            raise Interrupted(signal.Signals(self._signals[0]).name)

    def record_selected_texts(self, texts: np.ndarray) -> None:
        """Records the texts that have joined the labeled rows of the current training, int64, and all targets."""
        assert self._joined is not None
        self._state.selected.assign(np.isin(np.arange(len(self._joined.targets)), texts))
        self._state.targets.assign(self._joined.targets)

    def selected_texts(self) -> np.ndarray:
        """The texts that were recorded last, int64."""
        return np.flatnonzero(self._state.selected.numpy())

    def record_predictions(self, targets: np.ndarray) -> np.ndarray:
        """Records predicted targets of all texts, int32 [T] or [T, C].

        Returns:
            Whether a text had the same targets in all calls, bool [T].
        """
        earlier = self._state.agreed.numpy()
        same = (earlier == targets) | (earlier == NO_PREDICTION)
        if targets.ndim == 2:
            same = same.all(axis=1, keepdims=True)
        self._state.agreed.assign(np.where(same, targets, DIFFERENT_PREDICTIONS))
        return same.reshape(len(targets))

    def _is_due(self) -> bool:
        minutes, interval = (time.monotonic() - self._saved) / 60, self._settings.checkpoint_steps
        return minutes >= self._settings.checkpoint_minutes or 0 < interval <= self._unsaved_steps

    def _resume(self) -> None:
        progress = read_checkpoint(self._folder, self._state)
        try:
            self._current, self._done = int(progress["training"]), int(progress["steps"])
            total = int(progress["total"])
        except (LookupError, TypeError, ValueError):
            raise InputError(
                "--resume: expected a checkpoint of few labels and this version, got another one;"
                " use --overwrite in place of --resume to start over"
            ) from None
        if total != self._total:
            raise InputError(
                f"--resume: expected a checkpoint of {self._total:,} steps, got one of {total:,}, of another version;"
                " use --overwrite in place of --resume to start over"
            )
        if self._joined is not None:
            self._joined.targets[:] = self._state.targets.numpy()

    def _save(self) -> None:
        progress = {"training": self._current, "steps": self._done, "total": self._total}
        write_checkpoint(self._folder, self._state, progress, self._settings.checkpoints_kept)
        self._saved, self._unsaved_steps = time.monotonic(), 0
