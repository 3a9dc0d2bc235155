"""Tensors that lie in files: what is known of them before they are read, and the weights of an encoder from them."""

import dataclasses
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Literal

import numpy as np

from kmha.config import EncoderConfig
from kmha.errors import InputError
from kmha.pretrained.json_file import shown

# A kernel of theirs is [out, in], one of ours [in, out]; several of theirs may be parts of one of ours.
Kind = Literal["table", "kernel", "vector"]


@dataclasses.dataclass(frozen=True)
class Entry:
    """One weight of our encoder and the tensors of a checkpoint that hold it.

    Attributes:
        ours: Path of the variable below the encoder.
        theirs: Names of the tensors, in the order in which they make up ours.
        kind: "table" is taken as it is, a "kernel" transposed, a "vector" reshaped; several are joined.
    """

    ours: str
    theirs: tuple[str, ...]
    kind: Kind

    def theirs_shape(self, shape: Sequence[int]) -> tuple[int, ...]:
        """The shape of each of their tensors, from that of ours."""
        if self.kind == "table":
            return tuple(shape)
        if self.kind == "kernel":
            return shape[1] // len(self.theirs), shape[0]
        return (int(np.prod(shape)) // len(self.theirs),)

    def to_ours(self, tensors: Sequence[np.ndarray], shape: Sequence[int]) -> np.ndarray:
        """Our weight of that shape, from their tensors."""
        if self.kind == "table":
            (table,) = tensors
            return table
        if self.kind == "kernel":
            return np.concatenate([tensor.T for tensor in tensors], axis=1)
        return np.concatenate(list(tensors)).reshape(shape)

    def to_theirs(self, weight: np.ndarray) -> list[np.ndarray]:
        """Their tensors, from our weight."""
        if self.kind == "table":
            return [weight]
        if self.kind == "kernel":
            return [part.T for part in np.split(weight, len(self.theirs), axis=1)]
        return np.split(weight.reshape(-1), len(self.theirs))


@dataclasses.dataclass(frozen=True)
class Family:
    """How a family of checkpoints names its tensors.

    Attributes:
        prefixes: What may stand before every name, where the encoder is part of a larger model.
        blocks: What stands before the number of a block.
        entries: The table, from the number of blocks and whether there are segments.
    """

    prefixes: tuple[str, ...]
    blocks: str
    entries: Callable[[int, bool], Iterator[Entry]]


def _norm(ours: str, theirs: str) -> Iterator[Entry]:
    yield Entry(f"{ours}/gamma", (f"{theirs}.weight",), "vector")
    yield Entry(f"{ours}/beta", (f"{theirs}.bias",), "vector")


def _dense(ours_kernel: str, ours_bias: str, theirs: Sequence[str]) -> Iterator[Entry]:
    yield Entry(ours_kernel, tuple(f"{name}.weight" for name in theirs), "kernel")
    yield Entry(ours_bias, tuple(f"{name}.bias" for name in theirs), "vector")


def _embeddings(segments: bool) -> Iterator[Entry]:
    yield Entry("embedding/tokens/embeddings", ("embeddings.word_embeddings.weight",), "table")
    yield Entry("embedding/position/table", ("embeddings.position_embeddings.weight",), "table")
    if segments:
        yield Entry("embedding/segments/embeddings", ("embeddings.token_type_embeddings.weight",), "table")
    yield from _norm("norm", "embeddings.LayerNorm")


def _block(ours: str, theirs: str, parts: Sequence[str]) -> Iterator[Entry]:
    """A block: their names of query, key, value, output, its norm, inner, outer, its norm."""
    query, key, value, output, norm, inner, outer, last_norm = (f"{theirs}.{part}" for part in parts)
    attention, feed_forward = f"{ours}/attention", f"{ours}/feed_forward"
    yield from _dense(
        f"{attention}/query_key_value_kernel", f"{attention}/query_key_value_bias", (query, key, value)
    )
    yield from _dense(f"{attention}/output_kernel", f"{attention}/output_bias", (output,))
    yield from _norm(f"{ours}/attention_norm", norm)
    yield from _dense(f"{feed_forward}/expand/kernel", f"{feed_forward}/expand/bias", (inner,))
    yield from _dense(f"{feed_forward}/contract/kernel", f"{feed_forward}/contract/bias", (outer,))
    yield from _norm(f"{ours}/feed_forward_norm", last_norm)


_BERT_BLOCKS, _DISTILBERT_BLOCKS = "encoder.layer.", "transformer.layer."
_BERT_PARTS = (
    "attention.self.query",
    "attention.self.key",
    "attention.self.value",
    "attention.output.dense",
    "attention.output.LayerNorm",
    "intermediate.dense",
    "output.dense",
    "output.LayerNorm",
)
_DISTILBERT_PARTS = (
    "attention.q_lin",
    "attention.k_lin",
    "attention.v_lin",
    "attention.out_lin",
    "sa_layer_norm",
    "ffn.lin1",
    "ffn.lin2",
    "output_layer_norm",
)


def _bert(num_layers: int, segments: bool) -> Iterator[Entry]:
    yield from _embeddings(segments)
    for i in range(num_layers):
        yield from _block(f"block_{i}", f"{_BERT_BLOCKS}{i}", _BERT_PARTS)


def _distilbert(num_layers: int, segments: bool) -> Iterator[Entry]:
    yield from _embeddings(segments)
    for i in range(num_layers):
        yield from _block(f"block_{i}", f"{_DISTILBERT_BLOCKS}{i}", _DISTILBERT_PARTS)


FAMILIES = {
    "bert": Family(("", "bert."), _BERT_BLOCKS, _bert),
    "electra": Family(("", "electra."), _BERT_BLOCKS, _bert),
    "distilbert": Family(("", "distilbert."), _DISTILBERT_BLOCKS, _distilbert),
}


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
FoundTensors = list[tuple[Entry, dict[str, Tensor]]]


def find_tensors(
    where: str, tensors: Mapping[str, Tensor], family: Family, config: EncoderConfig
) -> FoundTensors:
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


def read_weights(parts: FoundTensors, config: EncoderConfig) -> dict[str, np.ndarray]:
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
