"""The files next to a device model: tokenizer, labels, vocabulary."""

import contextlib
import functools
import json
import re
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import tensorflow as tf
import tensorflow_text as tf_text

from export.device.tokenizer import FORMAT, in_brackets
from kmha.bundle.bundle import Bundle, parts_of
from kmha.bundle.manifest import CLASSIFY, TAG, vocabulary_file
from kmha.errors import InputError
from kmha.features import MAX_WORDS, NUM_CHARACTERS, SPELLING_LENGTH
from kmha.text import words
from kmha.text.preprocessor import WHITE_SPACE, Preprocessor, normalizer
from kmha.text.vocabulary import (
    CONTINUATION,
    END,
    LONGEST_WORD_BYTES,
    MASK,
    PADDING,
    START,
    UNKNOWN,
    Tokenization,
)
from training.io.disk import atomic_write

TOKENIZER, LABELS, VOCABULARY = ".tokenizer.json", ".labels.txt", ".vocab.txt"
CODE_POINTS = [c for c in range(0x110000) if not 0xD800 <= c < 0xE000]
# Unicode's own arithmetic for Hangul syllables, standard §3.12.
SYLLABLES, LEADS, VOWELS, TAILS = 0xAC00, 0x1100, 0x1161, 0x11A7
VOWEL_COUNT, TAIL_COUNT, SYLLABLE_COUNT = 21, 28, 11_172


def tokenizer_values(bundle: Bundle) -> dict[str, Any]:
    """The JSON values of a bundle's tokenizer.json.

    Returns:
        "format" 1; "tokenization", "max_length" (tokens), "max_bytes" (read of a text), "max_word_bytes" (a longer
        word is unknown), "continuation" (prefix of pieces inside words), "special_ids", "labels", "multi_label",
        "thresholds", optionally "abstain_below", "vocabulary" (tokens by id); what `normalization` and
        `character_classes` return. Of a matcher "format", "task", "target", "labels", "threshold", optionally
        "abstain_below", and "granularities" with the rest for each tokenizer, in the order of the model's inputs. Of
        a tagger "format", "task", what `_sentence_values` returns, and "text" with the rest.

    Raises:
        InputError: A token of the vocabulary contains white space, which device tokenizers cannot produce.
    """
    if bundle.task == CLASSIFY:
        shown = {"labels": bundle.labels, "multi_label": bundle.multi_label, "thresholds": bundle.thresholds}
        shown |= _abstention(bundle)
        return {"format": FORMAT, **_text_values(bundle.preprocessor, shown)}
    if bundle.task == TAG:
        text = _text_values(bundle.preprocessor.part)
        return {"format": FORMAT, "task": bundle.task, **_sentence_values(bundle), "text": text}
    # Rounded to float32 like the scores, so that a device can compare them.
    threshold = float(np.float32(bundle.thresholds[0])) if bundle.thresholds else None
    return {
        "format": FORMAT,
        "task": bundle.task,
        "target": bundle.model.target,
        "labels": bundle.labels,
        "threshold": threshold,
        **_abstention(bundle),
        "granularities": {name: _text_values(part) for name, part in parts_of(bundle.preprocessor).items()},
    }


def _abstention(bundle: Bundle) -> dict[str, float]:
    # Rounded to float32 like the probabilities, so that a device can compare them.
    return {} if bundle.abstain_below is None else {"abstain_below": float(np.float32(bundle.abstain_below))}


def _sentence_values(bundle: Bundle) -> dict[str, Any]:
    """The values of a tagger in addition to its tokenization.

    These are "labels" (its tags), "scheme" (of span tags); "split" ("words" or "characters") with
    "character_classes", [first code point, class, …] up to the next one, by the classes of `kmha.text.words`;
    "most_words" of a sentence; "characters", the size of the character table, 0 where spelling is not read, and
    "spelling_length", the characters read of a word; and the logarithms "transitions" [K][K], "start" [K] and "end"
    [K], -1e4 where the scheme forbids a transition.
    """
    sentences, model = bundle.preprocessor, bundle.model
    nothing = np.zeros((1, 1, len(bundle.labels)), np.float32)
    potentials = model.potentials(nothing, np.ones((1, 1), np.int32))
    values = {name: np.asarray(getattr(potentials, name)) for name in ("transitions", "start", "end")}
    classes = words.character_classes()
    begins = np.flatnonzero(np.diff(classes, prepend=-1))
    return {
        "labels": bundle.labels,
        "scheme": model.scheme,
        "split": sentences.split,
        "most_words": MAX_WORDS,
        "characters": NUM_CHARACTERS if sentences.characters else 0,
        "spelling_length": SPELLING_LENGTH,
        **{name: value.tolist() for name, value in values.items()},
        "character_classes": np.column_stack([begins, classes[begins]]).ravel().tolist(),
    }


