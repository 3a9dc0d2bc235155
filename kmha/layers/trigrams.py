"""The trigrams of characters in the words of a text, from its token ids, as a layer."""

from collections.abc import Sequence
from typing import NamedTuple

import keras
import numpy as np
from keras import ops

from kmha.layers.configurable_layer import ConfigurableLayer

# Buckets of the hash of a trigram: a product, so that two small one-hot matrices count them.
ROWS, COLUMNS = 32, 64
BUCKETS = ROWS * COLUMNS
# Trigrams inside a token: those of twelve characters.
MOST_INSIDE = 10
SIZE, EDGES = 3, 5
# A trigram's hash is the sum of these multiples of its characters.
_FIRST, _SECOND = 1187, 59
BOUNDARY = "#"


class TokenTrigrams(NamedTuple):
    """Hashes of the characters of each token, int16.

    `inside` [V, M]: its trigrams, -1 for none. `edges` [V, 5]: the parts of a hash that its last two, its last, its
    first, and its first two characters have in trigrams with a neighbor; and whether it is one character, which is
    between two neighbors in one trigram.
    """

    inside: np.ndarray
    edges: np.ndarray

    @classmethod
    def of(cls, tokens: Sequence[str]) -> "TokenTrigrams":
        """Those of tokens of at least one character, without a mark of continuation; lower and upper case are one."""
        inside, edges = [], []
        for token in tokens:
            codes = [ord(character) % BUCKETS for character in token.lower()]
            found = [_hash(*each) for each in zip(codes, codes[1:], codes[2:], strict=False)][:MOST_INSIDE]
            inside.append(found)
            single = len(codes) == 1
            last_two = first_two = _hash(0, codes[0], 0)
            if not single:
                last_two, first_two = _hash(codes[-2], codes[-1], 0), _hash(0, codes[0], codes[1])
            edges.append([last_two, _hash(codes[-1], 0, 0), _hash(0, 0, codes[0]), first_two, single])
        most = max([1, *map(len, inside)])
        padded = [found + [-1] * (most - len(found)) for found in inside]
        return cls(np.array(padded, np.int16), np.array(edges, np.int16))


def _hash(first: int, second: int, third: int) -> int:
    return (first * _FIRST + second * _SECOND + third) % BUCKETS


@keras.saving.register_keras_serializable(package="kmha")
class Trigrams(ConfigurableLayer):
    """Which hashed trigrams of characters the words of a text have; each word has a boundary on both sides.

    Args:
        vocabulary_size: V.
        inside: M, the trigrams inside a token.

    Call:
        token_ids: int32 [B, T].
        is_token: int32 [B, T]; 1 = a token that counts.
        continues: int32 [B, T]; 1 = a token that is not the first of its word.
        Returns float32 [B, BUCKETS], 1 for a trigram that the text has.
    """

    def __init__(self, vocabulary_size: int, inside: int, **kwargs):
        super().__init__(**{**kwargs, "dtype": "float32", "trainable": False})
        self.vocabulary_size, self.inside = vocabulary_size, inside

    def build(self, token_ids_shape, is_token_shape=None, continues_shape=None):
        """Creates the tables."""
        options = {"dtype": "int16", "initializer": "zeros", "trainable": False}
        self.inside_codes = self.add_weight(
            name="inside", shape=(self.vocabulary_size, self.inside), **options
        )
        self.edge_codes = self.add_weight(name="edges", shape=(self.vocabulary_size, EDGES), **options)

    def assign(self, tables: TokenTrigrams) -> None:
        """Sets the tables."""
        self.inside_codes.assign(tables.inside)
        self.edge_codes.assign(tables.edges)

    def call(self, token_ids, is_token, continues):
        """See the class."""
        inside = ops.cast(ops.take(self.inside_codes, token_ids, axis=0), "int32")  # [B, T, M]
        edges = ops.cast(ops.take(self.edge_codes, token_ids, axis=0), "int32")
        last_two, last, first, first_two, single = (edges[..., place] for place in range(EDGES))
        # The next token continues the word of this one, and this one that of the token before.
        next_continues = ops.pad(continues[:, 1:], ((0, 0), (0, 1)))
        next_first = ops.pad(first[:, 1:], ((0, 0), (0, 1)))
        last_before = ops.pad(last[:, :-1], ((0, 0), (1, 0)))
        after = ord(BOUNDARY) + next_continues * (next_first - ord(BOUNDARY))
        boundary = _hash(ord(BOUNDARY), 0, 0)
        before = boundary + continues * (last_before - boundary)
        start, end = before + first_two + single * after, last_two + after + single * before
        sides = ops.mod(ops.stack([start, end], axis=-1), BUCKETS)
        codes = ops.concatenate([inside, sides], axis=-1)
        codes = ops.where(ops.expand_dims(is_token > 0, 2), codes, -1)
        codes = ops.reshape(codes, (-1, ops.shape(token_ids)[1] * (self.inside + 2), 1))
        # -1 has no row.
        rows = ops.cast(
            ops.equal(ops.floor_divide(codes, COLUMNS), np.arange(ROWS, dtype="int32")), "float32"
        )
        columns = ops.cast(ops.equal(ops.mod(codes, COLUMNS), np.arange(COLUMNS, dtype="int32")), "float32")
        counts = ops.matmul(ops.transpose(rows, (0, 2, 1)), columns)
        return ops.minimum(ops.reshape(counts, (-1, BUCKETS)), 1.0)

    def compute_output_shape(self, token_ids_shape, is_token_shape=None, continues_shape=None):
        """[B, BUCKETS]."""
        return (token_ids_shape[0], BUCKETS)
