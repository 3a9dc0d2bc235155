"""Counts the n-grams of tokenized texts, as `kmha.layers.linear_ngrams` looks them up."""

import dataclasses
from collections.abc import Sequence

import numpy as np
import scipy.sparse
from keras import ops

from kmha.layers.embedding import FINGERPRINT_MODULUS
from kmha.layers.linear_ngrams import LARGEST_TABLE, ngram_groups, ngram_keys, num_groups
from kmha.text.vocabulary import SPECIAL_TOKENS
from training.linear.subwords import subword_features

# Rows of the weights, and weights in all: 8 MB in float32. Texts with several labels gain nothing by so many.
MAX_ROWS, MAX_WEIGHTS, MAX_WEIGHTS_SEVERAL = 100_000, 2_000_000, 1_000_000
# Of a model without an encoder, which has at most 1 MB in 8 bits with up to 80 labels.
MAX_ROWS_ALONE, MAX_WEIGHTS_ALONE = 20_000, 300_000
# Hundreds of labels need so many rows, whatever their size.
MIN_ROWS = 10_000
# Primes for the sizes of hash tables. With the multiplier of `ngram_hashes`, 8191, pairs of ids spread well over them:
# the shortest vector between two pairs of one hash has at least .98 of the root of the prime (spectral test, Knuth
# 1997, section 3.3.4). For primes near powers of 2 it is less than a tenth of that, and most frequent pairs collide.
PRIMES = (1_013, 1_987, 4_003, 8_093, 16_249, 32_443, 65_033, 97_687, 128_663, 196_117, LARGEST_TABLE)
# Share of the slots of an n-gram table that are used, its smallest size, and displacements that are tried at once.
LOAD, MIN_SLOTS, TRIED_AT_ONCE = 0.85, 1024, 1024
# An n-gram of one text only leads to overfitting, except in few texts, where most n-grams are of one text.
MIN_TEXTS = 2


def table_size(needed: float) -> int:
    """The smallest size of a hash table with the needed slots, or the largest one."""
    return next((prime for prime in PRIMES if prime >= needed), LARGEST_TABLE)


@dataclasses.dataclass(frozen=True)
class Ngrams:
    """The known n-grams.

    Attributes:
        slots: Size of the hash table of each order, 0 for an order that is not used.
        keys: Order, hash and fingerprint of each n-gram, int64 [F, 3].
        idf: Inverse document frequency of each, float64 [F].
        displacements: Of the table of each order above 1, int64; see `kmha.layers.linear_ngrams.displaced_slots`.
        subwords: The character n-grams of the single tokens, sparse float64 [F, G], for the fit; None: not used.
    """

    slots: tuple[int, ...]
    keys: np.ndarray
    idf: np.ndarray
    displacements: dict[int, np.ndarray] = dataclasses.field(default_factory=dict)
    subwords: scipy.sparse.csr_matrix | None = None

    def with_subwords(self, tokens: Sequence[str]) -> "Ngrams":
        """The same n-grams with the character n-grams of the known tokens; `tokens`: all tokens, by id."""
        known = np.flatnonzero(self.keys[:, 0] == 1)
        parts = subword_features([tokens[int(token)] for token in self.keys[known, 1]])
        places = scipy.sparse.csr_matrix(
            (np.ones(len(known)), (known, np.arange(len(known)))), (len(self.keys), len(known))
        )
        return dataclasses.replace(self, subwords=scipy.sparse.csr_matrix(places @ parts))

    def with_unseen(self, tokens: Sequence[str], flat: np.ndarray, most: int) -> "Ngrams":
        """The same n-grams with the tokens that no training text has, which get the weights of their subwords.

        They are as rare as the rarest n-gram.

        Args:
            tokens: All tokens, by id.
            flat: Token ids of the training texts, int32 [N].
            most: Number of n-grams to know at most.
        """
        if not self.slots[0]:
            return self
        is_seen = np.isin(tokens, SPECIAL_TOKENS)
        is_seen[flat] = True
        others = np.flatnonzero(~is_seen)[: max(0, most - len(self.keys))]
        keys = np.stack([np.ones_like(others), others, np.zeros_like(others)], axis=1)
        idf = np.full(len(others), self.idf.max(initial=1.0))
        return dataclasses.replace(
            self, keys=np.concatenate([self.keys, keys]), idf=np.concatenate([self.idf, idf])
        )

    def features(self, flat: np.ndarray, lengths: np.ndarray) -> scipy.sparse.csr_matrix:
        """The features of texts, sparse float64 [R, F], from their concatenated token ids."""
        columns, rows = [], []
        for order in np.unique(self.keys[:, 0]).tolist():
            own = np.flatnonzero(self.keys[:, 0] == order)
            codes = _code(self.keys[own, 1], self.keys[own, 2])
            arranged = np.argsort(codes)
            found, row = _codes(flat, lengths, order)
            place = np.minimum(np.searchsorted(codes[arranged], found), len(codes) - 1)
            is_known = codes[arranged][place] == found
            columns.append(own[arranged[place[is_known]]])
            rows.append(row[is_known])
        shape = len(lengths), len(self.keys)
        if not columns:
            return scipy.sparse.csr_matrix(shape)
        column, row = np.concatenate(columns), np.concatenate(rows)
        counts = scipy.sparse.coo_matrix((np.ones(len(row)), (row, column)), shape).tocsr()
        norms = np.sqrt(np.maximum(counts @ self.idf**2, 1e-12))
        return scipy.sparse.diags(1 / norms) @ counts @ scipy.sparse.diags(self.idf)


