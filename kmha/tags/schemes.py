"""Spans of words and the tags that spell them: BIO, BIOES, BMES and IOB1.

A tag is `O`, or a prefix and a type: `B-PER`; a type may hold hyphens (`B-creative-work`). A prefix alone (`B`) has
the type "", as in word segmentation with `B M E S`. What the prefixes say of a span's words:

    bio    B first, I each further one (also called IOB2)
    bioes  B first, I inside, E last, S the only one (also called IOBES)
    bmes   as bioes, with M for I
    iob1   I each one; B first, only where a span of the same type ends right before
    none   there are no spans: any text is a tag, and each word stands for itself

A sequence of tags is *broken* where two neighbours, or a tag and an end of the sentence, spell no spans, for example
`O I-PER` in BIO. There are two readings of such sequences; they agree on all others:

- `spans_of` keeps what it can: a word that cannot continue the span before it begins one, and a span that is
  not closed ends where it stops. This is what `repaired` writes.
- `strict_spans_of` leaves out what is not spelt right, as the strict mode of seqeval does. Scores use it.
"""

from collections.abc import Iterable, Sequence
from typing import NamedTuple

import numpy as np

from kmha.tags.letters import LETTERS, OUTSIDE, Scheme, continues, follows, joined, prefixes, split_tag


class Span(NamedTuple):
    """Neighbouring words that together are something.

    Attributes:
        first: Number of the first word, from 0.
        end: Number of the last word plus 1.
        type: What they are.
    """

    first: int
    end: int
    type: str


class Transitions(NamedTuple):
    """Which of K tags may stand where.

    Attributes:
        start: bool [K]; may begin a sentence.
        pairs: bool [K, K]; the second may stand right behind the first.
        end: bool [K]; may end a sentence.
    """

    start: np.ndarray
    pairs: np.ndarray
    end: np.ndarray


def spans_of(tags: Sequence[str], scheme: Scheme) -> list[Span]:
    """Gives the spans of a sentence, of broken sequences what can be kept.

    Args:
        tags: Of W words.
        scheme: How they are spelt; with "none" each word is a span of its own, whose type is its tag.

    Returns:
        Spans in order, none of which overlap.

    Raises:
        InputError: A tag that the scheme does not have.
    """
    if scheme == "none":
        return [Span(place, place + 1, tag) for place, tag in enumerate(tags)]
    spans, first, before = [], 0, (OUTSIDE, "")
    for place, tag in enumerate([*tags, OUTSIDE]):
        parts = split_tag(tag, scheme)
        if not continues(before, parts, scheme):
            if before[0] != OUTSIDE:
                spans.append(Span(first, place, before[1]))
            first = place
        before = parts
    return spans


def strict_spans_of(tags: Sequence[str], scheme: Scheme) -> list[Span]:
    """Gives those spans of a sentence that are spelt right, as seqeval's strict mode counts them.

    In BIO a span begins with B. In BIOES and BMES it also ends with E, or is one word with S. In IOB1 a B that
    stands behind no word of its type begins no span; nor does a lone B count as one when such a B follows it.

    Args:
        tags: Of W words.
        scheme: As for `spans_of`.

    Raises:
        InputError: A tag that the scheme does not have.
    """
    if scheme == "none":
        return spans_of(tags, scheme)
    begin, closed = LETTERS[scheme].begin, LETTERS[scheme].closed
    spans, first, before = [], None, (OUTSIDE, "")
    for place, tag in enumerate([*tags, OUTSIDE]):
        parts = split_tag(tag, scheme)
        if first is None or not continues(before, parts, scheme):
            misplaced = scheme == "iob1" and not follows(before, parts, scheme)
            if first is not None and before[0] in closed and not (misplaced and before[0] == "B"):
                spans.append(Span(first, place, before[1]))
            begins = parts[0] in begin or (scheme == "iob1" and parts[0] == "B" and not misplaced)
            first = place if begins else None
        before = parts
    return spans


