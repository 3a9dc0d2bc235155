"""What models with a single encoder tell of it."""

from kmha.config import EncoderConfig
from kmha.features import PADDING_MASK
from kmha.layers.comparison import unit_vectors
from kmha.layers.pooling import mean_pool
from kmha.models.encoder import TransformerEncoder


class SingleEncoder:
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

    def max_sequence_length(self, text_length: int) -> int:
        """The longest sequence that the encoder meets when a text has at most so many tokens."""
        return text_length

    @property
    def vector_dim(self) -> int:
        """Size of a text's vector."""
        return self.encoder_config.hidden_dim

    def encode_tokens(self, features):
        """The vectors of tokens, float [B, T, D], as the model's head reads them."""
        return self.encoder(features, training=False)

    def pool_tokens(self, x, features):
        """The vector float [B, D] of a text's tokens, float [B, T, D]: their mean, where a model has no own way."""
        return mean_pool(x, features[PADDING_MASK])

    def vectors(self, features):
        """Unit vectors of texts, whose products are cosines.

        Args:
            features: As of the model's call, int32.

        Returns:
            float32 [B, D]; zeros of a row without tokens, unless the model makes something else of none.
        """
        return unit_vectors([self.pool_tokens(self.encode_tokens(features), features)])