def most_ngrams(outputs: int, several: bool = False, alone: bool = False) -> int:
    """The number of n-grams that a linear path may know.

    Args:
        outputs: Number of labels.
        several: Whether a text can have several labels.
        alone: Whether the model has no encoder.
    """
    rows, weights = MAX_ROWS, MAX_WEIGHTS_SEVERAL if several else MAX_WEIGHTS
    if alone:
        rows, weights = MAX_ROWS_ALONE, MAX_WEIGHTS_ALONE
    return max(MIN_ROWS, min(rows, weights // outputs))


def known_ngrams(
    flat: np.ndarray,
    lengths: np.ndarray,
    orders: tuple[int, ...],
    vocabulary_size: int,
    most: int,
    min_texts: int = MIN_TEXTS,
) -> Ngrams:
    """The most frequent n-grams of training texts; those of `in_small_tables` have places in hash tables.

    Args:
        flat: Token ids of all texts, int32 [N].
        lengths: Tokens of each text, int [R].
        orders: The n to use, ascending.
        vocabulary_size: Number of tokens.
        most: Number of n-grams to know at most.
        min_texts: Number of texts that an n-gram occurs in at least.
    """
    slots, keys, texts = [], [], []
    for order in range(1, max(orders) + 1):
        size = vocabulary_size if order == 1 else LARGEST_TABLE
        slots.append(size if order in orders else 0)
        if order in orders:
            codes, counts = _texts_of_each(flat, lengths, order, min_texts)
            keys.append(np.stack([np.full(len(codes), order), *_decode(codes)], axis=1))
            texts.append(counts)
    keys, texts = np.concatenate(keys), np.concatenate(texts)
    chosen = np.sort(np.argsort(-texts, kind="stable")[:most])
    idf = np.log((1 + len(lengths)) / (1 + texts[chosen])) + 1
    return Ngrams(tuple(slots), keys[chosen], idf)


def in_small_tables(ngrams: Ngrams, importance: np.ndarray, most: int) -> Ngrams:
    """The most important n-grams, in hash tables that are almost full; no two have the same slot.

    Args:
        ngrams: The result of `known_ngrams`.
        importance: Of each n-gram, float [F]. Of n-grams that cannot have different slots, the most important is known.
        most: Number of n-grams to know at most.
    """
    chosen = np.sort(np.argsort(-importance, kind="stable")[:most])
    keys, slots, displacements = ngrams.keys[chosen], list(ngrams.slots), {}
    is_known = np.ones(len(chosen), bool)
    for order in range(2, len(slots) + 1):
        own = np.flatnonzero(keys[:, 0] == order)
        size = slots[order - 1] = displaced_size(len(own)) if len(own) else 0
        if size:
            displacements[order], is_known[own] = find_displacements(
                keys[own, 1], keys[own, 2], importance[chosen[own]], size
            )
    return Ngrams(tuple(slots), keys[is_known], ngrams.idf[chosen[is_known]], displacements)


def displaced_size(ngrams: int) -> int:
    """Slots of a hash table for so many n-grams.

    It is 8 k + 5, so that the number of groups is odd and has no factor in common with it.
    """
    return -(-max(MIN_SLOTS, int(ngrams / LOAD)) // 8) * 8 + 5


def find_displacements(
    hashes: np.ndarray, fingerprints: np.ndarray, importance: np.ndarray, size: int
) -> tuple[np.ndarray, np.ndarray]:
    """Displacements with which n-grams have different slots in a hash table.

    Args:
        hashes: int [F].
        fingerprints: int [F].
        importance: float [F]. The least important n-grams of a group are left out if no displacement fits.
        size: Slots of the table.

    Returns:
        The displacement of each group, int64, and whether each n-gram has a slot, bool [F].
    """
    displacements = np.zeros(num_groups(size), np.int64)
    has_slot, is_free = np.zeros(len(hashes), bool), np.ones(size, bool)
    groups = ops.convert_to_numpy(ngram_groups(hashes, fingerprints, len(displacements)))
    homes = hashes % size
    ends = np.cumsum(np.bincount(groups, minlength=len(displacements)))
    members = np.split(np.lexsort((-importance, groups)), ends[:-1])
    # The largest groups first, while most slots are free.
    for group in np.argsort([-len(each) for each in members], kind="stable"):
        own = members[group]
        # N-grams with the same home and group have the same slot for each displacement.
        own = own[np.sort(np.unique(homes[own], return_index=True)[1])]
        while len(own):
            found = _first_fit(homes[own], is_free)
            if found is not None:
                displacements[group], has_slot[own] = found, True
                is_free[(homes[own] + found) % size] = False
                break
            own = own[:-1]
    return displacements, has_slot


def _first_fit(homes: np.ndarray, is_free: np.ndarray) -> int | None:
    """The smallest displacement with which all n-grams of a group have free slots, from their homes, int [G]."""
    for start in range(0, len(is_free), TRIED_AT_ONCE):
        tried = np.arange(start, min(start + TRIED_AT_ONCE, len(is_free)))
        fits = is_free[(homes[:, None] + tried) % len(is_free)].all(axis=0)
        if fits.any():
            return int(tried[fits.argmax()])
    return None


def _texts_of_each(
    flat: np.ndarray, lengths: np.ndarray, order: int, min_texts: int
) -> tuple[np.ndarray, np.ndarray]:
    """The codes of n-grams that occur in enough texts, but not in all, and the number of these texts."""
    codes, rows = _codes(flat, lengths, order)
    arranged = np.lexsort((rows, codes))
    codes, rows = codes[arranged], rows[arranged]
    is_new = (np.diff(codes, prepend=-1) != 0) | (np.diff(rows, prepend=-1) != 0)
    found, counts = np.unique(codes[is_new], return_counts=True)
    used = (counts >= min_texts) & (counts < len(lengths))
    return found[used], counts[used]


def _codes(flat: np.ndarray, lengths: np.ndarray, order: int) -> tuple[np.ndarray, np.ndarray]:
    """Hash and fingerprint of each n-gram as one number, int64 [N'], and the number of its text."""
    rows = np.repeat(np.arange(len(lengths)), lengths)
    hashes, fingerprints = (
        ops.convert_to_numpy(each)[0] for each in ngram_keys(flat[None], order, LARGEST_TABLE)
    )
    # An n-gram that ends at one of a text's first tokens would begin in the text before.
    inside = np.zeros(len(rows), bool)
    inside[order - 1 :] = rows[order - 1 :] == rows[: len(rows) - order + 1]
    return _code(hashes[inside], fingerprints[inside]), rows[inside]


def _code(hashes: np.ndarray, fingerprints: np.ndarray) -> np.ndarray:
    return hashes.astype(np.int64) * FINGERPRINT_MODULUS + fingerprints


def _decode(codes: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    return codes // FINGERPRINT_MODULUS, codes % FINGERPRINT_MODULUS
