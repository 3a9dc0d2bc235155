"""The words of texts, the word of each token, and texts without some of their words."""

import re
from collections.abc import Collection, Sequence
from dataclasses import dataclass

NO_WORD = -1


@dataclass(frozen=True)
class TextWords:
    """The words of a text, or of both texts of a pair, with one numbering."""

    texts: tuple[str, ...]
    spans: tuple[
        tuple[int, int, int], ...
    ]  # for each word the index of its text, its first character, and its end

    @property
    def names(self) -> list[str]:
        """The words themselves."""
        return [self.texts[text][first:end] for text, first, end in self.spans]

    def of(self, text: int) -> list[int]:
        """Indices of the words of one text."""
        return [number for number, span in enumerate(self.spans) if span[0] == text]

    def gaps(self, text: int) -> list[bool]:
        """Whether there is white space before each word of a text."""
        return [self.texts[text][:first][-1:].isspace() for which, first, _ in self.spans if which == text]

    def without(self, dropped: Collection[int]) -> tuple[str, ...]:
        """The texts without some words."""
        texts = []
        for number, text in enumerate(self.texts):
            end, parts = 0, []
            for word in self.of(number):
                if word in dropped:
                    parts.append(text[end : self.spans[word][1]])
                    end = self.spans[word][2]
            texts.append("".join([*parts, text[end:]]))
        return tuple(texts)

    def truncated_to(self, words: Collection[int]) -> "TextWords":
        """Keeps the words that a model has read; each text ends at its last one.

        Otherwise words after the model's maximum length would move into its input when others are dropped.
        """
        spans = tuple(span for number, span in enumerate(self.spans) if number in words)
        ends = {text: end for text, _, end in spans}
        return TextWords(tuple(text[: ends.get(number, 0)] for number, text in enumerate(self.texts)), spans)


def white_space_bounds(text: str) -> list[tuple[int, int]]:
    """First character and end of each run of characters other than white space."""
    return [match.span() for match in re.finditer(r"\S+", text)]


def align_tokens(
    tokens: Sequence[str], pieces: Sequence[Sequence[str]], gaps: Sequence[bool]
) -> list[int] | None:
    """The index of each token's word, NO_WORD for white space; None if the words' tokens are not those of the text.

    Args:
        tokens: Of a text, without the special tokens at its ends.
        pieces: The tokens of each of its words, tokenized alone. Truncated words have no token.
        gaps: Whether there is white space before each word; it may be a token too.
    """
    found: list[int] = []
    # The last word may have no token of its own.
    ends_at_gap = bool(gaps) and gaps[-1]
    for word, (own, gap) in enumerate(zip(pieces, gaps, strict=True)):
        if len(found) == len(tokens):
            break
        if not own:
            continue
        for skipped in (0, 1) if gap else (0,):
            place = len(found) + skipped
            part = list(tokens[place : place + len(own)])
            is_whole = len(part) == len(own) or place + len(part) == len(tokens)
            if part and part == list(own[: len(part)]) and is_whole:
                found += [NO_WORD] * skipped + [word] * len(part)
                break
        else:
            if not gap:
                return None
            ends_at_gap = True
            break
    if len(found) == len(tokens) - 1 and ends_at_gap:
        # White space at which the text was truncated.
        found.append(NO_WORD)
    return found if len(found) == len(tokens) else None
