"""A checkpoint as a text encoder: its encoder with weights, and a preprocessor."""

import dataclasses

from kmha.errors import InputError
from kmha.features import text_shapes
from kmha.models.encoder import TransformerEncoder
from kmha.models.single_encoder import SingleEncoder
from kmha.pretrained.checkpoint import Checkpoint
from kmha.pretrained.weights import assign_weights
from kmha.text.preprocessor import Preprocessor


class CheckpointEncoder(SingleEncoder):
    """A checkpoint's encoder without a head; the vector of a text is the mean of its tokens' vectors.

    Args:
        checkpoint: A pretrained encoder.

    Raises:
        InputError: The weights are damaged, incomplete or have different shapes.
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
    """A model for `kmha.inference.vectors.TextVectors`.

    Attributes:
        model: The encoder.
        preprocessor: The preprocessor with the checkpoint's tokenization.
    """

    model: CheckpointEncoder
    preprocessor: Preprocessor


def load_text_encoder(checkpoint: Checkpoint, max_length: int) -> TextEncoder:
    """The encoder and the preprocessor of a checkpoint.

    Args:
        checkpoint: A pretrained encoder.
        max_length: Maximum tokens of a text, special tokens included.

    Raises:
        InputError: max_length is more than the checkpoint's positions, or its weights cannot be used.
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
