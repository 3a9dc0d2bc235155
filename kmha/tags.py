"""Tagging schemes (BIO, BIOES, BMES, IOB1) and the spans that sequences of tags encode.

A tag is `O`, or a prefix and a type: `B-PER`; a type may contain hyphens (`B-creative-work`). A prefix alone (`B`) has
the type "", as in word segmentation with `B M E S`. The prefixes of the words of a span:

    bio    B first, I for the others (also called IOB2)
    bioes  B first, I inside, E last, S for a single word (also called IOBES)
    bmes   as bioes, with M for I
    iob1   I for all words; B for the first only directly after a span of the same type
    none   no spans: a tag is any text, and each word is a span of its own

A sequence of tags is *broken* where two adjacent tags, or a tag and the start or end of the sentence, encode no spans,
for example `O I-PER` in BIO. There are two ways to read broken sequences; they agree on all other sequences:

- `spans_of` is lenient: a word that cannot continue a span starts a new one, and a span without an end tag ends at its
  last word. `repair_tags` writes the tags of these spans.
- `strict_spans_of` skips invalid spans, as the strict mode of seqeval does. The metrics use it.

All functions raise InputError for a tag that the scheme does not have.
"""

from collections.abc import Iterable, Sequence
from functools import lru_cache
from typing import Any, Literal, NamedTuple, get_args

from kmha.errors import InputError

Scheme = Literal["bio", "bioes", "bmes", "iob1", "none"]

OUTSIDE = "O"
SCHEMES: tuple[Scheme, ...] = get_args(Scheme)


class _Prefixes(NamedTuple):
    """Prefixes of a scheme by their meaning."""

    begin: str  # the word is the first of a span, whatever precedes it
    inside: str  # the word continues the span of the word before
    open: str  # another word of the span may follow
    closed: str  # the span may end at this word


_PREFIXES: dict[Scheme, _Prefixes] = {
    "bio": _Prefixes("B", "I", "BI", "BI"),
    "bioes": _Prefixes("BS", "IE", "BI", "ES"),
    "bmes": _Prefixes("BS", "ME", "BM", "ES"),
    "iob1": _Prefixes("I", "I", "BI", "BI"),
}


class Span(NamedTuple):
    """Adjacent words with one type, from the index `first` to `end` (exclusive)."""

    first: int
    end: int
    type: str


class Transitions(NamedTuple):
    """Which of K tags may occur where: NumPy arrays of bool."""

    start: Any  # [K]: the tag may start a sentence
    pairs: Any  # [K, K]: the second tag may directly follow the first
    end: Any  # [K]: the tag may end a sentence


def prefixes(scheme: Scheme) -> str:
    """All prefixes of a scheme except `O`; empty for "none"."""
    return "" if scheme == "none" else "".join(sorted(set("".join(_PREFIXES[scheme]))))


@lru_cache(maxsize=4096)
def split_tag(tag: str, scheme: Scheme) -> tuple[str, str]:
    """Splits a tag into prefix and type: ("O", "") for `O`, and ("", tag) for "none"."""
    if scheme == "none":
        return "", tag
    if tag == OUTSIDE:
        return OUTSIDE, ""
    prefix, hyphen, name = tag.partition("-")
    if len(prefix) != 1 or prefix not in prefixes(scheme) or (hyphen and not name):
        expected = ", ".join(f"{letter}-TYPE" for letter in prefixes(scheme))
        raise InputError(f"tags of the scheme {scheme}: expected {OUTSIDE}, {expected}; got {tag!r}")
    return prefix, name


def _join_tag(prefix: str, name: str) -> str:
    return f"{prefix}-{name}" if name else prefix


def _continues(before: tuple[str, str], after: tuple[str, str], scheme: Scheme) -> bool:
    """Whether the second word belongs to the span of the first; both are (prefix, type)."""
    meaning = _PREFIXES[scheme]
    return after[0] in meaning.inside and before[0] in meaning.open and before[1] == after[1]


def _may_follow(before: tuple[str, str], after: tuple[str, str], scheme: Scheme) -> bool:
    """Whether the second tag may directly follow the first; both are (prefix, type)."""
    if scheme == "iob1":
        return after[0] != "B" or (before[0] != OUTSIDE and before[1] == after[1])
    if after[0] in _PREFIXES[scheme].inside:
        return _continues(before, after, scheme)
    return before[0] in (OUTSIDE, *_PREFIXES[scheme].closed)


def spans_of(tags: Sequence[str], scheme: Scheme) -> list[Span]:
    """Reads the spans of a sentence in order, leniently if the sequence is broken.

    With the scheme "none" each word is a span whose type is its tag.
    """
    if scheme == "none":
        return [Span(place, place + 1, tag) for place, tag in enumerate(tags)]
    spans, first, before = [], 0, (OUTSIDE, "")
    for place, tag in enumerate([*tags, OUTSIDE]):
        parts = split_tag(tag, scheme)
        if not _continues(before, parts, scheme):
            if before[0] != OUTSIDE:
                spans.append(Span(first, place, before[1]))
            first = place
        before = parts
    return spans


