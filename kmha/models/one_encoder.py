"""What models with a single encoder tell of it."""

from kmha.config import EncoderConfig
from kmha.models.encoder import TransformerEncoder


class OneEncoder:
    """A model of one encoder, whose texts are cut in one way; beside `keras.Model` among the bases."""

    encoder_config: EncoderConfig
    encoder: TransformerEncoder

    @property
    def encoder_configs(self) -> dict[str, EncoderConfig]:
        """The shape of the only encoder."""
        return {"": self.encoder_config}

    @property
    def additions(self) -> list:
        """Kernels of what a model adds to what enters or leaves the blocks of an encoder; zero, they add nothing."""
        return []

    def encoders_of(self, granularity: int) -> list[TransformerEncoder]:
        """The encoders of a granularity: the only one."""
        return [self.encoder]

    def most_tokens(self, text_length: int) -> int:
        """The longest sequence that the encoder meets when a text has at most so many tokens."""
        return text_length
