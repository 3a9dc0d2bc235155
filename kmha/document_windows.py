"""Overlapping windows of long texts: their shape, their number, and the tokens to compute."""

import dataclasses
from typing import Any

import numpy as np

from kmha.errors import InputError

# [CLS] before and [SEP] after the text of a window.
SPECIAL_TOKENS = 2


@dataclasses.dataclass(frozen=True)
class WindowShape:
    """Windows of a fixed length with a fixed stride.

    For a text of T tokens with [CLS] and [SEP], window i has its own [CLS], the tokens from i · stride + 1 on, as many
    as fit, and its own [SEP]. The last window may be shorter.

    Args:
        length: Tokens of a window, with the two special tokens.
        overlap: Tokens of the text that a window shares with the next one.

    Raises:
        InputError: The window is too short for a token of the text, or the overlap leaves no stride.
    """

    length: int
    overlap: int = 0

    def __post_init__(self):
        if self.room < 1:
            raise InputError(f"a window must be at least {SPECIAL_TOKENS + 1} long, got {self.length}")
        if not 0 <= self.overlap < self.room:
            raise InputError(
                f"the overlap must be at least 0 and below {self.room}, the text tokens of a window of {self.length},"
                f" got {self.overlap}"
            )

    @property
    def room(self) -> int:
        """Tokens of the text in a window, without special tokens."""
        return self.length - SPECIAL_TOKENS

    @property
    def stride(self) -> int:
        """Distance of two windows in tokens."""
        return self.room - self.overlap

    def count(self, tokens: Any) -> Any:
        """Number of windows of texts with this many tokens (special ones included): an integer or integers [R]."""
        return 1 + (np.maximum(tokens - self.length, 0) + self.stride - 1) // self.stride

    def computed_tokens(self, tokens: Any) -> Any:
        """Tokens of all windows of texts that are padded to this many tokens."""
        return self.count(tokens) * np.minimum(tokens, self.length)

    def positions(self, tokens: int) -> list[list[int]]:
        """For each window of a text of at least 2 tokens, the positions of its tokens in the text."""
        starts = [index * self.stride for index in range(int(self.count(tokens)))]
        return [[0, *range(at + 1, min(at + self.room, tokens - 2) + 1), tokens - 1] for at in starts]

    def full_lengths(self, longest: int) -> list[int]:
        """Text lengths above one window whose windows are all full, ascending, and the longest length itself."""
        return [*range(self.length + self.stride, longest, self.stride), longest]


def window_shape_of(model: Any) -> WindowShape | None:
    """The windows of a model; None for a model without windows."""
    return getattr(model, "windows", None)


def computed_tokens(model: Any, tokens: Any) -> Any:
    """Tokens that a model computes for texts padded to `tokens`: an integer or integers [R]."""
    windows = window_shape_of(model)
    return tokens if windows is None else windows.computed_tokens(tokens)
