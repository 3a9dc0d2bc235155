"""Assigns the weights of a checkpoint to an encoder, which may be smaller, and makes a text encoder of a checkpoint."""

import dataclasses
from collections.abc import Mapping, Sequence

import numpy as np

from kmha.errors import InputError, format_names
from kmha.features import text_shapes
from kmha.models.encoder import SingleEncoder, TransformerEncoder
from kmha.pretrained.checkpoint import Checkpoint, source_blocks
from kmha.text.preprocessor import Preprocessor

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
    """Assigns weights by path to a built encoder; returns the paths that the checkpoint lacks, which are unchanged.

    An encoder with a smaller max_length takes the first positions; one with fewer than the checkpoint's `num_layers`
    takes evenly spaced blocks, always with the last one. `rows` has each token's row in the checkpoint's token table
    (None: the same rows). Raises InputError if a weight has a different shape.
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


class CheckpointEncoder(SingleEncoder):
    """A checkpoint's encoder without a head; the vector of a text is the mean of its tokens' vectors."""

    def __init__(self, checkpoint: Checkpoint):
        self.encoder_config = checkpoint.config
        self.encoder = TransformerEncoder(checkpoint.config, name="encoder", dtype="float32")
        self.encoder.build(text_shapes())
        missing = assign_weights(self.encoder, checkpoint.read_weights(), checkpoint.config.num_layers)
        if missing:
            raise InputError(f"{checkpoint.origin}: expected weights for {format_names(missing)}, got none")


@dataclasses.dataclass(frozen=True)
class TextEncoder:
    """A checkpoint's encoder and preprocessor, for `kmha.inference.retrieval.TextVectors`."""

    model: CheckpointEncoder
    preprocessor: Preprocessor


def load_text_encoder(checkpoint: Checkpoint, max_length: int) -> TextEncoder:
    """The encoder and the preprocessor of a checkpoint; `max_length` counts the special tokens too."""
    positions = checkpoint.config.max_length
    if max_length > positions:
        raise InputError(
            f"max_length must be at most the {positions} positions of {checkpoint.origin}, got {max_length}"
        )
    preprocessor = Preprocessor(
        checkpoint.vocabulary, checkpoint.tokenization, checkpoint.lower_case, max_length
    )
    return TextEncoder(CheckpointEncoder(checkpoint), preprocessor)
