"""Layers for words: their spelling, with hashed features (affixes, lower-cased word, shape), and local context.

Character ids are 1 + code point; 0 = no character, after the word only.
"""

import keras
from keras import ops

from kmha.layers.configurable_layer import ConfigurableLayer
from kmha.layers.dropout import Dropout
from kmha.layers.embedding import Table

LONGEST_AFFIX = 4
# First and last code point of capital letters, and the distance to their lower-case letters.
CAPITALS = ((65, 90, 32), (192, 214, 32), (216, 222, 32), (913, 937, 32), (1024, 1039, 80), (1040, 1071, 32))
DIGITS, SMALL, LETTERS_FROM = (48, 57), (97, 122), 170
# Factors of positions and hashes are below this, so that sums of products fit in int32.
_PRIME = 8191
# Factors of the runs of a shape in its hash; later runs have the last factor.
_RUN_WEIGHTS = (31, 1009, 4903, 7001, 3571, 5689)


def _between(ids, first: int, last: int):
    return ops.logical_and(ids > first, ids <= last + 1)


def lower_case(character_ids):
    """Lower-cases Latin, Greek and Cyrillic capitals in character ids, int32 [N, L]."""
    low = character_ids
    for first, last, distance in CAPITALS:
        low = ops.where(_between(character_ids, first, last), character_ids + distance, low)
    return low


def affix_buckets(character_ids, buckets: int):
    """Buckets int32 [N, 8] of prefixes and suffixes of 1 to 4 characters, from ids int32 [N, L], L at least 4.

    With at most 2^16 buckets int32 cannot overflow.
    """
    length = ops.shape(character_ids)[1]
    count = ops.sum(ops.cast(character_ids > 0, "int32"), axis=1, keepdims=True)  # [N, 1]
    places = ops.expand_dims(ops.arange(length, dtype="int32"), 0)
    found = []
    for step in (1, -1):
        hashed = ops.zeros_like(count[:, 0])
        for number in range(LONGEST_AFFIX):
            place = number if step > 0 else count - 1 - number
            # Negative places match no character.
            taken = ops.sum(ops.where(places == place, character_ids, 0), axis=1)
            hashed = (hashed * _PRIME + taken + 1) % buckets
            # Distinguishes the prefix "a" from the suffix "a".
            found.append((hashed * _PRIME + step + 1) % buckets)
    return ops.stack(found, axis=1)


def whole_bucket(character_ids, buckets: int):
    """The bucket int32 [N] of the whole word, from ids int32 [N, L] below 2^12, L at most 64."""
    places = ops.arange(ops.shape(character_ids)[1], dtype="int32")
    weights = (places * places * 613 + places * 1297 + 4801) % _PRIME
    return ops.sum(character_ids * weights, axis=1) % buckets


def shape_bucket(character_ids, buckets: int):
    """The bucket int32 [N] of a word's shape, the same for "Anna" and "Bo", from ids as in `whole_bucket`.

    Capitals, other letters and digits are one kind each; runs of a kind count once.
    """
    ids = character_ids
    capital = ops.not_equal(lower_case(ids), ids)
    letter = ops.logical_or(_between(ids, *SMALL), ids > LETTERS_FROM)
    kind = ops.where(letter, 2, ops.where(_between(ids, *DIGITS), 3, ids + 4))
    kind = ops.where(ids > 0, ops.where(capital, 1, kind), 0)
    before = ops.pad(kind, ((0, 0), (1, 0)))[:, :-1]
    first = ops.cast(ops.not_equal(kind, before), "int32")  # of a run
    run = ops.minimum(ops.cumsum(first, axis=1), len(_RUN_WEIGHTS)) - 1
    weights = sum(
        weight * ops.cast(ops.equal(run, place), "int32") for place, weight in enumerate(_RUN_WEIGHTS)
    )
    # Distinguishes shapes from whole words with the same hash.
    return (ops.sum(kind * first * weights, axis=1) + 17_011) % buckets