def strict_spans_of(tags: Sequence[str], scheme: Scheme) -> list[Span]:
    """Reads only the valid spans of a sentence, as seqeval's strict mode does.

    A BIO span starts with B. A BIOES or BMES span also ends with E, or is one word with S. In IOB1, a B that does not
    follow a word of its type starts no span, and a single B is no span if such a B follows it.
    """
    if scheme == "none":
        return spans_of(tags, scheme)
    begin, closed = _PREFIXES[scheme].begin, _PREFIXES[scheme].closed
    spans, first, before = [], None, (OUTSIDE, "")
    for place, tag in enumerate([*tags, OUTSIDE]):
        parts = split_tag(tag, scheme)
        if first is None or not _continues(before, parts, scheme):
            misplaced = scheme == "iob1" and not _may_follow(before, parts, scheme)
            if first is not None and before[0] in closed and not (misplaced and before[0] == "B"):
                spans.append(Span(first, place, before[1]))
            begins = parts[0] in begin or (scheme == "iob1" and parts[0] == "B" and not misplaced)
            first = place if begins else None
        before = parts
    return spans


def tags_of(spans: Iterable[Span], length: int, scheme: Scheme) -> list[str]:
    """Encodes spans, in any order, as tags of `length` words; with "none" each word must be a span of its own.

    Raises ValueError if a span is empty, overlaps another one, or is outside the words.
    """
    tags = [OUTSIDE] * length
    ordered = sorted(spans)
    if scheme == "none" and len(ordered) != length:
        raise ValueError(f"expected a span for each of {length} words without a scheme, got {len(ordered)}")
    before = Span(0, 0, "")
    for span in ordered:
        first, end, name = span
        if not before.end <= first < end <= length:
            raise ValueError(
                f"expected spans apart within {length} words, got {tuple(span)} after {tuple(before)}"
            )
        follows_same_type = before.end == first > 0 and before.type == name
        tags[first:end] = _span_tags(end - first, name, scheme, follows_same_type)
        before = span
    return tags


def _span_tags(length: int, name: str, scheme: Scheme, follows_same_type: bool) -> list[str]:
    if scheme == "none":
        if length != 1:
            raise ValueError(f"expected spans of one word each without a scheme, got {length} words")
        return [name]
    if scheme == "iob1":
        letters = ("B" if follows_same_type else "I") + "I" * (length - 1)
    elif scheme == "bio":
        letters = "B" + "I" * (length - 1)
    else:
        inside, last = _PREFIXES[scheme].inside
        letters = "S" if length == 1 else "B" + inside * (length - 2) + last
    return [_join_tag(letter, name) for letter in letters]


def broken_words(tags: Sequence[str], scheme: Scheme) -> list[int]:
    """Indices of words whose tag may not follow the previous one, or may not start or end the sentence."""
    if scheme == "none":
        return []
    parts = [(OUTSIDE, ""), *(split_tag(tag, scheme) for tag in tags), (OUTSIDE, "")]
    places = [
        min(place, len(tags) - 1)
        for place, (before, after) in enumerate(zip(parts, parts[1:], strict=False))
        if not _may_follow(before, after, scheme)
    ]
    return sorted(set(places))


def repair_tags(tags: Sequence[str], scheme: Scheme) -> list[str]:
    """The valid tags of the spans that `spans_of` reads; they may occur nowhere else in the data."""
    return tags_of(spans_of(tags, scheme), len(tags), scheme)


def allowed_transitions(tags: Sequence[str], scheme: Scheme) -> Transitions:
    """Which of the K tags may follow each other; a sequence is broken exactly where it violates this.

    With few tags, some sentence lengths may have no valid sequence: without `S`, a single word of BMES has none.
    """
    # Imported here: kmha.bundle.manifest uses this module and must start fast.
    import numpy as np

    count = len(tags)
    if scheme == "none":
        return Transitions(np.ones(count, bool), np.ones((count, count), bool), np.ones(count, bool))
    # The start and the end of a sentence allow what an outside word allows.
    parts = [split_tag(tag, scheme) for tag in (*tags, OUTSIDE)]
    table = np.array([[_may_follow(before, after, scheme) for after in parts] for before in parts], bool)
    return Transitions(table[-1, :-1].copy(), table[:-1, :-1].copy(), table[:-1, -1].copy())


def detect_scheme(sequences: Iterable[Sequence[str]]) -> Scheme:
    """Detects the scheme from the tags of sentences, which are read once.

    Tags with M are BMES; otherwise tags with E or S are BIOES. Between BIO and IOB1, which have the same tags, the one
    with fewer broken words is chosen, BIO on a tie. The scheme is "none" if a tag has another prefix, if M and I both
    occur, or if all tags are `O`.
    """
    counts = dict.fromkeys(("bio", "iob1"), 0)
    seen: set[str] = set()
    for tags in sequences:
        for tag in set(tags) - {OUTSIDE}:
            prefix, hyphen, name = tag.partition("-")
            if prefix not in set("BIMES") or (hyphen and not name):
                return "none"
            seen.add(prefix)
        if seen <= {"B", "I"}:
            counts["bio"] += len(broken_words(tags, "bio"))
            counts["iob1"] += len(broken_words(tags, "iob1"))
    if not seen or {"M", "I"} <= seen:
        return "none"
    if "M" in seen:
        return "bmes"
    if seen & {"E", "S"}:
        return "bioes"
    return "bio" if counts["bio"] <= counts["iob1"] else "iob1"
