"""The words of texts, which tokens stand for each, and the texts without some of them."""

import re
from collections.abc import Collection, Sequence
from dataclasses import dataclass

NO_WORD = -1


@dataclass(frozen=True)
class TextWords:
    """The words of a text, or of both texts of a pair, numbered through.

    Attributes:
        texts: One, or A and B.
        spans: Of each word its text, its first character and the one after its last.
    """

    texts: tuple[str, ...]
    spans: tuple[tuple[int, int, int], ...]

    @property
    def names(self) -> list[str]:
        """The words themselves."""
        return [self.texts[text][first:end] for text, first, end in self.spans]

    def of(self, text: int) -> list[int]:
        """Numbers of the words of one text."""
        return [number for number, span in enumerate(self.spans) if span[0] == text]

    def gaps(self, text: int) -> list[bool]:
        """Whether white space stands before each word of a text."""
        return [self.texts[text][:first][-1:].isspace() for which, first, _ in self.spans if which == text]

    def without(self, dropped: Collection[int]) -> tuple[str, ...]:
        """The texts without some words, of which a text may then have none."""
        kept = []
        for number, text in enumerate(self.texts):
            end, parts = 0, []
            for word in self.of(number):
                if word in dropped:
                    parts.append(text[end : self.spans[word][1]])
                    end = self.spans[word][2]
            kept.append("".join([*parts, text[end:]]))
        return tuple(kept)

    def read(self, words: Collection[int]) -> "TextWords":
        """Those of the words alone that a model has read; each text ends where its last one of them does.

        So that nothing which had been cut off comes in when a word is dropped.
        """
        spans = tuple(span for number, span in enumerate(self.spans) if number in words)
        ends = [
            max((end for text, _, end in spans if text == number), default=0)
            for number in range(len(self.texts))
        ]
        return TextWords(tuple(text[:end] for text, end in zip(self.texts, ends, strict=True)), spans)


def white_space_bounds(text: str) -> list[tuple[int, int]]:
    """First character of each run of visible ones, and the one after its last."""
    return [match.span() for match in re.finditer(r"\S+", text)]


def align_tokens(
    tokens: Sequence[str], pieces: Sequence[Sequence[str]], gaps: Sequence[bool]
) -> list[int] | None:
    """Which word each token stands for.

    Args:
        tokens: Of a text, without the special ones at its ends.
        pieces: The tokens that each of its words has alone.
        gaps: Whether white space stands before each word, which may be a token too.

    Returns:
        A number for each token, from 0 by word, NO_WORD for white space; None where the words' tokens are not the
        text's. Words that were cut off have no token.
    """
    found: list[int] = []
    # The last word may have no token of its own.
    cut_at_gap = bool(gaps) and gaps[-1]
    for word, (own, gap) in enumerate(zip(pieces, gaps, strict=True)):
        if len(found) == len(tokens):
            break
        if not own:
            continue
        for skipped in (0, 1) if gap else (0,):
            place = len(found) + skipped
            given = list(tokens[place : place + len(own)])
            if (
                given
                and given == list(own[: len(given)])
                and (len(given) == len(own) or place + len(given) == len(tokens))
            ):
                found += [NO_WORD] * skipped + [word] * len(given)
                break
        else:
            if not gap:
                return None
            cut_at_gap = True
            break
    if len(found) == len(tokens) - 1 and cut_at_gap:
        # White space at which the text was cut off.
        found.append(NO_WORD)
    return found if len(found) == len(tokens) else None
