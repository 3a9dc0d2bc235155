"""How a word is spelt: its characters, its beginnings and ends, its letters without case, its shape."""

import keras
from keras import ops

from kmha.layers.table import Table

LONGEST_AFFIX = 4
# Capitals, first and last code point, and how far behind them their small letters stand.
CAPITALS = ((65, 90, 32), (192, 214, 32), (216, 222, 32), (913, 937, 32), (1024, 1039, 80), (1040, 1071, 32))
DIGITS, SMALL, LETTERS_FROM = (48, 57), (97, 122), 170
# Below it stays what a place, or a hash before, is multiplied by: sums of products fit into int32.
_PRIME = 8191
# What the runs of a shape weigh in its hash; later ones weigh as much as the last.
_RUN_WEIGHTS = (31, 1009, 4903, 7001, 3571, 5689)


def _between(ids, first: int, last: int):
    return ops.logical_and(ids > first, ids <= last + 1)


def lowered(character_ids):
    """The same ids with small letters for the capitals of Latin, Greek and Cyrillic, int32 [N, L]."""
    low = character_ids
    for first, last, distance in CAPITALS:
        low = ops.where(_between(character_ids, first, last), character_ids + distance, low)
    return low


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
            hashed = (hashed * _PRIME + taken + 1) % buckets
            # So that "a" as a beginning is not "a" as an end.
            found.append((hashed * _PRIME + step + 1) % buckets)
    return ops.stack(found, axis=1)


def whole_bucket(character_ids, buckets: int):
    """The bucket of a word as a whole.

    Args:
        character_ids: int32 [N, L], below 2^12, L at most 64; 0 = no character.
        buckets: How many.

    Returns:
        int32 [N] in [0, buckets).
    """
    places = ops.arange(ops.shape(character_ids)[1], dtype="int32")
    weights = (places * places * 613 + places * 1297 + 4801) % _PRIME
    return ops.sum(character_ids * weights, axis=1) % buckets


def shape_bucket(character_ids, buckets: int):
    """The bucket of a word's shape: capitals, other letters and digits are each one kind, runs of a kind count once.

    Args:
        character_ids: int32 [N, L], below 2^12, L at most 64; 0 = no character, only behind the word.
        buckets: How many.

    Returns:
        int32 [N] in [0, buckets); the same for "Anna" and "Bo".
    """
    ids = character_ids
    capital = ops.not_equal(lowered(ids), ids)
    letter = ops.logical_or(_between(ids, *SMALL), ids > LETTERS_FROM)
    kind = ops.where(letter, 2, ops.where(_between(ids, *DIGITS), 3, ids + 4))
    kind = ops.where(ids > 0, ops.where(capital, 1, kind), 0)
    before = ops.pad(kind, ((0, 0), (1, 0)))[:, :-1]
    first = ops.cast(ops.not_equal(kind, before), "int32")  # of a run
    run = ops.minimum(ops.cumsum(first, axis=1), len(_RUN_WEIGHTS)) - 1
    weights = sum(
        weight * ops.cast(ops.equal(run, place), "int32") for place, weight in enumerate(_RUN_WEIGHTS)
    )
    # Other than a whole word's bucket of the same number.
    return (ops.sum(kind * first * weights, axis=1) + 17_011) % buckets


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
