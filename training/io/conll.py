"""Reads CoNLL files: one word per line with its columns, and a blank line after each sentence.

- Columns are separated by tabs if the first word line has a tab, otherwise by spaces and tabs. Every word line has as
  many columns as the first. The first word line is the first line that is not blank and starts with neither `#` nor
  `-DOCSTART-`. In a file without one, it is the first line that starts with `#` and contains a tab.
- A line that starts with `#` is a word if it has that number of columns (`#hashtag<tab>O`). Otherwise it is a comment,
  which is allowed only before the first word of a sentence. In CoNLL-U files it is always a comment.
- A line whose first column is `-DOCSTART-` ends a sentence and is skipped.
- CoNLL-U ranges (`3-4`) and empty nodes (`3.1`) are skipped.
"""

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path

from kmha.errors import InputError
from training.io.disk import open_lines

MAX_SENTENCE_WORDS = 100_000
"""Longest sentence. A file that lacks blank lines would otherwise be read into one."""

_BLANKS = " \t\r\n"
_GAP = re.compile(r"[ \t]+")
_DOCUMENT = "-DOCSTART-"
_NOT_A_WORD = re.compile(r"[0-9]+[-.][0-9]+")


@dataclass(frozen=True, slots=True)
class _Form:
    """Column format of a file."""

    tabs: bool
    width: int
    line: int  # the first word line


def is_conllu(path: Path) -> bool:
    """Whether the file name ends in `.conllu` or `.conllu.gz`."""
    return path.name.lower().removesuffix(".gz").endswith(".conllu")


def count_columns(path: Path, encoding: str = "") -> int:
    """Counts the columns of the first word line; raises InputError if the file is unreadable or has no word."""
    return _form(path, encoding).width


def read_sentences(
    path: Path, columns: Sequence[int], encoding: str = ""
) -> Iterator[tuple[int, list[list[str]]]]:
    """Yields the line number of each sentence, from 1, and the values of its words in each selected column.

    Columns are indices from 0. Raises InputError if the file is unreadable, a line has another number of columns, or
    there is no sentence.
    """
    form, conllu = _form(path, encoding), is_conllu(path)
    first, words, found = 0, [], False
    with open_lines(path, encoding) as lines:
        for number, line in enumerate(lines, start=1):
            kind = _kind(line)
            if kind in ("blank", "document"):
                if words:
                    found = True
                    yield first, _selected(words, columns)
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
        yield first, _selected(words, columns)
    if not found:
        raise _no_sentence(path, encoding)


def _form(path: Path, encoding: str) -> _Form:
    conllu, hashes = is_conllu(path), None
    with open_lines(path, encoding) as lines:
        for number, line in enumerate(lines, start=1):
            kind = _kind(line)
            if kind == "word":
                return _form_of(line, number)
            if kind == "hash" and not conllu and hashes is None and "\t" in line:
                hashes = _form_of(line, number)
    if hashes is None:
        raise _no_sentence(path, encoding)
    return hashes


def _form_of(line: str, number: int) -> _Form:
    tabs = "\t" in line
    return _Form(tabs, len(_fields(line, tabs)), number)


def _fields(line: str, tabs: bool) -> list[str]:
    # Other whitespace, such as an ideographic space, can be a word.
    return line.rstrip("\r\n").split("\t") if tabs else _GAP.split(line.strip(_BLANKS))


def _kind(line: str) -> str:
    if line.startswith("#"):
        return "hash"
    if not line.strip(_BLANKS):
        return "blank"
    if line.startswith(_DOCUMENT) and not line[len(_DOCUMENT) :][:1].strip(_BLANKS):
        return "document"
    return "word"


def _selected(words: list[list[str]], columns: Sequence[int]) -> list[list[str]]:
    return [[fields[column] for fields in words] for column in columns]


def _expected(form: _Form) -> str:
    count = f"{form.width} column{'s' if form.width > 1 else ''}"
    return f"expected {count} separated by {'tabs' if form.tabs else 'spaces'} as in line {form.line}"


def _no_sentence(path: Path, encoding: str) -> InputError:
    with open_lines(path, encoding) as lines:
        given = "only comments and blank lines" if any(islice(lines, 1)) else "an empty file"
    return InputError(f"{path}: expected sentences with a word on each line, got {given}")
