import json
import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kmha.errors import InputError
from kmha.tags import spans_of
from training.io.examples import Columns, Example
from training.io.tables import Row, read_rows
from training.tasks.tag.rows import sentence_example, tag_columns

LISTS = Columns("words", "tags")
TEXTS = Columns("text", "spans")


def split(text: str) -> list[tuple[int, int]]:
    return [match.span() for match in re.finditer(r"\w+|[^\w\s]", text)]


def sentence(words, tags) -> Example:
    return sentence_example(Row({"words": words, "tags": tags}, "a.conll:3"), LISTS, split)


def text_row(text: str, spans: list) -> Row:
    items = [
        json.dumps([str(first), str(end), label] if not isinstance(first, dict) else first)
        for first, end, label in spans
    ]
    return Row({"text": text, "spans": items}, "a.jsonl:3")


def from_text(text: str, *spans) -> tuple[list[str], list[str]]:
    example = sentence_example(text_row(text, list(spans)), TEXTS, split)
    return example.texts[0].split("\n"), list(example.labels)


@pytest.mark.parametrize(
    ("available", "given", "found"),
    [
        (["1", "2"], Columns(""), Columns("1", "2")),
        (["1", "2", "3", "4"], Columns(""), Columns("1", "4")),
        (["1", "2", "3"], Columns("", "2"), Columns("1", "2")),
        (["1", "2", "3"], Columns("3", "1"), Columns("3", "1")),
        ([str(number) for number in range(1, 11)], Columns(""), Columns("2", "4")),
        ([str(number) for number in range(1, 11)], Columns("", "5"), Columns("2", "5")),
        (["tags", "words", "id"], Columns(""), LISTS),
        (["spans", "text"], Columns(""), TEXTS),
        (["text", "words", "tags"], Columns(""), LISTS),
        (["text", "words", "tags", "spans"], Columns("text"), TEXTS),
        (["text", "labels"], Columns("", "labels"), Columns("text", "labels")),
        (["tokens", "tags"], Columns("tokens"), Columns("tokens", "tags")),
        (["words", "spans", "tags"], Columns("", "spans"), Columns("words", "spans")),
        (None, Columns(""), LISTS),
        (None, Columns("tokens", "ner"), Columns("tokens", "ner")),
    ],
)
def test_default_columns_are_found_by_name_or_number(available, given, found):
    assert tag_columns(available, given) == found


@pytest.mark.parametrize(
    ("available", "given", "message"),
    [
        (["1", "2"], Columns("", "4"), "--data.label-column: expected one of 1, 2, got 4"),
        (["1", "2"], Columns("0"), "--data.text-column: expected one of 1, 2, got 0"),
        (["1"], Columns(""), "expected a column of tags, got 1, the column of the words"),
        (["1", "2"], Columns("2"), "expected a column of tags, got 2, the column of the words"),
        (
            ["tokens", "tag"],
            Columns("tokens"),
            "--data.label-column: expected a column tags (or the columns text, spans), got tokens, tag; "
            "did you mean --data.label-column tag?",
        ),
        (
            ["a", "b"],
            Columns(""),
            "--data.text-column: expected a column words (or the columns text, spans), got a, b; "
            "set --data.text-column",
        ),
        (["text", "label"], Columns(""), "--data.label-column: expected a column spans, got text, label"),
    ],
)
def test_missing_column_raises(available, given, message):
    with pytest.raises(InputError) as caught:
        tag_columns(available, given)
    assert message in str(caught.value)


def test_row_with_words_and_tags():
    assert sentence(["Old", "bread", "Old"], ["B-x", " O ", "B-x"]) == Example(
        ("Old\nbread\nOld",), ("B-x", "O", "B-x"), "a.conll:3", ordered=True
    )


@pytest.mark.parametrize(
    ("words", "tags", "message"),
    [
        ([], [], "a.conll:3: words must hold a word, got none"),
        (["a", ""], ["O", "O"], "a.conll:3: word 2 in words must hold a visible character and no line feed"),
        (["a\nb"], ["O"], r"got 'a\nb'"),
        (["\u3000"], ["O"], "word 1 in words must hold a visible character"),
        (["a", "b"], ["O"], "a.conll:3: tags must hold a tag for each of 2 words, got 1"),
        (["a"], [], "tags must hold a tag for each of 1 word, got 0"),
        (["a", "b"], ["O", " "], "a.conll:3: tag 2 in tags must be a text, got an empty one"),
        (["a"], "O", "a.conll:3: tags must be a list of tags (CoNLL or JSONL), got one text"),
        ("a", "O", "a.conll:3: tags must be a list of spans (CoNLL or JSONL), got one text"),
        ("a", ["O"], "tags must be spans: [0, 5,"),
        ("a", ["[" * 10**6], "tags must be spans: [0, 5,"),
    ],
)
def test_invalid_sentence_raises(words, tags, message):
    with pytest.raises(InputError) as caught:
        sentence(words, tags)
    assert message in str(caught.value) and str(caught.value).startswith("a.conll:3: ")
    assert "\n" not in str(caught.value) and len(str(caught.value)) < 250


