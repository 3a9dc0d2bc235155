"""Maps the tensors of published checkpoints to the weights of an encoder, in both directions."""

import dataclasses
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Literal

import numpy as np

from kmha.config import EncoderConfig
from kmha.errors import InputError, shown

# A checkpoint's kernel is [out, in], an encoder's is [in, out]; one weight may be split into several tensors.
Kind = Literal["table", "kernel", "vector"]


@dataclasses.dataclass(frozen=True)
class Entry:
    """One weight of the encoder and the tensors of a checkpoint that contain it."""

    ours: str  # path of the variable below the encoder
    theirs: tuple[str, ...]  # names of the tensors, in the order in which they are concatenated
    kind: Kind  # "table" is copied, "kernel" is transposed, "vector" is reshaped; several tensors are concatenated

    def theirs_shape(self, shape: Sequence[int]) -> tuple[int, ...]:
        """The shape of each tensor, from the shape of the weight."""
        if self.kind == "table":
            return tuple(shape)
        if self.kind == "kernel":
            return shape[1] // len(self.theirs), shape[0]
        return (int(np.prod(shape)) // len(self.theirs),)

    def to_ours(self, tensors: Sequence[np.ndarray], shape: Sequence[int]) -> np.ndarray:
        """The weight, from the tensors."""
        if self.kind == "table":
            (table,) = tensors
            return table
        if self.kind == "kernel":
            return np.concatenate([tensor.T for tensor in tensors], axis=1)
        return np.concatenate(list(tensors)).reshape(shape)

    def to_theirs(self, weight: np.ndarray) -> list[np.ndarray]:
        """The tensors, from the weight."""
        if self.kind == "table":
            return [weight]
        if self.kind == "kernel":
            return [part.T for part in np.split(weight, len(self.theirs), axis=1)]
        return np.split(weight.reshape(-1), len(self.theirs))


@dataclasses.dataclass(frozen=True)
class Family:
    """The tensor names of a family of checkpoints."""

    prefixes: tuple[str, ...]  # possible prefixes of all names, where the encoder is part of a larger model
    blocks: str  # prefix of the number of a block
    parts: tuple[str, ...]  # query, key, value, output, norm, inner, outer and last norm of a block

    def entries(self, num_layers: int, segments: bool) -> Iterator[Entry]:
        """All weights of an encoder, with or without segments."""
        yield Entry("embedding/tokens/embeddings", ("embeddings.word_embeddings.weight",), "table")
        yield Entry("embedding/position/table", ("embeddings.position_embeddings.weight",), "table")
        if segments:
            yield Entry(
                "embedding/segments/embeddings", ("embeddings.token_type_embeddings.weight",), "table"
            )
        yield from _norm("norm", "embeddings.LayerNorm")
        for i in range(num_layers):
            names = [f"{self.blocks}{i}.{part}" for part in self.parts]
            query, key, value, output, norm, inner, outer, last_norm = names
            attention, feed_forward = f"block_{i}/attention", f"block_{i}/feed_forward"
            fused = f"{attention}/query_key_value"
            yield from _dense(f"{fused}_kernel", f"{fused}_bias", (query, key, value))
            yield from _dense(f"{attention}/output_kernel", f"{attention}/output_bias", (output,))
            yield from _norm(f"{attention}_norm", norm)
            yield from _dense(f"{feed_forward}/expand/kernel", f"{feed_forward}/expand/bias", (inner,))
            yield from _dense(f"{feed_forward}/contract/kernel", f"{feed_forward}/contract/bias", (outer,))
            yield from _norm(f"{feed_forward}_norm", last_norm)


def _norm(ours: str, theirs: str) -> Iterator[Entry]:
    yield Entry(f"{ours}/gamma", (f"{theirs}.weight",), "vector")
    yield Entry(f"{ours}/beta", (f"{theirs}.bias",), "vector")


def _dense(ours_kernel: str, ours_bias: str, theirs: Sequence[str]) -> Iterator[Entry]:
    yield Entry(ours_kernel, tuple(f"{name}.weight" for name in theirs), "kernel")
    yield Entry(ours_bias, tuple(f"{name}.bias" for name in theirs), "vector")


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


FAMILIES = {
    "bert": Family(("", "bert."), "encoder.layer.", _BERT_PARTS),
    "electra": Family(("", "electra."), "encoder.layer.", _BERT_PARTS),
    "distilbert": Family(("", "distilbert."), "transformer.layer.", _DISTILBERT_PARTS),
}


@dataclasses.dataclass(frozen=True)
class Tensor:
    """A tensor in a file, not read yet."""

    origin: str  # the file, for messages
    shape: tuple[int, ...]  # its shape
    read: Callable[
        [], np.ndarray
    ]  # reads it as float32 of that shape; raises InputError if the file is damaged


# Weights of the encoder with their tensors by name.
FoundTensors = list[tuple[Entry, dict[str, Tensor]]]


def find_tensors(
    origin: str, tensors: Mapping[str, Tensor], family: Family, config: EncoderConfig
) -> FoundTensors:
    """Finds the tensors of an encoder without reading them; InputError if they do not fit `config`."""
    prefix = _find_prefix(origin, family.prefixes, tensors)
    found = []
    for entry in family.entries(config.num_layers, config.num_segments > 0):
        expected = entry.theirs_shape(weight_shape(entry.ours, config))
        parts = {}
        for name in (prefix + theirs for theirs in entry.theirs):
            if name not in tensors:
                raise InputError(f"{origin}: expected a tensor {name}, got none of that name")
            if tensors[name].shape != expected:
                raise InputError(
                    f"{tensors[name].origin}: tensor {name} must have shape {list(expected)},"
                    f" got {list(tensors[name].shape)[:8]}"
                )
            parts[name] = tensors[name]
        found.append((entry, parts))
    next_block = f"{prefix}{family.blocks}{config.num_layers}."
    extra = next((name for name in tensors if name.startswith(next_block)), None)
    if extra is not None:
        raise InputError(
            f"{tensors[extra].origin}: expected {config.num_layers} blocks, got a tensor {shown(extra)}"
        )
    return found


def read_weights(found: FoundTensors, config: EncoderConfig) -> dict[str, np.ndarray]:
    """Reads the weights of an encoder, float32, by the path of the variable; InputError if one is not finite."""
    weights = {}
    for entry, parts in found:
        values = []
        for name, tensor in parts.items():
            values.append(tensor.read())
            if not np.isfinite(values[-1]).all():
                raise InputError(f"{tensor.origin}: tensor {name} has numbers that are not finite")
        weights[entry.ours] = entry.to_ours(values, weight_shape(entry.ours, config))
    return weights


def _find_prefix(origin: str, prefixes: tuple[str, ...], tensors: Mapping[str, Tensor]) -> str:
    first = "embeddings.word_embeddings.weight"
    for prefix in prefixes:
        if prefix + first in tensors:
            return prefix
    some = ", ".join(shown(name) for name in sorted(tensors)[:3])
    raise InputError(f"{origin}: expected a tensor {first}, got {f'{some}, …' if some else 'none'}")


def weight_shape(path: str, config: EncoderConfig) -> tuple[int, ...]:
    """The shape of a weight, from its path below the encoder."""
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
