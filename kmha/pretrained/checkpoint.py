"""A pretrained encoder: shape, vocabulary and weights under kmha's names; and the JSON files of checkpoints."""

import dataclasses
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

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
    # Reads the weights by the path of the variable below the encoder; raises InputError if they are damaged or do not
    # fit `config`.
    read_weights: Callable[[], dict[str, np.ndarray]]


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


def read_json(path: Path) -> dict[str, Any]:
    """The JSON object in a file, which may come from anywhere; raises InputError if there is none."""
    try:
        values = json.loads(path.read_bytes())
    except OSError as error:
        raise InputError(f"{path}: expected a checkpoint's {path.name}, {error.strerror or error}") from error
    except (ValueError, RecursionError) as error:
        raise InputError(f"{path}: not valid JSON: {error}") from error
    if not isinstance(values, dict):
        raise InputError(f"{path}: must be a JSON object, got {type(values).__name__}")
    return values


def shown(value: Any) -> str:
    """A value for an error message: one line of limited length."""
    text = repr(value)
    return text if len(text) <= 60 else f"{text[:60]}…"
