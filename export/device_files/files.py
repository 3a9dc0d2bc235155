"""The files next to a device model: tokenizer, labels, vocabulary."""

import contextlib
import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from export.device.tokenizer import FORMAT, in_brackets
from export.device_files.unicode_tables import changes, character_classes, normalization
from kmha.bundle.bundle import Bundle
from kmha.bundle.files import parts_of
from kmha.bundle.manifest import CLASSIFY, TAG, vocabulary_file
from kmha.errors import InputError
from kmha.features import MAX_WORDS, NUM_CHARACTERS, SPELLING_LENGTH
from kmha.text import words
from kmha.text.preprocessor import Preprocessor
from kmha.text.vocabulary import CONTINUATION, END, LONGEST_WORD_BYTES, MASK, PADDING, START, UNKNOWN
from training.io.disk import atomic_write

TOKENIZER, LABELS, VOCABULARY = ".tokenizer.json", ".labels.txt", ".vocab.txt"


def tokenizer_values(bundle: Bundle) -> dict[str, Any]:
    """The JSON values of a bundle's tokenizer.json.

    Returns:
        "format" 1; "tokenization", "max_length" (tokens), "max_bytes" (read of a text), "max_word_bytes" (a longer
        word is unknown), "continuation" (prefix of pieces inside words), "special_ids", "labels", "multi_label",
        "thresholds", optionally "abstain_below", "vocabulary" (tokens by id); "normalization", "white_space" and
        "isolated", see `export.device_files.unicode_tables`. Of a matcher "format", "task", "target", "labels",
        "threshold", optionally "abstain_below", and "granularities" with the rest for each tokenizer, in the order of
        the model's inputs. Of a tagger "format", "task", what `_sentence_values` returns, and "text" with the rest.

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

    Returns:
        "labels" (its tags), "scheme" (of span tags); "split" ("words" or "characters") with "character_classes",
        [first code point, class, …] up to the next one, by the classes of `kmha.text.words`; "most_words" of a
        sentence; "characters", the size of the character table, 0 where spelling is not read, and "spelling_length",
        the characters read of a word; and the logarithms "transitions" [K][K], "start" [K] and "end" [K], -1e4 where
        the scheme forbids a transition.
    """
    sentences, model = bundle.preprocessor, bundle.model
    nothing = np.zeros((1, 1, len(bundle.labels)), np.float32)
    potentials = model.potentials(nothing, np.ones((1, 1), np.int32))
    values = {name: np.asarray(getattr(potentials, name)) for name in ("transitions", "start", "end")}
    return {
        "labels": bundle.labels,
        "scheme": model.scheme,
        "split": sentences.split,
        "most_words": MAX_WORDS,
        "characters": NUM_CHARACTERS if sentences.characters else 0,
        "spelling_length": SPELLING_LENGTH,
        **{name: value.tolist() for name, value in values.items()},
        "character_classes": _class_bounds(words.character_classes()),
    }


def _class_bounds(classes: np.ndarray) -> list[int]:
    """The first code point of each range of one class, and the class, for all of Unicode."""
    begins = np.flatnonzero(np.diff(classes, prepend=-1))
    return np.column_stack([begins, classes[begins]]).ravel().tolist()


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
    """A bundle's tokenizer.json: UTF-8, the same bytes for the same bundle.

    Raises:
        InputError: As `tokenizer_values`.
    """
    compact = json.dumps(tokenizer_values(bundle), ensure_ascii=False, separators=(",", ":"))
    return f"{compact}\n".encode()


def write_tokenizer(bundle: Bundle, path: Path) -> None:
    """Writes a bundle's tokenizer.json.

    Raises:
        InputError: As `tokenizer_values`.
    """
    Path(path).write_bytes(tokenizer_json(bundle))


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
    run share these files.

    Args:
        bundle: A trained bundle.
        final: The path of the model file.
        overwrite: Whether to replace existing files.

    Raises:
        InputError: As `atomic_write`; or the tokenizer cannot run on a device.
    """
    with contextlib.ExitStack() as files:
        # Renamed in reverse order: when the model exists, so do the other files.
        path = files.enter_context(atomic_write(final, overwrite))
        for suffix, content in device_files(bundle).items():
            other = Path(final).with_suffix(suffix)
            if not other.is_file() or other.read_bytes() != content:
                files.enter_context(atomic_write(other, overwrite)).write_bytes(content)
        yield path


def device_files(bundle: Bundle) -> dict[str, bytes]:
    """Content by suffix: the tokenizer, the labels and the tokens, one a line, in the order of their ids.

    tokenizer.json has the exact labels too; in labels.txt a line break inside a label becomes a space.

    Raises:
        InputError: The tokenizer cannot run on a device.
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
