"""The error for unusable input, and the hint at similar names that ends its message."""

import difflib
import importlib.util
import itertools
from collections.abc import Iterable

MOST_COMPARED = 1000
# Names shown in a message, and characters of each.
_NAMES, _NAME_LENGTH = 10, 100


class InputError(ValueError):
    """Input that cannot be used. Commands print the message and exit with status 2.

    The message is one line: `FILE:LINE: expected X, got Y. HINT`, or the flag in place of the file.
    """


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
    shown = [each if len(each) <= _NAME_LENGTH else f"{each[:_NAME_LENGTH]}…" for each in listed[:_NAMES]]
    more = f" and {len(listed) - _NAMES:,} more" if len(listed) > _NAMES else ""
    return f"{', '.join(shown)}{more}" if shown else none


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
