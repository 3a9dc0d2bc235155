"""Scores of a linear chain's features of words, as a layer: spelling, shape, and the words next to each word."""

import keras
import numpy as np
from keras import ops

from kmha.features import SPELLING_LENGTH
from kmha.layers.configurable_layer import ConfigurableLayer
from kmha.layers.embedding import FINGERPRINT_MODULUS, MULTIPLIER, Table
from kmha.layers.linear_ngrams import LARGEST_TABLE, known_rows, packed_keys
from kmha.layers.words import LONGEST_AFFIX, lower_case, shape_bucket

HASHES = LARGEST_TABLE
TRIGRAM = 3
# Sums of 20 products of character ids below 2**12 and these weights are below 2**31.
_WEIGHTS = np.array([pow(7, place + 1, 24_593) for place in range(SPELLING_LENGTH)], np.int32)
_LARGEST = 2**31 - 1
# Distances of the words whose identity, and of those whose shape, is in a feature.
_WORDS = (
    (-2,),
    (-1,),
    (1,),
    (2,),
    (-2, -1),
    (-1, 0),
    (0, 1),
    (1, 2),
    (-1, 1),
    (-2, -1, 0),
    (-1, 0, 1),
    (0, 1, 2),
)
_SHAPES = ((-1,), (1,), (-1, 0, 1))


def neighbors(word_starts):
    """Indices of the words before and after each word, int32 [B, W] each, W for none; from int32 [B, W].

    The position of a word's first token, 0 for no word, gives the order; words may be in any order.
    """
    count = ops.shape(word_starts)[1]
    # Position and index in one number.
    codes = word_starts * count + ops.arange(count, dtype="int32")
    others, own, none = ops.expand_dims(codes, 1), ops.expand_dims(word_starts, 2), -1
    starts = ops.expand_dims(word_starts, 1)
    there = ops.logical_and(starts > 0, own > 0)
    before = ops.max(ops.where(ops.logical_and(there, starts < own), others, none), axis=2)
    after = ops.min(ops.where(ops.logical_and(there, starts > own), others, _LARGEST), axis=2)
    before = ops.where(before < 0, count, ops.mod(before, count))
    return before, ops.where(after == _LARGEST, count, ops.mod(after, count))


def word_keys(token_ids, word_starts, character_ids=None):
    """A hash of each feature of each word, int32 [B, W, F] in [0, HASHES), and its fingerprint, -1 for no feature.

    Features are the word, in lower case from here on, its prefixes, suffixes and trigrams of characters, and the words
    and shapes next to it. Without character ids (None), a word is its first token, and only words are used.

    Args:
        token_ids: int32 [B, T].
        word_starts: int32 [B, W], position of each word's first token; 0 = no word.
        character_ids: int32 [B, W, 20] below 2**12, 1 + code point; 0 = no character, after the word only.
    """
    links = neighbors(word_starts)
    if character_ids is None:
        offsets = ops.arange(ops.shape(token_ids)[0], dtype="int32")[:, None] * ops.shape(token_ids)[1]
        names = ops.take(ops.reshape(token_ids, (-1,)), word_starts + offsets) + 2  # [B, W]
        own, kinds, groups = ops.expand_dims(names, -1), [1], [(names, _WORDS)]
    else:
        low = lower_case(character_ids)
        names = ops.sum(low * _WEIGHTS, axis=-1)
        shapes = shape_bucket(ops.reshape(character_ids, (-1, SPELLING_LENGTH)), _LARGEST)
        shapes = ops.reshape(shapes, ops.shape(names))
        whole = ops.stack([names, ops.sum(character_ids * _WEIGHTS, axis=-1), shapes], axis=-1)
        own = ops.concatenate([whole, _affixes(low), _trigrams(low)], axis=-1)
        affixes = 2 * LONGEST_AFFIX
        kinds = [*range(1, 4 + affixes), *[4 + affixes] * (SPELLING_LENGTH - TRIGRAM + 1)]
        groups = [(names, _WORDS), (shapes, _SHAPES)]
    # One column for each feature; at most three values, which are folded one after the other.
    columns = [[own], [ops.zeros_like(own)], [ops.zeros_like(own)]]
    for values, distances in groups:
        around = _around(values, links)
        nothing = ops.zeros_like(values)
        for place, column in enumerate(columns):
            column.append(
                ops.stack(
                    [around[each[place]] if place < len(each) else nothing for each in distances], axis=-1
                )
            )
    parts = [ops.concatenate(column, axis=-1) for column in columns]
    kinds = np.array([*kinds, *range(50, 50 + sum(len(distances) for _, distances in groups))], np.int32)
    fingerprints = _fold(kinds, parts, FINGERPRINT_MODULUS)
    return _fold(kinds, parts, HASHES), ops.where(parts[0] > 0, fingerprints, -1)


