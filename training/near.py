"""The "did you mean" of messages about names that do not exist."""

import difflib
from collections.abc import Iterable


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """A hint at the known names that a wrong one may stand for, to end a message with; empty if none is near.

    Args:
        name: What was given, for example `--learning-rate`.
        known: All names, for example `--optimizer.learning-rate`; what stands after a dot may be given alone.
    """
    known = list(known)
    bare = {each: _bare(each) for each in known}
    wanted = _bare(name)
    same_end = [each for each in known if bare[each].rpartition(".")[2] == wanted.rpartition(".")[2]]
    if same_end:
        return f"; did you mean {' or '.join(same_end)}?"
    near = difflib.get_close_matches(wanted, bare.values(), n=1, cutoff=0.7)
    if not near:
        ends = {bare[each].rpartition(".")[2]: each for each in known}
        near_end = difflib.get_close_matches(wanted.rpartition(".")[2], ends, n=1, cutoff=0.7)
        return f"; did you mean {ends[near_end[0]]}?" if near_end else ""
    return f"; did you mean {next(each for each in known if bare[each] == near[0])}?"


def _bare(name: str) -> str:
    return name.removeprefix("--").replace("_", "-").lower()
