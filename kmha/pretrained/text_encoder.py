"""A checkpoint as something that reads texts: its encoder with its weights, and what cuts texts for it."""

import dataclasses

from kmha.errors import InputError
from kmha.features import text_shapes
from kmha.models.encoder import TransformerEncoder
from kmha.models.single_encoder import SingleEncoder
from kmha.pretrained.checkpoint import Checkpoint
from kmha.pretrained.weights import assign_weights
from kmha.text.preprocessor import Preprocessor


class CheckpointEncoder(SingleEncoder):
    """A checkpoint's encoder, without anything on top; the vector of a text is the mean of its tokens'.

    Args:
        checkpoint: Where shape and weights come from.

    Raises:
        InputError: The weights are damaged or have other shapes.
    """

    def __init__(self, checkpoint: Checkpoint):
        self.encoder_config = checkpoint.config
        self.encoder = TransformerEncoder(checkpoint.config, name="encoder", dtype="float32")
        self.encoder.build(text_shapes())
        missing = assign_weights(self.encoder, checkpoint.read_weights(), checkpoint.config.num_layers)
        if missing:
            raise InputError(f"{checkpoint.origin}: expected weights for {', '.join(missing)}, got none")


@dataclasses.dataclass(frozen=True)
class TextEncoder:
    """Reads texts with a checkpoint's encoder; `kmha.inference.vectors.TextVectors` gives their vectors.

    Attributes:
        model: The encoder.
        preprocessor: Cuts texts as the checkpoint wants them.
    """

    model: CheckpointEncoder
    preprocessor: Preprocessor


def load_text_encoder(checkpoint: Checkpoint, max_length: int) -> TextEncoder:
    """The encoder of a checkpoint and its preprocessor.

    Args:
        checkpoint: A published one.
        max_length: Tokens read of a text, special ones included.

    Raises:
        InputError: max_length is more than the checkpoint has positions, or its weights cannot be used.
    """
    positions = checkpoint.config.max_length
    if max_length > positions:
        raise InputError(
            f"max_length must be at most the {positions} positions of {checkpoint.origin}, got {max_length}"
        )
    preprocessor = Preprocessor(
        checkpoint.vocabulary, checkpoint.tokenization, checkpoint.lower_case, max_length
    )
    return TextEncoder(CheckpointEncoder(checkpoint), preprocessor)
