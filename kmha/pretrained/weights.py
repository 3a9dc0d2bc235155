"""Assigns the weights of a checkpoint to an encoder, which may be smaller."""

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
        if "seed_generator" not in variable.path
    }


def assign_weights(
    encoder: TransformerEncoder,
    weights: Mapping[str, np.ndarray],
    num_layers: int,
    rows: Sequence[int] | None = None,
) -> list[str]:
    """Assigns weights to an encoder.

    An encoder with a smaller max_length takes the first positions; one with fewer blocks takes evenly spaced blocks,
    always with the last one.

    Args:
        encoder: A built encoder.
        weights: Arrays of the checkpoint, by path below its encoder.
        num_layers: Blocks of the checkpoint.
        rows: For each token of the encoder, its row in the checkpoint's token table; None: the same rows.

    Returns:
        Paths of the encoder's weights that the checkpoint lacks; they are unchanged.

    Raises:
        InputError: A weight has a different shape.
    """
    blocks = source_blocks(encoder.config.num_layers, num_layers)
    missing = []
    for path, variable in encoder_variables(encoder).items():
        value = weights.get(_source_path(path, blocks))
        if value is None:
            missing.append(path)
            continue
        if path == _TOKENS and rows is not None:
            value = value[np.asarray(rows)]
        if path == _POSITIONS:
            value = value[: variable.shape[0]]
        if tuple(value.shape) != tuple(variable.shape):
            raise InputError(f"{path} must have shape {list(variable.shape)}, got {list(value.shape)}")
        variable.assign(value)
    return missing


def _source_path(path: str, blocks: Sequence[int]) -> str:
    first, _, rest = path.partition("/")
    return f"block_{blocks[int(first.removeprefix('block_'))]}/{rest}" if first.startswith("block_") else path
