"""CoNLL files: one word a line, its columns beside it, a blank line behind each sentence.

How a line is read:

- Columns are separated by tabs if the first word line has one, otherwise by spaces and tabs. Every word line has as
  many columns as the first. The first word line is the first line that is not blank and begins neither with `#` nor
  with `-DOCSTART-`; in a file without such a line, the first that begins with `#` and holds a tab.
- A line that begins with `#` is a word if it has that number of columns (`#hashtag<tab>O`). Otherwise it is a comment,
  which may stand before the first word of a sentence only; inside a sentence it is an error. In CoNLL-U files, whose
  words begin with a number, it is always a comment.
- A line whose first column is `-DOCSTART-` ends a sentence and is skipped.
- CoNLL-U files also hold lines that are no words of the sentence: a range (`3-4`, what stood in the text) and empty
  nodes (`3.1`). They are skipped.
"""

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path

from kmha.errors import InputError
from training.io.text_lines import open_lines

MAX_SENTENCE_WORDS = 100_000
"""Longest sentence. A file that lacks blank lines would otherwise be read into one."""

_BLANKS = " \t\r\n"
_GAP = re.compile(r"[ \t]+")
_DOCUMENT = "-DOCSTART-"
_NOT_A_WORD = re.compile(r"[0-9]+[-.][0-9]+")


@dataclass(frozen=True, slots=True)
class _Form:
    """How the words of a file are written."""

    tabs: bool
    width: int
    line: int  # that shows it


def is_conllu(path: Path) -> bool:
    """Whether the name of a file says that it is CoNLL-U."""
    return path.name.lower().removesuffix(".gz").endswith(".conllu")


def count_columns(path: Path) -> int:
    """Counts the columns of a file, by its first word.

    Raises:
        InputError: The file cannot be read or has no word.
    """
    return _form(path).width


def read_sentences(path: Path, columns: Sequence[int]) -> Iterator[tuple[int, list[list[str]]]]:
    """Streams the sentences of a file; one at a time is held in memory.

    Args:
        path: The file, plain or gzipped; UTF-8, with or without a byte order mark.
        columns: Numbers of the columns to keep, from 0; each less than `count_columns`.

    Yields:
        The line of the first word, from 1, and of each kept column the texts of all words.

    Raises:
        InputError: The file cannot be read, a line has another number of columns, or there is no sentence.
    """
    form, conllu = _form(path), is_conllu(path)
    first, words, found = 0, [], False
    with open_lines(path) as lines:
        for number, line in enumerate(lines, start=1):
            kind = _kind(line)
            if kind in ("blank", "document"):
                if words:
                    found = True
                    yield first, _kept(words, columns)
                    words = []
                continue
            if kind == "hash" and conllu:
                continue
            fields = _fields(line, form.tabs)
            if len(fields) != form.width:
                if kind == "hash" and not words:
                    continue
                raise InputError(f"{path}:{number}: {_expected(form)}, got {len(fields)}")
            if any("\r" in field for field in fields):
                raise InputError(f"{path}:{number}: expected lines that end in \\n or \\r\\n, got a lone \\r")
            if conllu and _NOT_A_WORD.fullmatch(fields[0]):
                continue
            if not words:
                first = number
            words.append(fields)
            if len(words) > MAX_SENTENCE_WORDS:
                raise InputError(
                    f"{path}:{first}: expected at most {MAX_SENTENCE_WORDS} words in a sentence and a blank line"
                    " after it, got more words"
                )
    if words:
        found = True
        yield first, _kept(words, columns)
    if not found:
        raise _no_sentence(path)


def _form(path: Path) -> _Form:
    conllu, hashes = is_conllu(path), None
    with open_lines(path) as lines:
        for number, line in enumerate(lines, start=1):
            kind = _kind(line)
            if kind == "word":
                return _form_of(line, number)
            if kind == "hash" and not conllu and hashes is None and "\t" in line:
                hashes = _form_of(line, number)
    if hashes is None:
        raise _no_sentence(path)
    return hashes


def _form_of(line: str, number: int) -> _Form:
    tabs = "\t" in line
    return _Form(tabs, len(_fields(line, tabs)), number)


def _fields(line: str, tabs: bool) -> list[str]:
    # Other white space, such as an ideographic space, may be a word.
    return line.rstrip("\r\n").split("\t") if tabs else _GAP.split(line.strip(_BLANKS))


def _kind(line: str) -> str:
    if line.startswith("#"):
        return "hash"
    if not line.strip(_BLANKS):
        return "blank"
    if line.startswith(_DOCUMENT) and not line[len(_DOCUMENT) :][:1].strip(_BLANKS):
        return "document"
    return "word"


def _kept(words: list[list[str]], columns: Sequence[int]) -> list[list[str]]:
    return [[fields[column] for fields in words] for column in columns]


def _expected(form: _Form) -> str:
    count = f"{form.width} column{'s' if form.width > 1 else ''}"
    return f"expected {count} separated by {'tabs' if form.tabs else 'spaces'} as in line {form.line}"


def _no_sentence(path: Path) -> InputError:
    with open_lines(path) as lines:
        given = "only comments and blank lines" if any(islice(lines, 1)) else "an empty file"
    return InputError(f"{path}: expected sentences with a word on each line, got {given}")