def _text_values(text: Preprocessor, shown: dict[str, Any] | None = None) -> dict[str, Any]:
    """The tokenization of one preprocessor; `shown` comes before the long tables."""
    normal, classes = normalization(text.lower_case), character_classes(text.tokenization)
    _check_tokens(text, classes["white_space"])
    special = {"padding": PADDING, "unknown": UNKNOWN, "start": START, "end": END, "mask": MASK}
    return {
        "tokenization": text.tokenization,
        "lower_case": text.lower_case,
        "max_length": text.max_length,
        "max_bytes": text.max_bytes,
        "max_word_bytes": LONGEST_WORD_BYTES,
        "continuation": CONTINUATION,
        "special_ids": {name: text.vocabulary.id_of(token) for name, token in special.items()},
        **(shown or {}),
        "normalization": normal,
        **classes,
        "vocabulary": list(text.vocabulary.tokens),
    }


def tokenizer_json(bundle: Bundle) -> bytes:
    """A bundle's tokenizer.json: UTF-8, the same bytes for the same bundle; raises as `tokenizer_values`."""
    compact = json.dumps(tokenizer_values(bundle), ensure_ascii=False, separators=(",", ":"), allow_nan=False)
    return f"{compact}\n".encode()


def _check_tokens(text: Preprocessor, white_space: list[int]) -> None:
    """Raises InputError if a token that a text can contain has white space in it.

    The tokenizer in the graph splits such a token in some positions only; device tokenizers split at all white space.
    """
    if text.tokenization == "char":
        return
    white = re.compile(f"[{in_brackets(white_space)}]")
    changed = changes(text.lower_case)
    for index, token in enumerate(text.vocabulary.tokens):
        if white.search(token) and not any(ord(character) in changed for character in token):
            raise InputError(
                f"vocabulary:{index + 1}: expected tokens without white space for a device, got {token!r}"
            )


@contextlib.contextmanager
def atomic_device_files(bundle: Bundle, final: Path, overwrite: bool = False) -> Iterator[Path]:
    """Like `atomic_write` for a model file, and also writes the files that a device needs.

    news.tflite gets news.tokenizer.json, news.labels.txt and news.vocab.txt; each further tokenizer has its own
    vocabulary, such as news.vocab.char.txt. An existing file with the same content is not changed: the formats of one
    run share these files. Raises InputError as `atomic_write`, or if the tokenizer cannot run on a device.
    """
    companions = {
        Path(final).with_suffix(suffix): content for suffix, content in device_files(bundle).items()
    }
    with atomic_write(final, overwrite, companions=companions) as path:
        yield path


def device_files(bundle: Bundle) -> dict[str, bytes]:
    """Content by suffix: the tokenizer, the labels and the tokens, one a line, in the order of their ids.

    tokenizer.json has the exact labels too; in labels.txt a line break inside a label becomes a space. Raises
    InputError if the tokenizer cannot run on a device.
    """
    vocabularies = {
        f".{vocabulary_file(index, granularity)}": "".join(f"{token}\n" for token in part.vocabulary.tokens)
        for index, (granularity, part) in enumerate(parts_of(bundle.preprocessor).items())
    }
    return {
        TOKENIZER: tokenizer_json(bundle),
        LABELS: "".join(f"{' '.join(label.splitlines())}\n" for label in bundle.labels).encode(),
        **{suffix: content.encode() for suffix, content in vocabularies.items()},
    }


@functools.cache
def changes(lower_case: bool) -> dict[int, str]:
    """The result of the normalizer for each code point that it changes; the result is not changed again.

    The graph itself computes all tables, so that a device's token ids do not depend on its version of Unicode. The
    normalizer maps each character independently of its neighbors. `lower_case` also strips accents.
    """
    normalized = normalizer(lower_case)(_characters()).numpy()
    pairs = zip(CODE_POINTS, (after.decode() for after in normalized), strict=True)
    return {code: after for code, after in pairs if after != chr(code)}


@functools.cache
def normalization(lower_case: bool) -> dict:
    """The same in a compact form, as JSON values.

    These are "hangul": whether syllables are decomposed into letters, by Unicode's arithmetic. "shifted": [first,
    last, step, shift], `shift` is added to each code point of range(first, last + 1, step). "replaced": [first, last,
    …] by the string that replaces each of these characters. No others change.
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

    Returns "white_space": code points [first, last, …] between words, or for "char" read as a space. "isolated":
    those that are words of their own (punctuation, Chinese characters); none for "char".
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
