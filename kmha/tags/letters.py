"""Letters of tagging schemes: what the prefix of a tag says, and which two tags may stand side by side."""

from functools import lru_cache
from typing import Literal, NamedTuple, get_args

from kmha.errors import InputError

Scheme = Literal["bio", "bioes", "bmes", "iob1", "none"]

OUTSIDE = "O"
SCHEMES: tuple[Scheme, ...] = get_args(Scheme)


class Letters(NamedTuple):
    """Prefixes of a scheme, by what they say of a span.

    Attributes:
        begin: The word is the first one, whatever stands before.
        inside: It goes on with the span of the word before.
        open: Another word of the span may follow.
        closed: The span may end here.
    """

    begin: str
    inside: str
    open: str
    closed: str


LETTERS: dict[Scheme, Letters] = {
    "bio": Letters("B", "I", "BI", "BI"),
    "bioes": Letters("BS", "IE", "BI", "ES"),
    "bmes": Letters("BS", "ME", "BM", "ES"),
    "iob1": Letters("I", "I", "BI", "BI"),
}


def prefixes(scheme: Scheme) -> str:
    """Letters that a tag of the scheme may begin with, `O` left out; empty with "none"."""
    return "" if scheme == "none" else "".join(sorted(set("".join(LETTERS[scheme]))))


@lru_cache(maxsize=4096)
def split_tag(tag: str, scheme: Scheme) -> tuple[str, str]:
    """Gives prefix and type of a tag, ("O", "") for a word outside, and with "none" ("", the tag).

    Raises:
        InputError: A tag that the scheme does not have.
    """
    if scheme == "none":
        return "", tag
    if tag == OUTSIDE:
        return OUTSIDE, ""
    prefix, hyphen, name = tag.partition("-")
    if len(prefix) != 1 or prefix not in prefixes(scheme) or (hyphen and not name):
        expected = ", ".join(f"{letter}-TYPE" for letter in prefixes(scheme))
        raise InputError(f"tags of the scheme {scheme}: expected {OUTSIDE}, {expected}; got {tag!r}")
    return prefix, name


def joined(prefix: str, name: str) -> str:
    """The tag of a prefix and a type."""
    return f"{prefix}-{name}" if name else prefix


def continues(before: tuple[str, str], after: tuple[str, str], scheme: Scheme) -> bool:
    """Whether the second word is in the span of the first."""
    letters = LETTERS[scheme]
    return after[0] in letters.inside and before[0] in letters.open and before[1] == after[1]


def follows(before: tuple[str, str], after: tuple[str, str], scheme: Scheme) -> bool:
    """Whether two tags may stand side by side."""
    if scheme == "iob1":
        return after[0] != "B" or (before[0] != OUTSIDE and before[1] == after[1])
    if after[0] in LETTERS[scheme].inside:
        return continues(before, after, scheme)
    return before[0] in (OUTSIDE, *LETTERS[scheme].closed)
