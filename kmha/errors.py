"""The error for unusable input, and the hint at similar names that ends its message."""

import difflib
import importlib.util
import itertools
import re
from collections.abc import Iterable

MOST_COMPARED = 1000
# Names shown in a message, and characters of each; characters of a message, and of a value in it.
_NAMES, _NAME_LENGTH = 10, 100
_MESSAGE_LENGTH, _VALUE_LENGTH = 2_000, 60
# Control characters, line separators, marks that reverse the direction of text, and half surrogate pairs.
_UNPRINTABLE = re.compile("[\x00-\x1f\x7f-\x9f\u2028\u2029\u202a-\u202e\u2066-\u2069\ud800-\udfff]")


class InputError(ValueError):
    """Input that cannot be used. Commands print the message and exit with status 2.

    The message is one printable line of limited length: `FILE:LINE: expected X, got Y. HINT`, or the flag in place of
    the file.
    """

    def __init__(self, message: str):
        if len(message) > _MESSAGE_LENGTH:
            message = f"{message[: 3 * _MESSAGE_LENGTH // 4]} … {message[-_MESSAGE_LENGTH // 4 :]}"
        super().__init__(printable(" ".join(message.splitlines())))


def printable(text: str) -> str:
    """Text whose characters that could control a terminal are replaced by their escapes in Python."""
    return _UNPRINTABLE.sub(lambda found: repr(found[0])[1:-1], text)


def shorten(text: str, most: int = _VALUE_LENGTH) -> str:
    """The first characters of a text, and … if it has more."""
    return text if len(text) <= most else f"{text[:most]}…"


def shown(value: object) -> str:
    """A value in a message: one line of limited length."""
    return shorten(repr(value))


def require_package(module: str, user: str, extra: str) -> None:
    """Raises InputError if a package of an extra is not installed; `user` is the flag or command that needs it.

    The command in the message works where kmha is installed, from a checkout or a wheel. An empty extra: kmha itself.
    """
    if importlib.util.find_spec(module) is None:
        package = f"kmha[{extra}]" if extra else "kmha"
        raise InputError(
            f"{user}: expected the package {module.replace('_', '-')}, got none; pip install '{package}'"
        )


def format_names(names: Iterable[str], none: str = "none") -> str:
    """Names in a message: the first ten, each with at most 100 characters, and the number of the others."""
    listed = list(names)
    names = ", ".join(printable(shorten(each, _NAME_LENGTH)) for each in listed[:_NAMES])
    more = f" and {len(listed) - _NAMES:,} more" if len(listed) > _NAMES else ""
    return f"{names}{more}" if listed else none


def did_you_mean(name: str, known: Iterable[str], form: str = "{}") -> str:
    """A hint to append to a message: "; did you mean NAME?", in a form; empty if no known name is similar.

    Case is ignored, and only the parts after the last dot are compared: `--learning-rate` may be meant as
    `--optimizer.learning-rate`.
    """
    places: dict[str, list[str]] = {}
    # Comparing takes a millisecond for each hundred names.
    for each in itertools.islice(known, MOST_COMPARED):
        places.setdefault(_last_part(each), []).append(each)
    similar = difflib.get_close_matches(_last_part(name), places, n=1, cutoff=0.65)
    if not similar:
        return ""
    same_depth = [each for each in places[similar[0]] if each.count(".") == name.count(".")]
    return f"; did you mean {' or '.join(map(form.format, same_depth or places[similar[0]]))}?"


def _last_part(name: str) -> str:
    return name.strip().removeprefix("--").replace("_", "-").casefold().rpartition(".")[2]
