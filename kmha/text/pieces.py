"""Texts longer than a sequence may be, in pieces: nothing of them is lost."""

import numpy as np

from kmha.text.preprocessor import Preprocessor

# A Preprocessor reads 64 bytes for each token it may keep: with so many, 64 MiB of a text.
MOST_TOKENS = 2**20


def whole_texts(preprocessor: Preprocessor) -> Preprocessor:
    """One that cuts texts in the same way but reads 64 MiB of each."""
    return Preprocessor(
        preprocessor.vocabulary, preprocessor.tokenization, preprocessor.lower_case, MOST_TOKENS
    )


def piece_lengths(lengths: np.ndarray, most: int) -> tuple[np.ndarray, np.ndarray]:
    """Cuts texts into pieces of so many tokens, of each text the last one shorter.

    Args:
        lengths: Tokens of each text, integers [R].
        most: Tokens of a piece at most.

    Returns:
        Tokens of each piece, int64 [P], none of them 0, and the pieces of each text, int64 [R].
    """
    lengths = np.asarray(lengths, np.int64)
    counts = -(-lengths // most)
    pieces = np.full(int(counts.sum()), most, np.int64)
    there = counts > 0
    pieces[np.cumsum(counts)[there] - 1] = (lengths - most * (counts - 1))[there]
    return pieces, counts
