"""How a long text is divided: windows of one length that overlap, and what they cost to compute."""

import dataclasses
from typing import Any

import numpy as np

from kmha.errors import InputError

# [CLS] before and [SEP] after what a window reads of a text.
SPECIAL_TOKENS = 2


@dataclasses.dataclass(frozen=True)
class WindowShape:
    """Windows of a fixed length at a fixed stride.

    Of a text of T tokens, [CLS] and [SEP] among them, window i reads its own [CLS], the tokens from i · stride + 1 on,
    as many as there is room for, and its own [SEP]. The last window is as short as what is left.

    Args:
        length: Tokens of a window, both special ones included.
        overlap: Tokens of the text that a window has in common with the next one.

    Raises:
        InputError: A window has no room for a token, or the next one would not get any further.
    """

    length: int
    overlap: int = 0

    def __post_init__(self):
        if self.room < 1:
            raise InputError(f"a window must be at least {SPECIAL_TOKENS + 1} long, got {self.length}")
        if not 0 <= self.overlap < self.room:
            raise InputError(
                f"the overlap must be at least 0 and below {self.room}, what a window of {self.length} reads of a"
                f" text, got {self.overlap}"
            )

    @property
    def room(self) -> int:
        """Tokens that a window reads of a text, special ones not counted."""
        return self.length - SPECIAL_TOKENS

    @property
    def stride(self) -> int:
        """How many tokens after a window the next one begins."""
        return self.room - self.overlap

    def count(self, tokens: Any) -> Any:
        """How many windows texts of so many tokens have, special ones included: an integer, or integers [R]."""
        return 1 + (np.maximum(tokens - self.length, 0) + self.stride - 1) // self.stride

    def computed_tokens(self, tokens: Any) -> Any:
        """Tokens that texts padded to so many are computed with: those of all their windows."""
        return self.count(tokens) * np.minimum(tokens, self.length)

    def positions(self, tokens: int) -> list[list[int]]:
        """Of each window of a text of so many tokens, at least 2, the places in the text that it reads."""
        starts = [index * self.stride for index in range(int(self.count(tokens)))]
        return [[0, *range(at + 1, min(at + self.room, tokens - 2) + 1), tokens - 1] for at in starts]

    def full_lengths(self, longest: int) -> list[int]:
        """The lengths above one window, ascending, that fill their windows; the last is the longest text itself.

        Args:
            longest: Tokens of the longest text; more than those of a window.
        """
        return [*range(self.length + self.stride, longest, self.stride), longest]


def window_shape_of(model: Any) -> WindowShape | None:
    """How a model divides long texts; None where it reads every text whole."""
    return getattr(model, "windows", None)


def computed_tokens(model: Any, tokens: Any) -> Any:
    """Tokens that a model computes for texts padded to so many: an integer, or integers [R]."""
    windows = window_shape_of(model)
    return tokens if windows is None else windows.computed_tokens(tokens)