def test_spans_of_a_text_become_tags():
    text = "Anna Lee, of New York."
    found = from_text(text, (13, 21, "PLACE"), (0, 8, " PERSON "))
    assert found == (
        ["Anna", "Lee", ",", "of", "New", "York", "."],
        ["B-PERSON", "I-PERSON", "O", "O", "B-PLACE", "I-PLACE", "O"],
    )
    assert from_text("Anna") == (["Anna"], ["O"])


def test_spans_as_objects():
    item = {"id": 7, "label": "x", "end": "4", "start": "0"}
    assert from_text("Anna Lee", (item, 0, "")) == (["Anna", "Lee"], ["B-x", "O"])


def test_words_are_split_at_span_ends():
    row = text_row("abcdef gh", [(1, 3, "x"), (3, 5, "x"), (5, 8, "y")])
    example = sentence_example(row, TEXTS, split)
    assert example.texts == ("a\nbc\nde\nf\ng\nh",)
    assert example.labels == ("O", "B-x", "B-x", "B-y", "I-y", "O")


def test_characters_are_code_points():
    assert from_text("😀 é 中文", (4, 6, "x"), (0, 1, "y")) == (["😀", "é", "中文"], ["B-y", "O", "B-x"])


@pytest.mark.parametrize(
    ("text", "spans", "message"),
    [
        ("", [], "text must hold a word, got none"),
        (" \t\n", [], "text must hold a word, got none"),
        ("abc", [(0, 4, "x")], "spans must be spans of one character or more within its 3, got 0 to 4 (x)"),
        ("abc", [(-1, 2, "x")], "got -1 to 2 (x)"),
        ("abc", [(2, 2, "x")], "got 2 to 2 (x)"),
        ("abc", [(2, 1, "x")], "got 2 to 1 (x)"),
        ("abcd", [(2, 4, "x"), (0, 3, "y")], "spans that do not overlap, got 0 to 3 (y) and 2 to 4 (x)"),
        ("abcd", [(0, 3, "x"), (0, 3, "x")], "spans that do not overlap"),
        ("a  b", [(1, 3, "x")], "spans must be spans that hold a word, got 1 to 3 (x)"),
        ("abc", [(0, 3, " ")], "spans whose label is a text"),
        ("abc", [(0, 3, None)], "spans whose label is a text"),
        ("abc", [({"start": "0", "end": "1"}, 0, "")], "spans whose label is a text"),
        ("abc", [({"label": "x", "end": "1"}, 0, "")], "spans with whole numbers as ends"),
        ("abc", [("0.5", 3, "x")], "spans with whole numbers as ends"),
        ("abc", [("x", 3, "x")], "spans with whole numbers as ends"),
        ("abc", [(0, "9" * 5000, "x")], "spans with whole numbers as ends"),
    ],
)
def test_invalid_span_raises(text, spans, message):
    with pytest.raises(InputError) as caught:
        from_text(text, *spans)
    assert message in str(caught.value) and str(caught.value).startswith("a.jsonl:3: ")
    assert "\n" not in str(caught.value)


@given(
    text=st.text("ab ,😀", max_size=20),
    ends=st.lists(st.integers(0, 20), max_size=8, unique=True).map(sorted),
)
def test_spans_round_trip_to_characters(text, ends):
    spans = [
        (first, end, "xy"[first % 2])
        for first, end in zip(ends[::2], ends[1::2], strict=False)
        if text[first:end].strip() == text[first:end] != "" and end <= len(text)
    ]
    if not text.strip():
        return
    words, tags = from_text(text, *spans)
    assert "".join(words) == re.sub(r"\s", "", text)
    starts = [place for place, letter in enumerate(text) if not letter.isspace()]
    ends_of_words = [sum(map(len, words[: number + 1])) for number in range(len(words))]
    found = [
        (
            starts[ends_of_words[span.first] - len(words[span.first])],
            starts[ends_of_words[span.end - 1] - 1] + 1,
        )
        for span in spans_of(tags, "bio")
    ]
    assert found == [(first, end) for first, end, _ in spans]
    assert [span.type for span in spans_of(tags, "bio")] == [label for _, _, label in spans]


def test_from_files(tmp_path):
    (tmp_path / "a.jsonl").write_text(
        '{"text": "Anna Lee", "spans": [{"start": 0, "end": 4, "label": "x"}]}\n'
        '{"text": "Anna Lee", "spans": [[5, 8, 7]]}\n{"text": "a", "spans": []}\n'
    )
    (tmp_path / "a.conll").write_text("Anna\tB-x\nLee\tO\n")
    rows = list(read_rows(tmp_path / "a.jsonl", TEXTS.required))
    found = [sentence_example(row, TEXTS, split).labels for row in rows]
    assert found == [("B-x", "O"), ("O", "B-7"), ("O",)]
    (row,) = read_rows(tmp_path / "a.conll", ["1", "2"])
    assert sentence_example(row, Columns("1", "2"), split).labels == found[0]
