"""The "did you mean" of messages about names that do not exist."""

import difflib
from collections.abc import Iterable


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """A hint at the known names that a wrong one may stand for, to end a message with; empty if none is near.

    Args:
        name: What was given, for example `--learning-rate`.
        known: All names, for example `--optimizer.learning-rate`; only what follows the last dot is compared.
    """
    places: dict[str, list[str]] = {}
    for each in known:
        places.setdefault(_last_part(each), []).append(each)
    near = difflib.get_close_matches(_last_part(name), places, n=1, cutoff=0.65)
    if not near:
        return ""
    as_deep = [each for each in places[near[0]] if each.count(".") == name.count(".")]
    return f"; did you mean {' or '.join(as_deep or places[near[0]])}?"


def _last_part(name: str) -> str:
    return name.removeprefix("--").replace("_", "-").lower().rpartition(".")[2]