def tags_of(spans: Iterable[Span], length: int, scheme: Scheme) -> list[str]:
    """Spells spans as tags.

    Args:
        spans: In any order.
        length: Number of words, W.
        scheme: How to spell them; with "none" each word must be a span of its own.

    Returns:
        W tags.

    Raises:
        ValueError: A span outside the words, of no length, or over words of another.
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
        touches_same = before.end == first > 0 and before.type == name
        tags[first:end] = _spelt(end - first, name, scheme, touches_same)
        before = span
    return tags


def broken(tags: Sequence[str], scheme: Scheme) -> list[int]:
    """Gives the words whose tag cannot stand behind the one before, or not begin or end the sentence.

    Raises:
        InputError: A tag that the scheme does not have.
    """
    if scheme == "none":
        return []
    parts = [(OUTSIDE, ""), *(split_tag(tag, scheme) for tag in tags), (OUTSIDE, "")]
    places = [
        min(place, len(tags) - 1)
        for place, (before, after) in enumerate(zip(parts, parts[1:], strict=False))
        if not follows(before, after, scheme)
    ]
    return sorted(set(places))


def repaired(tags: Sequence[str], scheme: Scheme) -> list[str]:
    """Spells the spans of a sentence right; a sequence that is not broken stays as it is.

    What it writes may be a tag that stands nowhere else in the data, see `missing_tags`.

    Raises:
        InputError: A tag that the scheme does not have.
    """
    return tags_of(spans_of(tags, scheme), len(tags), scheme)


def allowed_transitions(tags: Sequence[str], scheme: Scheme) -> Transitions:
    """Tells which tags may follow each other; a sequence is broken exactly where it does not obey.

    With few tags there may be no allowed sequence of a length: without `S`, a single word of BMES has none.
    `missing_tags` names what lacks.

    Args:
        tags: The K tags that there are.
        scheme: How they are spelt; with "none" everything is allowed.

    Raises:
        InputError: A tag that the scheme does not have.
    """
    count = len(tags)
    if scheme == "none":
        return Transitions(np.ones(count, bool), np.ones((count, count), bool), np.ones(count, bool))
    # An end of the sentence is as good as a word outside.
    parts = [split_tag(tag, scheme) for tag in (*tags, OUTSIDE)]
    table = np.array([[follows(before, after, scheme) for after in parts] for before in parts], bool)
    return Transitions(table[-1, :-1].copy(), table[:-1, :-1].copy(), table[:-1, -1].copy())


def missing_tags(tags: Iterable[str], scheme: Scheme) -> list[str]:
    """Gives the tags of the same types that a scheme has beside these, sorted: such as a repair may write.

    With "none" there are none. `O` is among them unless the types are all nameless (word segmentation).

    Raises:
        InputError: A tag that the scheme does not have.
    """
    if scheme == "none":
        return []
    there = set(tags)
    types = {split_tag(tag, scheme)[1] for tag in there if tag != OUTSIDE}
    all_tags = {joined(prefix, name) for prefix in prefixes(scheme) for name in types}
    if types != {""}:
        all_tags.add(OUTSIDE)
    return sorted(all_tags - there)


def detect_scheme(sequences: Iterable[Sequence[str]]) -> Scheme:
    """Finds the scheme by the tags of sentences.

    Tags with M are BMES, otherwise those with E or S are BIOES. Of BIO and IOB1, which have the same tags, it
    is the one in which fewer words are broken, BIO where that does not decide. Where any tag has no prefix of
    these, or M stands beside I, or nothing but `O` was seen, the scheme is "none".

    Args:
        sequences: Tags of each sentence; read once.
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
            counts["bio"] += len(broken(tags, "bio"))
            counts["iob1"] += len(broken(tags, "iob1"))
    if not seen or {"M", "I"} <= seen:
        return "none"
    if "M" in seen:
        return "bmes"
    if seen & {"E", "S"}:
        return "bioes"
    return "bio" if counts["bio"] <= counts["iob1"] else "iob1"


def _spelt(length: int, name: str, scheme: Scheme, touches_same: bool) -> list[str]:
    """The tags of one span."""
    if scheme == "none":
        if length != 1:
            raise ValueError(f"expected spans of one word each without a scheme, got {length} words")
        return [name]
    if scheme == "iob1":
        letters = ("B" if touches_same else "I") + "I" * (length - 1)
    elif scheme == "bio":
        letters = "B" + "I" * (length - 1)
    else:
        inside, last = LETTERS[scheme].inside
        letters = "S" if length == 1 else "B" + inside * (length - 2) + last
    return [joined(letter, name) for letter in letters]
