"""From tokens to words and from characters to words."""

import keras
from keras import ops

MODES = ("first", "mean")
FILTER_WIDTHS = (2, 3, 4)
LONGEST_AFFIX, AFFIX_BUCKETS = 4, 32_749
LOWEST = -60_000.0  # finite in float16 too


def first_token_weights(word_starts, length):
    """Which token is each word's first, float32 [B, W, T], 0 or 1.

    Args:
        word_starts: int32 [B, W], the place of each word's first token; 0 = no word.
        length: T.
    """
    starts = ops.expand_dims(word_starts, -1)  # [B, W, 1]
    found = ops.logical_and(ops.equal(starts, ops.arange(length, dtype="int32")), starts > 0)
    return ops.cast(found, "float32")


def mean_token_weights(word_starts, padding_mask):
    """How much each token counts in each word's mean, float32 [B, W, T]; the words may stand in any order.

    Args:
        word_starts: int32 [B, W], the place of each word's first token; 0 = no word.
        padding_mask: int32 [B, T]; 1 = a real token. The last real one belongs to no word.
    """
    places = ops.arange(ops.shape(padding_mask)[1], dtype="int32")
    last = ops.max(ops.cast(padding_mask, "int32") * places, axis=1)  # [B]
    starts, others = ops.expand_dims(word_starts, 2), ops.expand_dims(word_starts, 1)
    # A word ends where the next one starts.
    next_starts = ops.where(others > starts, others, ops.reshape(last, (-1, 1, 1)))
    ends = ops.expand_dims(ops.min(next_starts, axis=2), -1)  # [B, W, 1]
    inside = ops.logical_and(ops.logical_and(starts > 0, places >= starts), places < ends)
    weights = ops.cast(inside, "float32")
    return weights / ops.maximum(ops.sum(weights, axis=-1, keepdims=True), 1.0)


def affix_buckets(character_ids, buckets: int):
    """Buckets of how words begin and end: of their first and last 1 to 4 characters.

    Args:
        character_ids: int32 [N, L], L at least 4; 0 = no character, only behind the word.
        buckets: At most 2^16, so that int32 cannot overflow.

    Returns:
        int32 [N, 8] in [0, buckets).
    """
    length = ops.shape(character_ids)[1]
    count = ops.sum(ops.cast(character_ids > 0, "int32"), axis=1, keepdims=True)  # [N, 1]
    places = ops.expand_dims(ops.arange(length, dtype="int32"), 0)
    found = []
    for step in (1, -1):
        hashed = ops.zeros_like(count[:, 0])
        for number in range(LONGEST_AFFIX):
            place = number if step > 0 else count - 1 - number
            # A place before the word holds no character.
            taken = ops.sum(ops.where(places == place, character_ids, 0), axis=1)
            hashed = (hashed * 8191 + taken + 1) % buckets
            # So that "a" as a beginning is not "a" as an end.
            found.append((hashed * 8191 + step + 1) % buckets)
    return ops.stack(found, axis=1)


@keras.saving.register_keras_serializable(package="kmha")
class SpellingEncoder(keras.layers.Layer):
    """Encodes how words are spelt: convolutions over their characters, and vectors of how they begin and end.

    Of each filter the largest value counts. Beginnings and ends of up to four characters have vectors of their own by a
    hash, since few words suffice to learn that one ends in "-ing".

    Args:
        num_characters: Rows of the table of characters; 0 stands for none.
        dim: Size of a word's vector.
        character_dim: Size of a character's vector.
        dropout: Probability of dropping a value of a character's vector.

    Call:
        character_ids: int32 [B, W, L]; 0 = no character.
        Returns float [B, W, D]; zeros for a word without characters.
    Source: Chiu and Nichols 2016, arXiv:1511.08308; Ma and Hovy 2016, arXiv:1603.01354.
    """

    def __init__(
        self, num_characters: int, dim: int, character_dim: int = 32, dropout: float = 0.1, **kwargs
    ):
        super().__init__(**kwargs)
        self.num_characters, self.dim = num_characters, dim
        self.character_dim, self.dropout = character_dim, dropout
        self.table = keras.layers.Embedding(
            num_characters, character_dim, name="characters", dtype=self.dtype_policy
        )
        self.character_dropout = keras.layers.Dropout(
            dropout, name="character_dropout", dtype=self.dtype_policy
        )
        self.filters = [
            keras.layers.Conv1D(dim, width, padding="same", name=f"width_{width}", dtype=self.dtype_policy)
            for width in FILTER_WIDTHS
        ]
        self.affixes = keras.layers.Embedding(
            AFFIX_BUCKETS, dim, embeddings_initializer="zeros", name="affixes", dtype=self.dtype_policy
        )
        self.projection = keras.layers.Dense(dim, name="projection", dtype=self.dtype_policy)

    def build(self, ids_shape):
        """Builds each part."""
        inner = (None, None, self.character_dim)
        self.table.build((None, None))
        self.character_dropout.build(inner)
        for each in self.filters:
            each.build(inner)
        self.affixes.build((None, None))
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
        affixes = ops.sum(self.affixes(affix_buckets(ids, AFFIX_BUCKETS)), axis=1)
        return ops.reshape((self.projection(x) + affixes) * any_there, (-1, width, self.dim))

    def get_config(self):
        """The constructor's arguments."""
        return {
            **super().get_config(),
            "num_characters": self.num_characters,
            "dim": self.dim,
            "character_dim": self.character_dim,
            "dropout": self.dropout,
        }
