"""Ranges of settings, written beside each setting's type and checked before any work is done."""

import dataclasses
import math
import typing
from typing import Annotated, Any

from kmha.errors import InputError


@dataclasses.dataclass(frozen=True)
class Range:
    """The numbers a setting may have; always finite ones.

    Args:
        at_least: Smallest number allowed.
        above: Every number must be larger than this.
        at_most: Largest number allowed.
        below: Every number must be smaller than this.
    """

    at_least: float | None = None
    above: float | None = None
    at_most: float | None = None
    below: float | None = None

    def holds(self, number: float) -> bool:
        """Whether a number is in the range; NaN never is."""
        return (
            math.isfinite(number)
            and (self.at_least is None or number >= self.at_least)
            and (self.above is None or number > self.above)
            and (self.at_most is None or number <= self.at_most)
            and (self.below is None or number < self.below)
        )

    def __str__(self) -> str:
        """The range in words: "at least 0 and below 1"."""
        ends = {f.name.replace("_", " "): getattr(self, f.name) for f in dataclasses.fields(self)}
        words = [f"{name} {end}" for name, end in ends.items() if end is not None]
        return " and ".join(words) or "a finite number"


Count = Annotated[int, Range(at_least=1)]
Probability = Annotated[float, Range(at_least=0, below=1)]
OpenShare = Annotated[float, Range(above=0, below=1)]
Positive = Annotated[float, Range(above=0)]
NotNegative = Annotated[float, Range(at_least=0)]


def check_ranges(config: Any, prefix: str = "--") -> None:
    """Checks every setting whose type is annotated with a `Range`; None always passes.

    Args:
        config: A dataclass, perhaps of dataclasses.
        prefix: What its flags begin with.

    Raises:
        InputError: A number is out of its range; the flag is named.
    """
    hints = typing.get_type_hints(type(config), include_extras=True)
    for field in dataclasses.fields(config):
        value, flag = getattr(config, field.name), f"{prefix}{field.name}".replace("_", "-")
        if dataclasses.is_dataclass(value):
            check_ranges(value, f"{flag}.")
            continue
        for allowed in getattr(hints[field.name], "__metadata__", ()):
            if isinstance(allowed, Range) and value is not None and not allowed.holds(value):
                raise InputError(f"{flag}: expected {allowed}, got {value}")
