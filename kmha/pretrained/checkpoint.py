"""A published encoder: its shape, its vocabulary, and its weights under our names."""

import dataclasses
from collections.abc import Callable

import numpy as np

from kmha.config import EncoderConfig
from kmha.errors import InputError
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


def source_blocks(ours: int, theirs: int) -> list[int]:
    """Which blocks of a checkpoint each of ours starts from: evenly spread, the last one always.

    Raises:
        InputError: The checkpoint has fewer.
    """
    if ours > theirs:
        raise InputError(f"num_layers must be at most the checkpoint's {theirs}, got {ours}")
    return [round((i + 1) * theirs / ours) - 1 for i in range(ours)]


def shorten_config(config: EncoderConfig, num_layers: int) -> EncoderConfig:
    """The shape of an encoder that starts from some blocks of a checkpoint, whose sizes may differ.

    Raises:
        InputError: The checkpoint has fewer blocks.
    """
    sizes = [config.layer_size(i) for i in source_blocks(num_layers, config.num_layers)]
    layer_sizes = tuple(sizes) if config.layer_sizes else ()
    return dataclasses.replace(config, num_layers=num_layers, layer_sizes=layer_sizes)
