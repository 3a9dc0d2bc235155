"""What a linear tagger sees of a word: itself, its neighbours, how it begins and ends, and its shape."""

import re
from collections.abc import Sequence

_LONGEST_AFFIX = 4
_RUNS = re.compile(r"(.)\1+")
_EDGE = "\n"  # no word is a line feed


def word_shape(word: str) -> str:
    """Capitals as X, other letters as x, digits as d, the rest as they are; runs count once: `McDonald's` is XxXx'x."""
    letters = ("X" if c.isupper() else "x" if c.isalpha() else "d" if c.isdigit() else c for c in word)
    return _RUNS.sub(r"\1", "".join(letters))


def word_features(words: Sequence[str]) -> list[list[str]]:
    """Gives the names of the features that hold of each word.

    They are, lower-cased but for the word and its shape: the word; the two on each side; the pairs of
    neighbours up to there, and the three around it; the first and the last 1 to 4 characters; three neighbouring
    characters anywhere in it; its shape and those beside it; whether it holds a digit or a hyphen.

    Args:
        words: Of one sentence.

    Returns:
        A list of different names for each word.
    """
    low = [_EDGE, _EDGE, *(word.lower() for word in words), _EDGE, _EDGE]
    shapes = [_EDGE, *map(word_shape, words), _EDGE]
    own = [_own_features(word) for word in words]
    rows = []
    for place in range(len(words)):
        at = place + 2
        before2, before, here, after, after2 = low[at - 2 : at + 3]
        around = shapes[place : place + 3]
        rows.append(
            [
                *own[place],
                f"-2={before2}",
                f"-1={before}",
                f"+1={after}",
                f"+2={after2}",
                f"-2-1={before2}\n{before}",
                f"-1+0={before}\n{here}",
                f"+0+1={here}\n{after}",
                f"+1+2={after}\n{after2}",
                f"-1+1={before}\n{after}",
                f"-1+0+1={before}\n{here}\n{after}",
                f"shape-1={around[0]}",
                f"shape+1={around[2]}",
                "shapes=" + "\n".join(around),
            ]
        )
    return rows


def _own_features(word: str) -> list[str]:
    low = word.lower()
    names = ["always", f"word={word}", f"low={low}", f"shape={word_shape(word)}"]
    if len(low) > 1:
        for length in range(1, min(_LONGEST_AFFIX, len(low)) + 1):
            names += [f"begin={low[:length]}", f"end={low[-length:]}"]
        # A set would have another order in each process, and sums of floats another last digit.
        names += dict.fromkeys(f"in={low[start : start + 3]}" for start in range(len(low) - 2))
    if any(c.isdigit() for c in word):
        names.append("digit")
    if "-" in word:
        names.append("hyphen")
    return names