FILTER_WIDTHS = (2, 3, 4)
FEATURE_BUCKETS = 32_771
# Affixes of four characters identify nearly every word: without dropout they are memorized.
FEATURE_DROPOUT = 0.4
LOWEST = -60_000.0  # finite in float16 too


@keras.saving.register_keras_serializable(package="kmha")
class SpellingEncoder(ConfigurableLayer):
    """Encodes the characters of words: convolutions with max pooling, plus embeddings of hashed features.

    The features are prefixes, suffixes, the lower-cased word and its shape. With them, a few words suffice to learn
    what "-ing" or all capitals mean.

    Args:
        num_characters: Rows of the character table; row 0 is for no character.
        dim: Size of a word's vector.
        character_dim: Size of a character's vector.
        dropout: Dropout rate of characters' vectors; above 0, features have dropout too.

    Call:
        character_ids: int32 [B, W, L], 1 + code point; 0 = no character, after the word only.
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
        self.character_dropout = Dropout(dropout, name="character_dropout", dtype=self.dtype_policy)
        self.filters = [
            keras.layers.Conv1D(dim, width, padding="same", name=f"width_{width}", dtype=self.dtype_policy)
            for width in FILTER_WIDTHS
        ]
        self.features = Table(
            FEATURE_BUCKETS, dim, embeddings_initializer="zeros", name="features", dtype=self.dtype_policy
        )
        self.feature_dropout = Dropout(
            FEATURE_DROPOUT if dropout else 0.0, name="feature_dropout", dtype=self.dtype_policy
        )
        self.projection = keras.layers.Dense(dim, name="projection", dtype=self.dtype_policy)

    def build(self, ids_shape):
        """Builds all parts."""
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
        # Positions after the word must not be the maximum.
        floor = (1.0 - there) * LOWEST
        found = [ops.max(each(x) * there + floor, axis=1) for each in self.filters]
        any_there = ops.max(there, axis=1)
        x = ops.gelu(ops.concatenate(found, axis=-1) * any_there)
        features = self.features(_features(ids))  # [B·W, 10, D]
        feature_mask = self.feature_dropout(ops.ones_like(features[..., :1]), training=training)
        return ops.reshape(
            (self.projection(x) + ops.sum(features * feature_mask, axis=1)) * any_there, (-1, width, self.dim)
        )


def _features(ids):
    low = lower_case(ids)
    alone = [whole_bucket(low, FEATURE_BUCKETS), shape_bucket(ids, FEATURE_BUCKETS)]
    return ops.concatenate([affix_buckets(low, FEATURE_BUCKETS), ops.stack(alone, axis=1)], axis=1)


@keras.saving.register_keras_serializable(package="kmha")
class LocalContext(ConfigurableLayer):
    """Adds a convolution over the adjacent positions to each position.

    Attention must learn from data which positions are adjacent. With a few thousand rows this costs accuracy in tasks
    that depend on word order, such as tagging.

    Args:
        width: Width of the convolution; odd.
        dropout: Dropout rate of its inputs.

    Call:
        inputs: float [B, T, D].
        padding_mask: int32 [B, T]; 1 = a real position. Others are zeros in the convolution.
        Returns float [B, T, D].

    Raises:
        ValueError: The width is not an odd number of at least 1.
    """

    def __init__(self, width: int = 5, dropout: float = 0.1, **kwargs):
        super().__init__(**kwargs)
        if width < 1 or width % 2 == 0:
            raise ValueError(f"width must be an odd number of at least 1, got {width}")
        self.width, self.dropout = width, dropout
        self.input_dropout = Dropout(dropout, name="input_dropout", dtype=self.dtype_policy)

    def build(self, inputs_shape):
        """Creates the convolution."""
        dim = inputs_shape[-1]
        self.convolution = keras.layers.Conv1D(
            dim, self.width, padding="same", name="convolution", dtype=self.dtype_policy
        )
        self.convolution.build((None, None, dim))

    def call(self, inputs, padding_mask, training=None):
        """See the class."""
        mask = ops.cast(ops.expand_dims(padding_mask, -1), inputs.dtype)
        seen = self.convolution(self.input_dropout(inputs * mask, training=training))
        return inputs + ops.gelu(seen)
