"""The common interface of models with a single encoder."""

from kmha.config import EncoderConfig
from kmha.features import PADDING_MASK
from kmha.layers.comparison import unit_vectors
from kmha.layers.pooling import mean_pool
from kmha.models.encoder import TransformerEncoder


class SingleEncoder:
    """Mixin for a `keras.Model` with one encoder and one tokenization."""

    encoder_config: EncoderConfig
    encoder: TransformerEncoder

    @property
    def encoder_configs(self) -> dict[str, EncoderConfig]:
        """The configuration of the encoder."""
        return {"": self.encoder_config}

    @property
    def additions(self) -> list:
        """Kernels of additive inputs of the encoder; if they are zero, nothing is added."""
        return []

    def encoders_of(self, granularity: int) -> list[TransformerEncoder]:
        """The encoders of a granularity: a list of the only one."""
        return [self.encoder]

    def max_sequence_length(self, text_length: int) -> int:
        """Maximum sequence length in the encoder for texts of at most `text_length` tokens."""
        return text_length

    @property
    def vector_dim(self) -> int:
        """Size of a text's vector."""
        return self.encoder_config.hidden_dim

    def encode_tokens(self, features):
        """The vectors of tokens, float [B, T, D]."""
        return self.encoder(features, training=False)

    def pool_tokens(self, x, features):
        """The vector float [B, D] of a text, by default the mean of its tokens' vectors, float [B, T, D]."""
        return mean_pool(x, features[PADDING_MASK])

    def vectors(self, features):
        """Unit vectors float32 [B, D] of texts; for empty rows zeros, unless the model's pooling differs."""
        return unit_vectors([self.pool_tokens(self.encode_tokens(features), features)])

    @classmethod
    def from_config(cls, config, custom_objects=None):
        """Creates the model from `get_config`, in which the encoder's configuration is a dictionary."""
        return cls(**{**config, "encoder": EncoderConfig(**config["encoder"])})
