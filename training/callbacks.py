"""Keras callbacks of every run: progress on the terminal and a table of epochs on disk."""

import sys
import time

import keras
from tqdm import tqdm


class Progress(keras.callbacks.Callback):
    """A bar on stderr with rate and time left for the whole run, and one line an epoch.

    Args:
        total_steps: Batches of the whole run.
        metric: Name of the validation score to show.
    """

    def __init__(self, total_steps: int, metric: str):
        super().__init__()
        self.total_steps = total_steps
        self.metric = metric

    def on_train_begin(self, logs=None):
        """Opens the bar."""
        self.bar = tqdm(
            total=self.total_steps,
            initial=(self.params or {}).get("done_steps", 0),
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
        if logs:
            self.bar.set_postfix(loss=f"{logs['loss']:.4f}", refresh=False)

    def on_epoch_end(self, epoch, logs=None):
        """Prints the epoch's line."""
        logs = logs or {}
        self.bar.write(
            f"epoch {epoch + 1}: loss {logs['loss']:.4f}, validation loss {logs['val_loss']:.4f},"
            f" {self.metric} {logs[f'val_{self.metric}']:.4f}"
            f" ({logs['tokens_per_second']:,.0f} tokens/s, {logs['input_wait_share']:.1%} waiting for input,"
            f" {time.monotonic() - self.epoch_start:.0f} s)",
            file=sys.stderr,
        )

    def on_train_end(self, logs=None):
        """Closes the bar."""
        self.bar.close()
