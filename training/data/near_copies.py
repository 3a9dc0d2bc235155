"""Finds texts that share most of their words, so that they can be in one part of the data.

If a near copy of a validation row was trained on, its score is too high, and so are those of models that memorize.
"""

from collections.abc import Callable, Iterable, Sequence
from typing import Any

import numpy as np

from kmha.text.character_classes import (
    DIGIT,
    LETTER,
    MARK,
    TABLE_SIZE,
    character_classes,
    letters_without_spaces,
)
from training.io.examples import mixed

# Words of a shingle, and the share of the shorter text's shingles above which two texts are near copies.
SHINGLE_WORDS, SHARED_SHINGLES = 5, 0.5
# Each shingle pairs a text with so many of the next texts that have it: enough for all pairs of shingles that few texts
# have. Copies of one template have the same neighbors for all their shingles.
NEIGHBORS = 20
# A group with a larger share of the rows has a template in common, which new texts will have too.
LARGEST_GROUP = 1 / 20
# Of more text in all, only exact copies are found.
MAX_BYTES = 50_000_000
# Limits of memory: text that is split at once, and shingles that are compared at once.
CHUNK_BYTES, CHUNK_SHINGLES = 2_000_000, 1_000_000


def near_copy_groups(
    read: Callable[[np.ndarray], Sequence[str]], digests: np.ndarray, sizes: np.ndarray
) -> np.ndarray:
    """Equal for texts that are near copies of each other, directly or through others, uint64 [R].

    Two texts are near copies if the shorter one has more than half of its sequences of five words in common with the
    other one. A text without near copies has its own digest, and a group the smallest one of its texts.

    Source: the containment of shingles, Broder 1997, "On the Resemblance and Containment of Documents".

    Args:
        read: Gives the texts of rows, int64.
        digests: Equal for equal texts, uint64 [R].
        sizes: Bytes of each text, int [R].
    """
    # Imported late: commands start in a second.
    from scipy.sparse.csgraph import connected_components

    texts, starts, first = np.unique(digests, return_index=True, return_inverse=True)
    rows, shingles = _shingles(read, starts, sizes[starts])
    total = np.bincount(rows, minlength=len(texts))
    order = np.lexsort((rows, shingles))
    graph = _near_pairs(rows[order], shingles[order], total)
    _, groups = connected_components(graph, directed=False)
    rows_of_group = np.bincount(groups[first], minlength=groups.max(initial=-1) + 1)
    # The texts are sorted by digest, so the first one of a group has its smallest digest.
    smallest = texts[np.unique(groups, return_index=True)[1]]
    is_group = rows_of_group <= largest_group(len(digests))
    return np.where(is_group[groups], smallest[groups], texts)[first]


def largest_group(rows: int) -> int:
    """Rows of the largest group among so many: a twentieth, of fewer than 200 a tenth, at least 2."""
    return max(2, min(10, rows // 10), int(LARGEST_GROUP * rows))


def count_near_copies(groups: np.ndarray, digests: np.ndarray) -> int:
    """Rows in groups of several different texts, from `near_copy_groups`; uint64 [R] each."""
    of_texts = np.unique(np.stack([groups, digests]), axis=1)[0]
    names, texts = np.unique(of_texts, return_counts=True)
    return int(np.isin(groups, names[texts > 1]).sum())


def _near_pairs(rows: np.ndarray, shingles: np.ndarray, total: np.ndarray) -> Any:
    """Marks near copies, sparse bool [T, T], from the texts and hashes of shingles, [S] each.

    They are sorted by hash, then text. `total`: shingles of each text, int64 [T].
    """
    import scipy.sparse

    shape, found = (len(total), len(total)), [np.zeros((2, 0), np.int64)]
    blocks = np.cumsum(total) // CHUNK_SHINGLES
    for block in np.unique(blocks):
        places = np.flatnonzero(blocks[rows] == block)
        shared = scipy.sparse.csr_matrix(shape, dtype=np.int32)
        for distance in range(1, NEIGHBORS + 1):
            places = places[places + distance < len(rows)]
            places = places[shingles[places] == shingles[places + distance]]
            if not len(places):
                break
            pairs = rows[places], rows[places + distance]
            shared += scipy.sparse.csr_matrix((np.ones(len(places), np.int32), pairs), shape=shape)
        pairs = shared.tocoo()
        near = pairs.data > SHARED_SHINGLES * np.minimum(total[pairs.row], total[pairs.col])
        found.append(np.stack([pairs.row[near], pairs.col[near]]).astype(np.int64))
    first, second = np.concatenate(found, axis=1)
    return scipy.sparse.csr_matrix((np.ones(len(first), bool), (first, second)), shape=shape)


def _shingles(
    read: Callable[[np.ndarray], Sequence[str]], rows: np.ndarray, sizes: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """Places in `rows` and hashes of their different shingles, int64 and uint64 [S]."""
    found = [np.zeros((2, 0), np.uint64)]
    chunks = np.cumsum(sizes, dtype=np.int64) // CHUNK_BYTES
    for chunk in np.unique(chunks):
        chosen = np.flatnonzero(chunks == chunk)
        words, counts = _words(read(rows[chosen]))
        count = max(0, len(words) - SHINGLE_WORDS + 1)
        hashes = np.zeros(count, np.uint64)
        for place in range(SHINGLE_WORDS):
            hashes = mixed(hashes + words[place : place + count])
        of_text = np.repeat(chosen, counts).astype(np.uint64)
        within = of_text[:count] == of_text[len(words) - count :]
        found.append(np.unique(np.stack([of_text[:count][within], hashes[within]]), axis=1))
    places, hashes = np.concatenate(found, axis=1)
    return places.astype(np.int64), hashes


def _words(texts: Iterable[str]) -> tuple[np.ndarray, np.ndarray]:
    """Hashes of the words of all texts, without case and punctuation, uint64 [W], and the words of each, int64 [R].

    Each character is a word in scripts without spaces.
    """
    texts = [text.lower() for text in texts]
    # A line feed separates the texts.
    data = "".join(f"{text}\n" for text in texts).encode("utf-32-le", "surrogatepass")
    points = np.frombuffer(data, np.uint32)
    known = np.minimum(points, TABLE_SIZE)
    single = letters_without_spaces()[known]
    joined = np.isin(character_classes()[known], (LETTER, DIGIT, MARK))
    starts = single | (joined & ~np.concatenate([[False], joined[:-1]]))
    begins = np.flatnonzero(starts)
    if not len(begins):
        return np.zeros(0, np.uint64), np.zeros(len(texts), np.int64)
    place = np.maximum(np.arange(len(points)) - begins[np.maximum(np.cumsum(starts) - 1, 0)], 0)
    # A polynomial of the characters; those outside of words count 0.
    numbers = np.where(single | joined, points, 0).astype(np.uint64) * _powers(int(place.max()) + 1)[place]
    ends = np.cumsum([len(text) + 1 for text in texts])
    counts = np.diff(np.searchsorted(begins, ends), prepend=0)
    return mixed(np.add.reduceat(numbers, begins)), counts


def _powers(count: int) -> np.ndarray:
    """Powers of an odd number modulo 2^64, uint64."""
    return np.cumprod(np.full(count, 0x9E3779B97F4A7C15, np.uint64))
