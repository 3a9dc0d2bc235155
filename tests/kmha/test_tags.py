import itertools
import random

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from seqeval.scheme import IOB1, IOB2, IOBES, Tokens

from kmha.errors import InputError
from kmha.tags import (
    SCHEMES,
    Scheme,
    Span,
    allowed_transitions,
    broken_words,
    detect_scheme,
    prefixes,
    repair_tags,
    spans_of,
    split_tag,
    strict_spans_of,
    tags_of,
)

WITH_SPANS: tuple[Scheme, ...] = ("bio", "bioes", "bmes", "iob1")
SEQEVAL = {"bio": IOB2, "bioes": IOBES, "bmes": IOBES, "iob1": IOB1}


def all_tags(scheme: Scheme, types=("A", "B-c")) -> list[str]:
    if scheme == "none":
        return ["NOUN", "O", "B-A"]
    return ["O", *(f"{prefix}-{name}" if name else prefix for prefix in prefixes(scheme) for name in types)]


def sequences(scheme: Scheme, types=("A", "B-c")):
    return st.lists(st.sampled_from(all_tags(scheme, types)), max_size=12)


def obeys(tags: list[str], names: list[str], scheme: Scheme) -> bool:
    start, pairs, end = allowed_transitions(names, scheme)
    ids = [names.index(tag) for tag in tags]
    if not ids:
        return True
    inside = all(pairs[before, after] for before, after in itertools.pairwise(ids))
    return bool(start[ids[0]] and inside and end[ids[-1]])


def span_sets(length: int, types: list[str], first: int = 0):
    """All sets of spans over words."""
    if first >= length:
        yield []
        return
    yield from span_sets(length, types, first + 1)
    for end in range(first + 1, length + 1):
        for name in types:
            for rest in span_sets(length, types, end):
                yield [Span(first, end, name), *rest]


EXAMPLES = {
    "bio": "B-PER I-PER O B-LOC B-LOC I-LOC",
    "bioes": "B-PER E-PER O S-LOC B-LOC E-LOC",
    "bmes": "B-PER E-PER O S-LOC B-LOC E-LOC",
    "iob1": "I-PER I-PER O I-LOC B-LOC I-LOC",
}


@pytest.mark.parametrize("scheme", WITH_SPANS)
def test_every_scheme_encodes_the_same_spans(scheme):
    spans = [Span(0, 2, "PER"), Span(3, 4, "LOC"), Span(4, 6, "LOC")]
    assert tags_of(reversed(spans), 6, scheme) == EXAMPLES[scheme].split()
    assert spans_of(EXAMPLES[scheme].split(), scheme) == spans
    assert strict_spans_of(EXAMPLES[scheme].split(), scheme) == spans


def test_three_words_have_an_inside():
    assert tags_of([Span(0, 3, "a-b")], 3, "bioes") == ["B-a-b", "I-a-b", "E-a-b"]
    assert tags_of([Span(0, 3, "")], 3, "bmes") == ["B", "M", "E"]


def test_word_segmentation_has_one_empty_type():
    tags = list("BESBME")
    assert spans_of(tags, "bmes") == [Span(0, 2, ""), Span(2, 3, ""), Span(3, 6, "")]
    assert repair_tags(tags, "bmes") == tags
    assert detect_scheme([tags]) == "bmes"


def test_without_a_scheme_each_word_is_a_span():
    tags = ["NOUN", "NOUN", "O", "B-x"]
    assert spans_of(tags, "none") == strict_spans_of(tags, "none")
    assert spans_of(tags, "none") == [Span(place, place + 1, tag) for place, tag in enumerate(tags)]
    assert repair_tags(tags, "none") == tags and broken_words(tags, "none") == []


@pytest.mark.parametrize("scheme", WITH_SPANS)
@pytest.mark.parametrize("length", range(5))
def test_allowed_sequences_are_those_that_encode_spans(scheme, length):
    types = ["A", "B"] if length < 4 else ["A"]
    names = all_tags(scheme, tuple(types))
    encoded = {tuple(tags_of(spans, length, scheme)): spans for spans in span_sets(length, types)}
    for tags in itertools.product(names, repeat=length):
        assert (tags in encoded) == obeys(list(tags), names, scheme) == (broken_words(tags, scheme) == [])
        if tags in encoded:
            assert spans_of(tags, scheme) == strict_spans_of(tags, scheme) == encoded[tags]


@pytest.mark.parametrize("scheme", SCHEMES)
@given(data=st.data())
def test_repair_changes_only_broken_sequences(scheme, data):
    tags = data.draw(sequences(scheme))
    repaired = repair_tags(tags, scheme)
    assert obeys(repaired, all_tags(scheme), scheme)
    assert repair_tags(repaired, scheme) == repaired
    assert (repaired == tags) == (broken_words(tags, scheme) == [])
    assert [tag == "O" for tag in repaired] == [tag == "O" for tag in tags]
    assert [split_tag(tag, scheme)[1] for tag in repaired] == [split_tag(tag, scheme)[1] for tag in tags]
    assert set(repaired) <= set(all_tags(scheme))


