"""A pretrained encoder: shape, vocabulary and weights under kmha's names."""

import dataclasses
from collections.abc import Callable
from typing import Any

from kmha.config import EncoderConfig
from kmha.errors import InputError
from kmha.text.vocabulary import Tokenization, Vocabulary


@dataclasses.dataclass(frozen=True)
class Checkpoint:
    """A pretrained encoder."""

    origin: str  # its source, for messages
    config: EncoderConfig  # its shape; max_length is its number of positions
    vocabulary: Vocabulary  # its tokens
    tokenization: Tokenization  # its tokenization
    lower_case: bool  # whether it lower-cases and strips accents
    # Reads the weights, NumPy arrays by the path of the variable below the encoder; raises InputError if they are
    # damaged or do not fit `config`.
    read_weights: Callable[[], dict[str, Any]]


def source_blocks(num_layers: int, checkpoint_layers: int) -> list[int]:
    """The checkpoint's block for each block of a smaller encoder: evenly spaced, always with the last one."""
    if num_layers > checkpoint_layers:
        raise InputError(f"num_layers must be at most the checkpoint's {checkpoint_layers}, got {num_layers}")
    return [round((i + 1) * checkpoint_layers / num_layers) - 1 for i in range(num_layers)]


def shorten_config(config: EncoderConfig, num_layers: int) -> EncoderConfig:
    """The shape of an encoder that is initialized from some blocks of a checkpoint, whose sizes may differ."""
    sizes = [config.layer_size(i) for i in source_blocks(num_layers, config.num_layers)]
    layer_sizes = tuple(sizes) if config.layer_sizes else ()
    return dataclasses.replace(config, num_layers=num_layers, layer_sizes=layer_sizes)
