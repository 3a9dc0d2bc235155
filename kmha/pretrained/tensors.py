"""Tensors that lie in files: what is known of them before they are read, and the weights of an encoder from them."""

import dataclasses
from collections.abc import Callable, Mapping

import numpy as np

from kmha.config import EncoderConfig
from kmha.errors import InputError
from kmha.pretrained.json_file import shown
from kmha.pretrained.names import Entry, Family


@dataclasses.dataclass(frozen=True)
class Tensor:
    """A tensor that has not been read yet.

    Attributes:
        where: The file, for messages.
        shape: Its shape.
        read: Reads it, as float32 of that shape; raises InputError where the file is damaged.
    """

    where: str
    shape: tuple[int, ...]
    read: Callable[[], np.ndarray]


# A weight of ours and the tensors it is made of, by their names.
Parts = list[tuple[Entry, dict[str, Tensor]]]


def find_parts(where: str, tensors: Mapping[str, Tensor], family: Family, config: EncoderConfig) -> Parts:
    """The tensors that an encoder needs, none of which is read.

    Args:
        where: The checkpoint, for messages.
        tensors: All that it holds, by name.
        family: How it names them.
        config: Shape of the encoder.

    Raises:
        InputError: A tensor is missing or has another shape, or there are more blocks than `config` says.
    """
    prefix = _prefix(where, family.prefixes, tensors)
    parts = []
    for entry in family.entries(config.num_layers, config.num_segments > 0):
        expected = entry.theirs_shape(weight_shape(entry.ours, config))
        found = {}
        for name in (prefix + theirs for theirs in entry.theirs):
            if name not in tensors:
                raise InputError(f"{where}: expected a tensor {name}, got none of that name")
            if tensors[name].shape != expected:
                raise InputError(
                    f"{tensors[name].where}: tensor {name} must have shape {list(expected)},"
                    f" got {list(tensors[name].shape)[:8]}"
                )
            found[name] = tensors[name]
        parts.append((entry, found))
    next_block = f"{prefix}{family.blocks}{config.num_layers}."
    more = next((name for name in tensors if name.startswith(next_block)), None)
    if more is not None:
        raise InputError(
            f"{tensors[more].where}: expected {config.num_layers} blocks, got a tensor {shown(more)}"
        )
    return parts


def read_parts(parts: Parts, config: EncoderConfig) -> dict[str, np.ndarray]:
    """The weights under our names, float32, each of the shape that the config asks for.

    Raises:
        InputError: A file is damaged, or a tensor has numbers that are not finite.
    """
    weights = {}
    for entry, found in parts:
        values = []
        for name, tensor in found.items():
            values.append(tensor.read())
            if not np.isfinite(values[-1]).all():
                raise InputError(f"{tensor.where}: tensor {name} has numbers that are not finite")
        weights[entry.ours] = entry.to_ours(values, weight_shape(entry.ours, config))
    return weights


def _prefix(where: str, prefixes: tuple[str, ...], tensors: Mapping[str, Tensor]) -> str:
    first = "embeddings.word_embeddings.weight"
    for prefix in prefixes:
        if prefix + first in tensors:
            return prefix
    some = ", ".join(shown(name) for name in sorted(tensors)[:3])
    raise InputError(f"{where}: expected a tensor {first}, got {f'{some}, …' if some else 'none'}")


def weight_shape(path: str, config: EncoderConfig) -> tuple[int, ...]:
    """The shape of one of the encoder's weights, from its path below the encoder."""
    hidden, heads = config.hidden_dim, config.num_heads
    head = config.head_dim or hidden // heads
    shapes = {
        "tokens/embeddings": (config.vocabulary_size, hidden),
        "segments/embeddings": (config.num_segments, hidden),
        "position/table": (config.max_length, hidden),
        "query_key_value_kernel": (hidden, 3 * heads * head),
        "query_key_value_bias": (3, heads, head),
        "output_kernel": (heads * head, hidden),
        "expand/kernel": (hidden, config.intermediate_dim),
        "expand/bias": (config.intermediate_dim,),
        "contract/kernel": (config.intermediate_dim, hidden),
    }
    return next((shape for end, shape in shapes.items() if path.endswith(end)), (hidden,))