@pytest.mark.parametrize("scheme", WITH_SPANS)
@given(data=st.data())
def test_broken_words_violate_the_transitions(scheme, data):
    tags, names = data.draw(sequences(scheme)), all_tags(scheme)
    start, pairs, end = allowed_transitions(names, scheme)
    ids = [names.index(tag) for tag in tags]
    expected = {place + 1 for place, pair in enumerate(itertools.pairwise(ids)) if not pairs[pair]}
    if ids:
        expected |= {0} if not start[ids[0]] else set()
        expected |= {len(ids) - 1} if not end[ids[-1]] else set()
    assert broken_words(tags, scheme) == sorted(expected)


@pytest.mark.parametrize("scheme", WITH_SPANS)
def test_strict_spans_equal_seqeval(scheme):
    generator = random.Random(WITH_SPANS.index(scheme))
    names = all_tags(scheme, ("A", "B-c", ""))
    for _ in range(1000):
        tags = generator.choices(names, k=generator.randrange(12))
        theirs = Tokens([tag.replace("M", "I", 1) for tag in tags], SEQEVAL[scheme]).entities
        expected = [(each.start, each.end, each.tag.replace("_", "")) for each in theirs]
        assert [tuple(span) for span in strict_spans_of(tags, scheme)] == expected, tags


BROKEN = [
    ("bio", "O I-A I-A I-B", [1, 3], [(1, 3, "A"), (3, 4, "B")], []),
    ("bioes", "B-A O I-A E-A E-A", [1, 2, 4], [(0, 1, "A"), (2, 4, "A"), (4, 5, "A")], []),
    ("bmes", "S-A M-A B-A", [1, 2], [(0, 1, "A"), (1, 2, "A"), (2, 3, "A")], [(0, 1, "A")]),
    ("bmes", "B-A M-A", [1], [(0, 2, "A")], []),
    ("iob1", "B-A I-A O B-A", [0, 3], [(0, 2, "A"), (3, 4, "A")], [(1, 2, "A")]),
]


@pytest.mark.parametrize("scheme, tags, places, spans, strict", BROKEN)
def test_spans_of_broken_sequences(scheme, tags, places, spans, strict):
    assert broken_words(tags.split(), scheme) == places
    assert spans_of(tags.split(), scheme) == spans
    assert strict_spans_of(tags.split(), scheme) == strict


DETECTED = [
    ("bio", ["B-A I-A O", "O B-B"]),
    ("bio", ["B-A O"]),
    ("bio", ["B-A B-A"]),
    ("bio", ["B-A I-A O", "O B-B", "I-A O"]),  # one invalid tag
    ("iob1", ["I-A I-A O", "O I-A B-A"]),
    ("iob1", ["I-A O"]),
    ("bioes", ["B-A I-A E-A"]),
    ("bioes", ["B-A E-A O", "S-A"]),
    ("bmes", ["S-A", "B-A M-A E-A"]),
    ("none", ["NOUN B-A", "I-A"]),
    ("none", ["B-A I-A", "M-A"]),
    ("none", ["B-A L-A U-A"]),
    ("none", ["B- I-"]),
    ("none", ["O O"]),
    ("none", []),
]


@pytest.mark.parametrize("scheme, lines", DETECTED)
def test_the_scheme_is_found_by_the_tags(scheme, lines):
    assert detect_scheme(line.split() for line in lines) == scheme


@pytest.mark.parametrize("scheme", WITH_SPANS)
@given(data=st.data())
def test_the_scheme_of_encoded_spans_is_found(scheme, data):
    length = data.draw(st.integers(1, 6))
    layouts = [list(each) for each in span_sets(min(length, 4), ["A", "B"])]
    chosen = data.draw(st.lists(st.sampled_from(layouts), max_size=3))
    # A sentence whose tags are unique to this scheme.
    unambiguous = tags_of([Span(0, 3, "A"), Span(3, 4, "A")], 4, scheme)
    assert detect_scheme([unambiguous, *(tags_of(spans, length, scheme) for spans in chosen)]) == scheme


@pytest.mark.parametrize("tag", ["M-A", "E", "PER", "B-", "", "O-A", "BI-A", "b-A"])
def test_a_tag_outside_the_scheme_is_rejected(tag):
    for call in (spans_of, strict_spans_of, broken_words, repair_tags, allowed_transitions):
        with pytest.raises(InputError, match="scheme bio: expected O, B-TYPE, I-TYPE; got"):
            call([tag], "bio")


@pytest.mark.parametrize("span", [(0, 0, "A"), (2, 1, "A"), (-1, 1, "A"), (2, 4, "A"), (0, 2, "B")])
def test_overlapping_or_invalid_spans_are_rejected(span):
    with pytest.raises(ValueError, match="expected spans apart within 3 words"):
        tags_of([Span(0, 1, "A"), Span(*span)], 3, "bio")


@pytest.mark.parametrize("spans", [[Span(0, 1, "A")], [Span(0, 2, "A"), Span(2, 3, "B")]])
def test_without_a_scheme_each_word_needs_its_span(spans):
    with pytest.raises(ValueError, match="without a scheme"):
        tags_of(spans, 2, "none")


def test_tables_are_booleans_of_the_right_shape():
    start, pairs, end = allowed_transitions(["B-A", "I-A", "O"], "bio")
    assert (start.dtype, pairs.dtype, end.dtype) == (np.bool_, np.bool_, np.bool_)
    assert start.tolist() == [True, False, True] and end.tolist() == [True, True, True]
    assert pairs.tolist() == [[True, True, True], [True, True, True], [True, False, True]]