def _fold(kinds, parts, modulus: int):
    hashed = kinds
    for values in parts:
        hashed = ops.mod(hashed * MULTIPLIER + ops.mod(values, modulus), modulus)
    return hashed


def _affixes(low):
    """Prefixes and suffixes of 1 to 4 characters as numbers, int32 [B, W, 8]; 0 for those of shorter words."""
    count = ops.sum(ops.cast(low > 0, "int32"), axis=-1, keepdims=True)
    from_end = count - 1 - ops.arange(SPELLING_LENGTH, dtype="int32")  # [B, W, 20]
    prefixes, suffixes, prefix, suffix = [], [], 0, 0
    for number, weight in enumerate(_WEIGHTS[:LONGEST_AFFIX].tolist()):
        first, last = low[..., number], ops.sum(ops.where(from_end == number, low, 0), axis=-1)
        prefix, suffix = prefix + first * weight, suffix + last * weight
        prefixes.append(ops.where(first > 0, prefix, 0))
        suffixes.append(ops.where(last > 0, suffix, 0))
    return ops.stack([*prefixes, *suffixes], axis=-1)


def _trigrams(low):
    """Trigrams of characters as numbers, int32 [B, W, 18]; 0 after the word."""
    last = low[..., TRIGRAM - 1 :]
    total = sum(
        low[..., place : place + SPELLING_LENGTH - TRIGRAM + 1] * int(_WEIGHTS[place])
        for place in range(TRIGRAM)
    )
    return ops.where(last > 0, total, 0)


def _around(values, links) -> dict:
    """The values, int32 [B, W], of the words at the distances -2 to 2; 1 where there is no word."""
    rows, count = ops.shape(values)[0], ops.shape(values)[1]
    offsets = ops.arange(rows, dtype="int32")[:, None] * (count + 1)
    around = {0: values}
    for step, link in zip((-1, 1), links, strict=True):
        for distance in (step, 2 * step):
            padded = ops.pad(around[distance - step], ((0, 0), (0, 1)), constant_values=1)
            around[distance] = ops.take(ops.reshape(padded, (-1,)), link + offsets)
    return around


@keras.saving.register_keras_serializable(package="kmha")
class LinearWords(ConfigurableLayer):
    """Scores of the tags of each word: the sum of the weights of its known features; fitted outside of Keras.

    Args:
        num_labels: K.
        rows: Known features; row 0 is that of unknown ones.
        slots: Size of the hash table, at most `HASHES`.

    Call:
        token_ids, word_starts, character_ids: As in `word_keys`.
        Returns float32 [B, W, K].
    """

    def __init__(self, num_labels: int, rows: int, slots: int, **kwargs):
        super().__init__(**{**kwargs, "dtype": "float32", "trainable": False})
        self.num_labels, self.rows, self.slots = num_labels, rows, slots
        self.table = Table(
            rows + 1, num_labels, embeddings_initializer="zeros", name="table", dtype="float32"
        )

    def build(self, token_ids_shape, word_starts_shape=None, character_ids_shape=None):
        """Creates the hash table, the weights and the bias."""
        # A layer that is not trainable does not pass this on to the layers inside.
        self.table.trainable = False
        options = {"initializer": "zeros", "trainable": False}
        self.packed = self.add_weight(name="slots", shape=(self.slots,), dtype="int32", **options)
        self.table.build(token_ids_shape)
        self.bias = self.add_weight(name="bias", shape=(self.num_labels,), dtype="float32", **options)

    def assign(self, keys: np.ndarray, kernel: np.ndarray, bias: np.ndarray) -> None:
        """Sets the weights.

        Args:
            keys: Slot and fingerprint of each feature, integers [rows, 2]; no two have the same slot.
            kernel: float [rows, K].
            bias: float [K].
        """
        self.packed.assign(packed_keys(self.slots, keys[:, 0], keys[:, 1], np.arange(1, self.rows + 1)))
        self.table.embeddings.assign(np.concatenate([np.zeros((1, self.num_labels)), kernel]))
        self.bias.assign(bias)

    def call(self, token_ids, word_starts, character_ids=None):
        """See the class."""
        hashes, fingerprints = word_keys(token_ids, word_starts, character_ids)
        rows = known_rows(self.packed, ops.mod(hashes, self.slots), fingerprints)
        return ops.sum(self.table(rows), axis=2) + self.bias

    def scale(self, factor: float) -> None:
        """Multiplies the scores by a number."""
        self.table.embeddings.assign(self.table.embeddings * factor)
        self.bias.assign(self.bias * factor)

    def compute_output_shape(self, token_ids_shape, word_starts_shape, character_ids_shape=None):
        """[B, W, K]."""
        return (*word_starts_shape, self.num_labels)
