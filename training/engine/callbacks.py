"""Keras callbacks of every run: progress on the terminal and a table of epochs on disk."""

import contextlib
import csv
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import keras
from tqdm import tqdm

from training.engine.optimizer import AdamW


class OptimizerView:
    """What Keras callbacks may read of the optimizer. They cannot set the rate, a function of the step."""

    def __init__(self, optimizer: AdamW):
        self._optimizer = optimizer

    @property
    def iterations(self) -> int:
        """Steps done."""
        return self._optimizer.steps_done

    @property
    def learning_rate(self) -> float:
        """The rate of the next step."""
        return float(self._optimizer.learning_rate)


@contextlib.contextmanager
def expose_optimizer(model: keras.Model, optimizer: AdamW) -> Iterator[None]:
    """Shows the optimizer as `model.optimizer`, where Keras callbacks look for it.

    Only for a time: a model is saved with everything that is attached to it.
    """
    model.optimizer = OptimizerView(optimizer)
    try:
        yield
    finally:
        del model.optimizer


class EpochLog(keras.callbacks.CSVLogger):
    """Writes a line an epoch; of a run that goes on, epochs after its checkpoint are not there twice.

    Args:
        path: The CSV file.
        append: Whether a run goes on that has written there already.
    """

    def __init__(self, path: Path, append: bool):
        super().__init__(str(path), append=append)

    def on_train_begin(self, logs=None):
        """Opens the file."""
        path = Path(self.filename)
        if self.append and path.exists():
            done = (self.params or {}).get("done_epochs", 0)
            _leave_epochs(path, done)
        super().on_train_begin(logs)


def _leave_epochs(path: Path, done: int) -> None:
    """Cuts a table of epochs to the first ones; a kill may have left more, or half a line."""
    with open(path, newline="", encoding="utf-8") as file:
        head, *lines = list(csv.reader(file)) or [[]]
    with open(path, "w", newline="", encoding="utf-8") as file:
        if head:
            csv.writer(file).writerows([head, *lines[:done]])


class ProgressBar(keras.callbacks.Callback):
    """A bar on stderr with rate and time left for the whole run, and one line an epoch.

    Args:
        total_batches: Batches of the whole run.
        metric: Name of the validation score to show.
        parts: Parts of an epoch, each of which counts as one here; 1: an epoch is one.
    """

    def __init__(self, total_batches: int, metric: str, parts: int = 1):
        super().__init__()
        self.total_batches = total_batches
        self.metric = metric
        self.parts = parts

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
            # Without a terminal a bar is only noise; the lines of the epochs still come.
            disable=not sys.stderr.isatty(),
        )

    def on_epoch_begin(self, epoch, logs=None):
        """Notes the time."""
        self.epoch_start = time.monotonic()

    def on_train_batch_end(self, batch, logs=None):
        """Moves the bar."""
        self.bar.update(1)
        self.seen, self.left = self.seen + 1, self.left - 1
        if logs:
            self.bar.set_postfix(loss=f"{logs['loss']:.4f}", refresh=False)

    def on_epoch_end(self, epoch, logs=None):
        """Prints the epoch's line."""
        logs = logs or {}
        whole, part = divmod(epoch, self.parts)
        place = f"epoch {whole + 1}" + (f", part {part + 1} of {self.parts}" if self.parts > 1 else "")
        self.bar.write(
            f"{place}: loss {logs['loss']:.4f}, validation loss {logs['val_loss']:.4f},"
            f" {self.metric} {logs[f'val_{self.metric}']:.4f}"
            f" ({logs['tokens_per_second']:,.0f} tokens/s, {logs['input_wait_share']:.1%} waiting for input,"
            f" {time.monotonic() - self.epoch_start:.0f} s){self._time_left()}",
            file=sys.stderr,
        )

    def _time_left(self) -> str:
        if self.left <= 0 or not self.seen:
            return ""
        seconds = (time.monotonic() - self.started) / self.seen * self.left
        return f", at most {seconds:,.0f} s left"

    def on_train_end(self, logs=None):
        """Closes the bar."""
        self.bar.close()
