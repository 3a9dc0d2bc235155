"""Finds texts that share most of their words, so that they can be kept in one part of the data.

A validation row whose near copy was trained on is predicted better than a new text: scores are too high, and choices by
validation loss favor what memorizes.
"""

import re
from collections.abc import Callable, Iterable

import numpy as np
import scipy.sparse
from scipy.sparse.csgraph import connected_components

# Words that are compared together, and how much of the shorter text must be in the other one.
SHINGLE_WORDS, SHARE = 5, 0.5
# Each shingle pairs a text with so many of the next texts that have it: enough for all pairs of shingles that few texts
# have. Copies of one template have the same neighbors for all their shingles.
NEIGHBORS = 20
# A group of more texts has a template in common, which new texts will have too.
LARGEST_GROUP = 1 / 20
# Of more text in all, only exact copies are found.
MAX_BYTES = 50_000_000
CHUNK_ROWS = 10_000
# A character of a script without spaces is a word.
_WORD = re.compile(
    r"[\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff\u3040-\u30ff\u3400-\u9fff\uf900-\ufaff]|[^\W_]+"
)


def near_copy_groups(read: Callable[[np.ndarray], Iterable[str]], digests: np.ndarray) -> np.ndarray:
    """Equal for texts that are near copies of each other, directly or through others, uint64 [R].

    Two texts are near copies if the shorter one has more than half of its sequences of five words in common with the
    other one. A text without near copies has its own digest, and a group the smallest one of its texts.

    Source: the containment of shingles, Broder 1997, "On the Resemblance and Containment of Documents".

    Args:
        read: Gives the texts of rows, int64.
        digests: Equal for equal texts, uint64 [R].
    """
    texts, starts, first = np.unique(digests, return_index=True, return_inverse=True)
    rows, shingles = _shingles(read, starts)
    total = np.bincount(rows, minlength=len(texts))
    order = np.lexsort((rows, shingles))
    rows, shingles = rows[order], shingles[order]
    shared = scipy.sparse.csr_matrix((len(texts), len(texts)), dtype=np.int32)
    for distance in range(1, NEIGHBORS + 1):
        both = np.flatnonzero(shingles[:-distance] == shingles[distance:])
        if not len(both):
            break
        pairs = rows[both], rows[both + distance]
        shared += scipy.sparse.csr_matrix((np.ones(len(both), np.int32), pairs), shape=shared.shape)
    pairs = shared.tocoo()
    near = pairs.data > SHARE * np.minimum(total[pairs.row], total[pairs.col])
    graph = scipy.sparse.coo_matrix((near[near], (pairs.row[near], pairs.col[near])), shape=shared.shape)
    _, groups = connected_components(graph, directed=False)
    sizes = np.bincount(groups[first], minlength=groups.max(initial=-1) + 1)
    # The texts are sorted by digest, so the first one of a group has its smallest digest.
    smallest = texts[np.unique(groups, return_index=True)[1]]
    is_small = sizes <= max(2, int(LARGEST_GROUP * len(digests)))
    return np.where(is_small[groups], smallest[groups], texts)[first]


def count_near_copies(groups: np.ndarray, digests: np.ndarray) -> int:
    """Rows in groups of several different texts, from `near_copy_groups`; uint64 [R] each."""
    of_texts = np.unique(np.stack([groups, digests]), axis=1)[0]
    names, texts = np.unique(of_texts, return_counts=True)
    return int(np.isin(groups, names[texts > 1]).sum())


def _shingles(read: Callable[[np.ndarray], Iterable[str]], rows: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Places in `rows` and hashes of their different shingles, int64 and uint64 [S]."""
    ids: dict[str, int] = {}
    found = [np.zeros((2, 0), np.uint64)]
    for begin in range(0, len(rows), CHUNK_ROWS):
        words, lengths = [], []
        for text in read(rows[begin : begin + CHUNK_ROWS]):
            own = _WORD.findall(text.lower())
            lengths.append(len(own))
            words.extend([ids.setdefault(word, len(ids) + 1) for word in own])
        count = max(0, len(words) - SHINGLE_WORDS + 1)
        numbers, hashes = np.array(words, np.uint64), np.zeros(count, np.uint64)
        for place in range(SHINGLE_WORDS):
            hashes = hashes * np.uint64(0x9E3779B97F4A7C15) + numbers[place : place + count]
            hashes ^= hashes >> np.uint64(29)
        of_row = np.repeat(np.arange(begin, begin + len(lengths)), lengths)
        within = of_row[:count] == of_row[len(words) - count :]
        found.append(np.unique(np.stack([of_row[:count][within].astype(np.uint64), hashes[within]]), axis=1))
    joined = np.concatenate(found, axis=1)
    return joined[0].astype(np.int64), joined[1]
