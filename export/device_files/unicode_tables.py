"""Tables for devices of what the tokenizers in the graph do to each Unicode character.

The graph itself computes the tables, code point by code point, so that a device's token ids do not depend on its
version of Unicode. The normalizer maps each character independently of its neighbors.
"""

import functools
from collections.abc import Iterable

import numpy as np
import tensorflow as tf
import tensorflow_text as tf_text

from kmha.text.tokenizers import WHITE_SPACE, normalizer
from kmha.text.vocabulary import CONTINUATION, LONGEST_WORD_BYTES, UNKNOWN, Tokenization

CODE_POINTS = [c for c in range(0x110000) if not 0xD800 <= c < 0xE000]
# Unicode's own arithmetic for Hangul syllables, standard §3.12.
SYLLABLES, LEADS, VOWELS, TAILS = 0xAC00, 0x1100, 0x1161, 0x11A7
VOWEL_COUNT, TAIL_COUNT, SYLLABLE_COUNT = 21, 28, 11_172


@functools.cache
def changes(lower_case: bool) -> dict[int, str]:
    """The result of the normalizer for each code point that it changes; the result is not changed again.

    Args:
        lower_case: Whether texts are lower-cased and stripped of accents.
    """
    normalized = normalizer(lower_case)(_characters()).numpy()
    pairs = zip(CODE_POINTS, (after.decode() for after in normalized), strict=True)
    return {code: after for code, after in pairs if after != chr(code)}


@functools.cache
def normalization(lower_case: bool) -> dict:
    """The same in a compact form, as JSON values.

    Returns:
        "hangul": whether syllables are decomposed into letters, by Unicode's arithmetic. "shifted": [first, last,
        step, shift], `shift` is added to each code point of range(first, last + 1, step). "replaced": [first, last, …]
        by the string that replaces each of these characters. No others change.
    """
    changed = changes(lower_case)
    syllables = {code: hangul_letters(code) for code in range(SYLLABLES, SYLLABLES + SYLLABLE_COUNT)}
    hangul = syllables.items() <= changed.items()
    if hangul:
        changed = {code: after for code, after in changed.items() if code not in syllables}
    shifted = _shifts(changed)
    moved = {code for first, last, step, _ in shifted for code in range(first, last + 1, step)}
    targets: dict[str, list[int]] = {}
    for code, after in changed.items():
        if code not in moved:
            targets.setdefault(after, []).append(code)
    return {
        "hangul": hangul,
        "shifted": shifted,
        "replaced": {after: ranges(codes) for after, codes in sorted(targets.items())},
    }


@functools.cache
def character_classes(tokenization: Tokenization) -> dict[str, list[int]]:
    """How characters separate the words of a normalized text.

    Returns:
        "white_space": code points [first, last, …] between words, or for "char" read as a space. "isolated": those
        that are words of their own (punctuation, Chinese characters); none for "char".
    """
    codes = np.array(CODE_POINTS)
    if tokenization == "char":
        separated = tf.strings.regex_replace(_characters(), WHITE_SPACE, " ").numpy()
        return {"white_space": ranges(codes[separated == b" "]), "isolated": []}
    # Between two letters white space gives two words, an isolated character three; any other makes one word.
    letter = "a"
    words = tf_text.FastWordpieceTokenizer(
        vocab=[UNKNOWN, letter],
        suffix_indicator=CONTINUATION,
        max_bytes_per_word=LONGEST_WORD_BYTES,
        unknown_token=UNKNOWN,
        token_out_type=tf.int32,
    ).tokenize(tf.strings.join([letter, _characters(), letter]))
    counts = words.row_lengths().numpy()
    return {"white_space": ranges(codes[counts == 2]), "isolated": ranges(codes[counts == 3])}


def hangul_letters(code: int) -> str:
    """The letters of a Hangul syllable, given by its code point."""
    rest, tail = divmod(code - SYLLABLES, TAIL_COUNT)
    lead, vowel = divmod(rest, VOWEL_COUNT)
    return chr(LEADS + lead) + chr(VOWELS + vowel) + (chr(TAILS + tail) if tail else "")


def ranges(codes: Iterable[int]) -> list[int]:
    """Ascending code points as [first, last, first, last, …], both included."""
    found: list[int] = []
    for code in map(int, codes):
        if found and found[-1] == code - 1:
            found[-1] = code
        else:
            found += [code, code]
    return found


def _characters():
    return tf.constant([chr(code).encode() for code in CODE_POINTS])


def _shifts(changed: dict[int, str]) -> list[list[int]]:
    """Ranges of at least three characters, of step 1 or 2, that are shifted by the same amount."""
    moves = {code: ord(after) - code for code, after in changed.items() if len(after) == 1}
    runs: list[list[int]] = []
    done: set[int] = set()
    for code, move in moves.items():
        if code in done:
            continue
        lengths = {}
        for step in (1, 2):
            last = code
            while moves.get(last + step) == move and last + step not in done:
                last += step
            lengths[step] = last
        step = max(lengths, key=lambda step: (lengths[step] - code) // step)
        if (lengths[step] - code) // step >= 2:
            runs.append([code, lengths[step], step, move])
            done.update(range(code, lengths[step] + 1, step))
    return runs
