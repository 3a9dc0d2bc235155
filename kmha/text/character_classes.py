"""Classes of characters, by which texts are split into words."""

import functools
import unicodedata

import numpy as np

# Character classes.
SPACE, SINGLE, LETTER, DIGIT, MARK, APOSTROPHE, POINT = range(7)
# Higher code points are private-use characters and tags: each is a word of its own.
TABLE_SIZE = 0x33480
APOSTROPHES, POINTS = "'’", ".,"
# First and last code points of scripts without spaces: Thai, Lao, Myanmar, Khmer, Han, kana, …; not Hangul.
_WITHOUT_SPACES = (
    (0x0E00, 0x0EFF),
    (0x1000, 0x109F),
    (0x1780, 0x17FF),
    (0x2E80, 0x2FDF),
    (0x3005, 0x3007),
    (0x3021, 0x3029),
    (0x3040, 0x30FF),
    (0x31F0, 0x31FF),
    (0x3400, 0x4DBF),
    (0x4E00, 0x9FFF),
    (0xF900, 0xFAFF),
    (0xFF66, 0xFF9F),
    (0x20000, TABLE_SIZE - 1),
)


@functools.cache
def character_classes() -> np.ndarray:
    """The class of each code point below `TABLE_SIZE`, int8; the last entry is for all others."""
    by_category = {"Z": SPACE, "C": SPACE, "L": LETTER, "N": DIGIT, "M": MARK}
    classes = np.full(TABLE_SIZE + 1, SINGLE, np.int8)
    for code_point in range(TABLE_SIZE):
        category = unicodedata.category(chr(code_point))
        if category != "Co":
            classes[code_point] = by_category.get(category[0], SINGLE)
    for first, last in _WITHOUT_SPACES:
        part = classes[first : last + 1]
        part[(part == LETTER) | (part == DIGIT)] = SINGLE
    classes[ord("_")] = LETTER
    for characters, kind in ((APOSTROPHES, APOSTROPHE), (POINTS, POINT)):
        classes[[ord(character) for character in characters]] = kind
    return classes


@functools.cache
def letters_without_spaces() -> np.ndarray:
    """Whether each code point is a letter or digit of a script without spaces, bool; see `character_classes`."""
    found = np.zeros(TABLE_SIZE + 1, bool)
    for first, last in _WITHOUT_SPACES:
        categories = (unicodedata.category(chr(code_point)) for code_point in range(first, last + 1))
        found[first : last + 1] = [category[0] in "LN" for category in categories]
    return found
