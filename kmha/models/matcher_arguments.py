"""Which arguments of a matcher contradict each other."""

import typing
from collections.abc import Mapping
from typing import Any, Literal

from kmha.errors import InputError

Target = Literal["binary", "classes", "graded"]


def check_arguments(
    encoders: Mapping[str, Any],
    num_labels: int,
    target: str,
    form: str,
    rounds: int,
    symmetric: bool,
    share_weights: bool,
) -> None:
    """Refuses what no matcher can be; the arguments are those of `TextMatcher`.

    Raises:
        InputError: Names the argument, what was wanted and what was given.
    """
    if not encoders:
        raise InputError("encoders must be one granularity or more, got none")
    if target not in typing.get_args(Target):
        raise InputError(f"target must be one of {', '.join(typing.get_args(Target))}, got {target!r}")
    if target != "classes" and num_labels != 1:
        raise InputError(f"num_labels must be 1 for a {target} target, got {num_labels}")
    if target == "classes" and num_labels < 2:
        raise InputError(f"num_labels must be at least 2 for a classes target, got {num_labels}")
    if form == "bi" and target == "classes":
        raise InputError("target must be binary or graded in the bi form, which has one score; given classes")
    if not 1 <= rounds <= 4:
        raise InputError(f"rounds must be from 1 to 4, got {rounds}")
    if symmetric and not share_weights:
        raise InputError("share_weights must be on in a symmetric matcher, got off")
