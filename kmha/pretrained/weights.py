"""Puts the weights of a checkpoint into an encoder, as far as the encoder is a part of it."""

from collections.abc import Mapping, Sequence

import numpy as np

from kmha.errors import InputError
from kmha.models.encoder import TransformerEncoder
from kmha.pretrained.checkpoint import source_blocks

_TOKENS, _POSITIONS = "embedding/tokens/embeddings", "embedding/position/table"


def encoder_variables(encoder: TransformerEncoder) -> dict:
    """The weights of a built encoder by their path below it."""
    prefix = encoder.embedding.tokens.embeddings.path.removesuffix(_TOKENS)
    return {
        variable.path.removeprefix(prefix): variable
        for variable in encoder.weights
        if not variable.path.startswith("seed_generator") and "seed_generator" not in variable.path
    }


def assign_weights(
    encoder: TransformerEncoder,
    weights: Mapping[str, np.ndarray],
    num_layers: int,
    rows: Sequence[int] | None = None,
) -> list[str]:
    """Puts weights into an encoder.

    A shorter encoder takes the first positions; one with fewer blocks takes blocks evenly spread, the last one always.

    Args:
        encoder: A built encoder.
        weights: Arrays by path below the encoder they are from.
        num_layers: Blocks of that encoder.
        rows: For each of our tokens the row of its vector in the table of tokens; None: the same.

    Returns:
        Paths of the encoder's weights that stay as they were, for there are none to take.

    Raises:
        InputError: A weight has another shape.
    """
    kept = source_blocks(encoder.config.num_layers, num_layers)
    untouched = []
    for path, variable in encoder_variables(encoder).items():
        value = weights.get(_source(path, kept))
        if value is None:
            untouched.append(path)
            continue
        if path == _TOKENS and rows is not None:
            value = value[np.asarray(rows)]
        if path == _POSITIONS:
            value = value[: variable.shape[0]]
        if tuple(value.shape) != tuple(variable.shape):
            raise InputError(f"{path} must have shape {list(variable.shape)}, got {list(value.shape)}")
        variable.assign(value)
    return untouched


def _source(path: str, kept: Sequence[int]) -> str:
    first, _, rest = path.partition("/")
    return f"block_{kept[int(first.removeprefix('block_'))]}/{rest}" if first.startswith("block_") else path
