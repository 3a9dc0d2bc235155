"""Initial token embeddings from the co-occurrence of tokens in the training texts."""

from collections.abc import Iterable

import numpy as np
import scipy.sparse
from sklearn.utils.extmath import randomized_svd

# Tokens at most so far apart occur together.
WINDOW = 8
# Of the frequency of a neighbor: a rare one is less informative than its probability suggests.
CONTEXT_POWER = 0.75
# So many tokens are enough; a random share of longer texts is read.
MAX_TOKENS = 2_000_000
POWER_ITERATIONS = 2


def cooccurrence_vectors(
    batches: Iterable[np.ndarray], vocabulary_size: int, width: int, tokens: int, seed: int
) -> np.ndarray:
    """Vectors by which tokens with the same neighbors are near each other.

    They are left singular vectors of the positive pointwise mutual information of tokens and their neighbors, scaled by
    the roots of the singular values and rotated at random, so that no dimension has more of the variance.

    Source: Levy and Goldberg 2014, "Neural Word Embedding as Implicit Matrix Factorization"; Levy, Goldberg and Dagan
    2015, "Improving Distributional Similarity with Lessons Learned from Word Embeddings", for the power of frequencies.

    Args:
        batches: Token ids int32 [B, T], padded with 0.
        vocabulary_size: Number of tokens.
        width: Size of a vector.
        tokens: About how many tokens the batches have.
        seed: Random seed.

    Returns:
        Vectors of length 1, float32 [V, width]; zeros for a token without neighbors.
    """
    rng = np.random.default_rng([seed, 29])
    counts = _cooccurrences(batches, vocabulary_size, min(1.0, MAX_TOKENS / max(1, tokens)), rng)
    information = _positive_information(counts)
    rank = min(width, vocabulary_size - 1)
    left, values, _ = randomized_svd(information, rank, n_iter=POWER_ITERATIONS, random_state=seed)
    rotation = np.linalg.qr(rng.normal(size=(width, width)))[0]
    vectors = (left * np.sqrt(values)) @ rotation[:rank]
    vectors[np.diff(information.indptr) == 0] = 0
    return (vectors / np.maximum(np.linalg.norm(vectors, axis=1, keepdims=True), 1e-9)).astype(np.float32)


def _cooccurrences(
    batches: Iterable[np.ndarray], size: int, share: float, rng: np.random.Generator
) -> scipy.sparse.csr_matrix:
    """How often tokens occur together, nearer ones with more weight, symmetric float32 [V, V]."""
    parts = [scipy.sparse.csr_matrix((size, size), dtype=np.float32)]
    for ids in batches:
        ids = ids[rng.random(len(ids)) < share] if share < 1 else ids
        for distance in range(1, min(WINDOW, ids.shape[1] - 1) + 1):
            first, second = ids[:, :-distance], ids[:, distance:]
            both = (first > 0) & (second > 0)
            weights = np.full(int(both.sum()), distance**-0.5, np.float32)
            parts.append(
                scipy.sparse.coo_matrix((weights, (first[both], second[both])), (size, size)).tocsr()
            )
    # The smallest ones first, so that a large matrix is seldom copied.
    while len(parts) > 1:
        parts.append(parts.pop(0) + parts.pop(0))
    (counts,) = parts
    return scipy.sparse.csr_matrix(counts + counts.T)


def _positive_information(counts: scipy.sparse.csr_matrix) -> scipy.sparse.csr_matrix:
    """Pointwise mutual information of tokens and neighbors where it is positive, float32 [V, V]."""
    pairs = counts.tocoo()
    frequency = np.asarray(counts.sum(axis=1), np.float64).ravel()
    context = frequency**CONTEXT_POWER / max(1e-9, (frequency**CONTEXT_POWER).sum())
    ratio = pairs.data / (frequency[pairs.row] * context[pairs.col])
    is_positive = ratio > 1
    places = pairs.row[is_positive], pairs.col[is_positive]
    return scipy.sparse.csr_matrix((np.log(ratio[is_positive]).astype(np.float32), places), counts.shape)
