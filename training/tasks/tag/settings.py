"""Settings of sequence tagging, the flags `--tag.*`."""

import dataclasses
from typing import Annotated, Literal

from kmha.tags import Scheme
from training.cli.bounds import Probability, Range
from training.tasks.settings import TaskSettings


@dataclasses.dataclass(frozen=True)
class TagSettings(TaskSettings):
    """Sequence tagging: a tag for each word of a sentence."""

    head: Literal["crf", "softmax"] = "crf"
    """crf learns transitions between tags; softmax only excludes transitions that the scheme forbids."""
    scheme: Literal["auto"] | Scheme = "auto"
    """Tagging scheme that the model learns; auto: the scheme of the training rows."""
    word_pooling: Literal["first", "mean"] = "first"
    """Vector of a word: that of its first token, or the mean of its tokens."""
    characters: bool | None = None
    """Read the characters of each word; None: yes, unless words are single characters."""
    character_dim: Annotated[int, Range(at_least=1)] = 64
    """Size of the character vector of a word."""
    context_width: Annotated[int, Range(at_least=0)] = 5
    """Width of the convolution before the encoder in tokens, an odd number; 0: none."""
    split: Literal["auto", "words", "characters"] = "auto"
    """How raw texts are split for prediction; auto: into characters if nearly all training words are one character."""
    dropout: Probability = 0.5
    """Dropout probability of a word's vector."""
    best_by: Literal["auto", "span_f1", "token_accuracy"] = "auto"
    """Metric that selects the best weights; auto: span_f1, for tags without spans token_accuracy."""
    given_scheme: Literal["auto"] | Scheme = "auto"
    """Tagging scheme of the training rows; auto: detected."""
