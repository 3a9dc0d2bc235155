"""How a word is spelt: its characters, its beginnings and ends, its letters without case, its shape."""

import keras
from keras import ops

from kmha.layers.table import Table
from kmha.layers.word_hashes import affix_buckets, lowered, shape_bucket, whole_bucket

FILTER_WIDTHS = (2, 3, 4)
FEATURE_BUCKETS = 32_771
# Four beginnings and ends name nearly every word: without this each would be learnt by heart.
FEATURE_DROPOUT = 0.4
LOWEST = -60_000.0  # finite in float16 too


@keras.saving.register_keras_serializable(package="kmha")
class SpellingEncoder(keras.layers.Layer):
    """Encodes how words are spelt: convolutions over their characters, and vectors of what stands out in them.

    Of each filter the largest value counts. How a word begins and ends, its letters whatever their case, and its shape
    have vectors of their own by a hash: few words suffice to learn that one ends in "-ing" or is all capitals.

    Args:
        num_characters: Rows of the table of characters; 0 stands for none.
        dim: Size of a word's vector.
        character_dim: Size of a character's vector.
        dropout: Probability of dropping a value of a character's vector; above 0, features are dropped too.

    Call:
        character_ids: int32 [B, W, L], 1 + code point; 0 = no character, only behind the word.
        Returns float [B, W, D]; zeros for a word without characters.
    Source: Chiu and Nichols 2016, arXiv:1511.08308; Ma and Hovy 2016, arXiv:1603.01354.
    """

    def __init__(
        self, num_characters: int, dim: int, character_dim: int = 32, dropout: float = 0.1, **kwargs
    ):
        super().__init__(**kwargs)
        self.num_characters, self.dim = num_characters, dim
        self.character_dim, self.dropout = character_dim, dropout
        self.table = Table(num_characters, character_dim, name="characters", dtype=self.dtype_policy)
        self.character_dropout = keras.layers.Dropout(
            dropout, name="character_dropout", dtype=self.dtype_policy
        )
        self.filters = [
            keras.layers.Conv1D(dim, width, padding="same", name=f"width_{width}", dtype=self.dtype_policy)
            for width in FILTER_WIDTHS
        ]
        self.features = Table(
            FEATURE_BUCKETS, dim, embeddings_initializer="zeros", name="features", dtype=self.dtype_policy
        )
        self.feature_dropout = keras.layers.Dropout(
            FEATURE_DROPOUT if dropout else 0.0, name="feature_dropout", dtype=self.dtype_policy
        )
        self.projection = keras.layers.Dense(dim, name="projection", dtype=self.dtype_policy)

    def build(self, ids_shape):
        """Builds each part."""
        inner = (None, None, self.character_dim)
        self.table.build((None, None))
        self.character_dropout.build(inner)
        for each in self.filters:
            each.build(inner)
        self.features.build((None, None))
        self.feature_dropout.build((None, None, 1))
        self.projection.build((None, None, self.dim * len(self.filters)))

    def call(self, character_ids, training=None):
        """See the class."""
        width, longest = ops.shape(character_ids)[1], ops.shape(character_ids)[2]
        ids = ops.reshape(character_ids, (-1, longest))  # [B·W, L]
        there = ops.cast(ops.expand_dims(ids > 0, -1), self.compute_dtype)
        x = self.character_dropout(self.table(ids), training=training) * there
        # What stands past the word's end must not win.
        floor = (1.0 - there) * LOWEST
        found = [ops.max(each(x) * there + floor, axis=1) for each in self.filters]
        any_there = ops.max(there, axis=1)
        x = ops.gelu(ops.concatenate(found, axis=-1) * any_there)
        features = self.features(_features(ids))  # [B·W, 10, D]
        kept = self.feature_dropout(ops.ones_like(features[..., :1]), training=training)
        return ops.reshape(
            (self.projection(x) + ops.sum(features * kept, axis=1)) * any_there, (-1, width, self.dim)
        )

    def get_config(self):
        """The constructor's arguments."""
        return {
            **super().get_config(),
            "num_characters": self.num_characters,
            "dim": self.dim,
            "character_dim": self.character_dim,
            "dropout": self.dropout,
        }


def _features(ids):
    low = lowered(ids)
    alone = [whole_bucket(low, FEATURE_BUCKETS), shape_bucket(ids, FEATURE_BUCKETS)]
    return ops.concatenate([affix_buckets(low, FEATURE_BUCKETS), ops.stack(alone, axis=1)], axis=1)
