"""Allowed ranges of settings, as annotations of their types."""

import dataclasses
import math
import typing
from typing import Annotated, Any

from kmha.errors import InputError, shown

# Sizes of arrays, and their products with small numbers, fit into 64 bits.
LARGEST_INTEGER = 10**12


@dataclasses.dataclass(frozen=True)
class Range:
    """Allowed range of a number: inclusive (`at_least`, `at_most`) and exclusive (`above`, `below`) limits.

    None means no limit. Only finite numbers are allowed.
    """

    at_least: float | None = None
    above: float | None = None
    at_most: float | None = None
    below: float | None = None

    def holds(self, number: float) -> bool:
        """Returns whether the number is in the range; False for NaN."""
        return (
            math.isfinite(number)
            and (self.at_least is None or number >= self.at_least)
            and (self.above is None or number > self.above)
            and (self.at_most is None or number <= self.at_most)
            and (self.below is None or number < self.below)
        )

    def __str__(self) -> str:
        ends = {f.name.replace("_", " "): getattr(self, f.name) for f in dataclasses.fields(self)}
        words = [f"{name} {end}" for name, end in ends.items() if end is not None]
        return " and ".join(words) or "a finite number"


Count = Annotated[int, Range(at_least=1)]
Probability = Annotated[float, Range(at_least=0, below=1)]
OpenShare = Annotated[float, Range(above=0, below=1)]
Positive = Annotated[float, Range(above=0)]
NotNegative = Annotated[float, Range(at_least=0)]


def check_ranges(config: Any, prefix: str = "--") -> None:
    """Raises InputError for a setting of a dataclass outside of the `Range` of its type; None is always allowed."""
    hints = typing.get_type_hints(type(config), include_extras=True)
    for field in dataclasses.fields(config):
        value, flag = getattr(config, field.name), f"{prefix}{field.name}".replace("_", "-")
        if dataclasses.is_dataclass(value):
            check_ranges(value, f"{flag}.")
            continue
        if type(value) is int and abs(value) > LARGEST_INTEGER:
            raise InputError(f"{flag}: expected at most {LARGEST_INTEGER:,}, got {shown(value)}")
        if "\0" in str(value):
            raise InputError(f"{flag}: expected text without null characters, got {shown(str(value))}")
        for allowed in getattr(hints[field.name], "__metadata__", ()):
            if isinstance(allowed, Range) and value is not None and not allowed.holds(value):
                raise InputError(f"{flag}: expected {allowed}, got {value}")
