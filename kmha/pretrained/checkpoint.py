"""A published encoder: its shape, its vocabulary, and its weights under our names."""

import dataclasses
from collections.abc import Callable

import numpy as np

from kmha.config import EncoderConfig
from kmha.text.vocabulary import Tokenization, Vocabulary


@dataclasses.dataclass(frozen=True)
class Checkpoint:
    """An encoder that somebody trained.

    Attributes:
        origin: Where it was found, for messages.
        config: Its shape; max_length is the number of positions it knows.
        vocabulary: Its tokens.
        tokenization: How it cuts texts.
        lower_case: Whether it lower-cases and strips accents.
        read_weights: Reads the weights, by the path of the variable below the encoder; raises InputError where they
            are damaged or not those of `config`.
    """

    origin: str
    config: EncoderConfig
    vocabulary: Vocabulary
    tokenization: Tokenization
    lower_case: bool
    read_weights: Callable[[], dict[str, np.ndarray]]
