"""Keras callbacks of every run: a progress bar with a line per epoch, and a CSV file of the epochs."""

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
    """Writes one line per epoch. A resumed run first removes the epochs after its checkpoint.

    Args:
        path: The CSV file.
        append: Whether the run is resumed and may have written lines already.
    """

    def __init__(self, path: Path, append: bool):
        super().__init__(str(path), append=append)

    def on_train_begin(self, logs=None):
        """Opens the file."""
        path = Path(self.filename)
        if self.append and path.exists():
            _truncate_epochs(path, (self.params or {}).get("done_epochs", 0))
        super().on_train_begin(logs)


def _truncate_epochs(path: Path, count: int) -> None:
    """Keeps the first epochs: a killed run may have written more, or an incomplete line."""
    with open(path, newline="", encoding="utf-8") as file:
        head, *lines = list(csv.reader(file)) or [[]]
    with open(path, "w", newline="", encoding="utf-8") as file:
        if head:
            csv.writer(file).writerows([head, *lines[:count]])


class ProgressBar(keras.callbacks.Callback):
    """A bar on stderr with speed and remaining time of the run, and one line per epoch.

    Args:
        total_batches: Batches of all epochs.
        metric: Name of the validation score to show.
        epochs: Number of epochs.
        parts: Parts of an epoch, each of which is an epoch to the loop; 1: an epoch has one part.
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
