"""Character n-grams of tokens: words of the same stem share weights in the linear path."""

from collections import Counter
from collections.abc import Sequence

import numpy as np
import scipy.sparse

from kmha.text.vocabulary import CONTINUATION, SPECIAL_TOKENS

SIZES = (3, 4, 5)
# Length of the features of a token with character n-grams, where the token itself has 1. With 2, words that are spelled
# alike but differ in meaning are too similar; docs/decisions/017-linear-path.md.
STRENGTH = 0.7
_START, _END = "<", ">"


def subword_features(tokens: Sequence[str]) -> scipy.sparse.csr_matrix:
    """The character n-grams that at least two of the tokens have, sparse float64 [T, G], rarer ones with more weight.

    Rows have the length `STRENGTH`, or 0 without such n-grams.
    """
    each = [_character_ngrams(token) for token in tokens]
    counts = Counter(part for parts in each for part in parts)
    weights = {part: np.log((1 + len(tokens)) / (1 + count)) for part, count in counts.items() if count > 1}
    columns = {part: column for column, part in enumerate(weights)}
    shared = [[part for part in parts if part in columns] for parts in each]
    values = np.array([weights[part] for parts in shared for part in parts], np.float64)
    indices = np.array([columns[part] for parts in shared for part in parts], np.int32)
    ends = np.cumsum([0, *map(len, shared)])
    features = scipy.sparse.csr_matrix((values, indices, ends), (len(tokens), len(columns)))
    lengths = np.sqrt(features.power(2).sum(axis=1).A1)
    return scipy.sparse.csr_matrix(scipy.sparse.diags(STRENGTH / np.maximum(lengths, 1e-12)) @ features)


def _character_ngrams(token: str) -> list[str]:
    """The different character n-grams of a token between marks of the start and the end of a word."""
    if token in SPECIAL_TOKENS:
        return []
    is_start = not token.startswith(CONTINUATION)
    marked = (_START if is_start else "") + token.removeprefix(CONTINUATION) + _END
    # In order, for the same columns in each process.
    return list(
        dict.fromkeys(marked[first : first + n] for n in SIZES for first in range(len(marked) - n + 1))
    )
