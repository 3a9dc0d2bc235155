"""Settings of text classification, the flags `--classify.*`."""

import dataclasses
from typing import Annotated, Literal

from kmha.config import EncoderConfig
from kmha.document_windows import WindowShape
from kmha.errors import InputError
from training.cli.bounds import Probability, Range
from training.tasks.settings import TaskSettings

TEXT, LABEL, LABELS = "text", "label", "labels"
DEFAULT_SMOOTHING = 0.1
# The default overlap is this fraction of a window.
DEFAULT_OVERLAP_DIVISOR = 4
SPECIAL_TOKENS_PER_WINDOW = 2


@dataclasses.dataclass(frozen=True)
class ClassifySettings(TaskSettings):
    """Text classification: one label per text, or any number of labels."""

    multi_label: bool | None = None
    """Whether a text may have several labels; None: if the label column is named labels."""
    pooling: Literal["cls", "mean", "max"] = "mean"
    """How the token vectors are pooled to one vector."""
    dropout: Probability = 0.3
    """Dropout probability of the pooled vector."""
    label_smoothing: Annotated[float | None, Range(at_least=0, below=1)] = None
    """Label smoothing; None: 0.1 for one label per text, 0 for several."""
    class_weights: Literal["none", "balanced"] = "none"
    """balanced: rows of rare labels have a higher weight in the loss."""
    window: Annotated[int, Range(at_least=0)] = 0
    """Tokens of a window, special tokens included. Texts up to --text.max-length are read in overlapping windows;
    0: no windows."""
    window_overlap: Annotated[int | None, Range(at_least=0)] = None
    """Text tokens that neighboring windows share; None: a quarter of a window."""
    window_pooling: Literal["mean", "max", "attention"] = "mean"
    """How the vectors of the windows are pooled; mean counts every token once."""

    @property
    def windows(self) -> WindowShape | None:
        """The windows of long texts; None: texts are read as one sequence."""
        if not self.window:
            return None
        # A very small window may have less room than the default overlap.
        overlap = min(self.window // DEFAULT_OVERLAP_DIVISOR, self.window - SPECIAL_TOKENS_PER_WINDOW - 1)
        return WindowShape(self.window, overlap if self.window_overlap is None else self.window_overlap)

    @property
    def smoothing(self) -> float:
        """The label smoothing. With several labels the default is 0: rare labels are below any smoothed target."""
        if self.label_smoothing is not None:
            return self.label_smoothing
        return 0.0 if self.multi_label else DEFAULT_SMOOTHING

    def encoder(self, config: EncoderConfig) -> EncoderConfig:
        """The given shape; with windows, at most one window long."""
        return dataclasses.replace(config, max_length=self.window) if self.window else config

    def check_windows(self, max_length: int) -> None:
        """Checks the window settings.

        Args:
            max_length: Tokens of the longest text.

        Raises:
            InputError: A setting is out of range, or has no effect without `window`; names the flag.
        """
        if not self.window:
            pooling = self.window_pooling if self.window_pooling != "mean" else None
            for flag, value in (("window-overlap", self.window_overlap), ("window-pooling", pooling)):
                if value is not None:
                    raise InputError(
                        f"--classify.{flag}: expected it together with --classify.window, got it alone"
                    )
            return
        if self.window <= SPECIAL_TOKENS_PER_WINDOW:
            raise InputError(f"--classify.window: expected 3 or more, or 0 for none, got {self.window}")
        if self.window > max_length:
            raise InputError(
                f"--classify.window: expected at most the {max_length} tokens of --text.max-length, got {self.window}"
            )
        text_tokens = self.window - SPECIAL_TOKENS_PER_WINDOW
        if self.window_overlap is not None and self.window_overlap >= text_tokens:
            raise InputError(
                f"--classify.window-overlap: expected less than the {text_tokens} text tokens of a window of"
                f" {self.window}, got {self.window_overlap}"
            )
