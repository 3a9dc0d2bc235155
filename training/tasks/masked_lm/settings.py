"""Settings of masked language modeling, the flags `--masked-lm.*`."""

import dataclasses

from training.cli.bounds import OpenShare
from training.tasks.settings import TaskSettings


@dataclasses.dataclass(frozen=True)
class MaskedLmSettings(TaskSettings):
    """Masked language modeling: pretraining on unlabeled text."""

    share: OpenShare = 0.15
    """Fraction of tokens to predict: 80 % of them are masked, 10 % replaced and 10 % unchanged."""
    whole_word: bool = False
    """Mask all tokens of a word together."""
    packed: bool = True
    """Pack short texts into rows of --text.max-length tokens; otherwise each text is a row."""
