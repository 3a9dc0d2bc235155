import pytest

from kmha.errors import InputError
from training.io.examples import Columns, Example
from training.io.tables import Row
from training.tasks.match.rows import fits, number, pair_columns, pair_examples

PAIRS = Columns("text_a", "label", text_b="text_b", query="query_id")
TRIPLETS = Columns("anchor", text_b="positive", wrong="negative")
GIVEN: dict[str, str | list[str]] = {
    "text_a": " old bread ",
    "text_b": "new bread",
    "label": " 1 ",
    "query_id": " q7 ",
}


@pytest.mark.parametrize(
    ("available", "given", "found"),
    [
        (["text_a", "text_b", "label"], Columns(""), Columns("text_a", "label", text_b="text_b")),
        (["label", "query_id", "text_b", "text_a"], Columns(""), PAIRS),
        (["anchor", "positive", "negative"], Columns(""), TRIPLETS),
        (
            ["anchor", "positive", "negative", "query_id"],
            Columns(""),
            Columns("anchor", text_b="positive", wrong="negative", query="query_id"),
        ),
        (
            ["q", "anchor", "positive", "negative"],
            Columns("", query="q"),
            Columns("anchor", text_b="positive", wrong="negative", query="q"),
        ),
        # Named columns mean pairs, whatever else the file has.
        (
            ["anchor", "positive", "negative", "good"],
            Columns("anchor", "good", text_b="positive"),
            Columns("anchor", "good", text_b="positive"),
        ),
        (
            ["q", "text_b", "label"],
            Columns("q", query="q"),
            Columns("q", "label", text_b="text_b", query="q"),
        ),
        (None, Columns(""), Columns("text_a", "label", text_b="text_b")),
        (None, Columns("s1", text_b="s2", query="id"), Columns("s1", "label", text_b="s2", query="id")),
    ],
)
def test_default_columns_are_found(available, given, found):
    assert pair_columns(available, given) == found


@pytest.mark.parametrize(
    ("available", "given", "message"),
    [
        (
            ["text_a", "text_c", "label"],
            Columns(""),
            "--data.text-b-column: expected a column text_b (or the columns anchor, positive, negative), got"
            " text_a, text_c, label; did you mean --data.text-b-column text_c?",
        ),
        (
            ["a", "b"],
            Columns("a"),
            "--data.text-b-column: expected a column text_b, got a, b; set --data.text-b-column",
        ),
        (
            ["text_a", "text_b", "score"],
            Columns("", text_b="text_b"),
            "--data.label-column: expected a column label, got text_a, text_b, score; set",
        ),
        (
            ["text_a", "text_b", "label"],
            Columns("", query="qid"),
            "--data.query-column: expected a column qid",
        ),
        (
            ["anchor", "positive", "negative"],
            Columns("", query="qid"),
            "--data.query-column: expected a column qid",
        ),
        (["anchor", "positive"], Columns(""), "--data.text-column: expected a column text_a (or the columns"),
    ],
)
def test_missing_column_raises(available, given, message):
    with pytest.raises(InputError) as caught:
        pair_columns(available, given)
    assert str(caught.value).startswith(message)


def test_row_becomes_a_pair():
    (example,) = pair_examples(Row(GIVEN, "a.csv:2"), PAIRS, "binary")
    assert example == Example((" old bread ", "new bread"), ("1",), "a.csv:2", "q7")


def test_row_without_query_column_has_no_query():
    row = Row({name: GIVEN[name] for name in ("text_a", "text_b", "label")}, "a.csv:2")
    assert pair_examples(row, PAIRS, "auto")[0].query is None


def test_triplet_becomes_a_right_and_a_wrong_pair():
    row = Row({"anchor": "a", "positive": "b", "negative": "c"}, "a.csv:3")
    right, wrong = pair_examples(row, TRIPLETS, "binary")
    assert right == Example(("a", "b"), ("1",), "a.csv:3")
    assert wrong == Example(("a", "c"), ("0",), "a.csv:3")


def test_empty_text_is_allowed():
    (example,) = pair_examples(Row({**GIVEN, "text_a": "", "text_b": " "}, "a.csv:2"), PAIRS, "binary")
    assert example.texts == ("", " ")


@pytest.mark.parametrize(
    ("values", "target", "message"),
    [
        ({"text_a": ["x", "y"]}, "auto", "text_a must be one text, got a list"),
        ({"text_b": []}, "auto", "text_b must be one text, got a list"),
        ({"label": "  "}, "auto", "label must be one label, got none"),
        ({"label": []}, "auto", "label must be one label, got none"),
        ({"label": ["1", "0"]}, "auto", "label must be one label, got 2 labels"),
        ({"label": "yes"}, "binary", "label must be 0 or 1, got 'yes'"),
        ({"label": "2"}, "binary", "label must be 0 or 1, got '2'"),
        ({"label": "good"}, "graded", "label must be a number, got 'good'"),
        ({"label": "nan"}, "graded", "label must be a number, got 'nan'"),
        ({"query_id": ""}, "auto", "query_id must be one name, got none"),
        ({"query_id": ["a"]}, "auto", "query_id must be one name, got a list"),
    ],
)
def test_invalid_pair_raises(values, target, message):
    with pytest.raises(InputError) as caught:
        pair_examples(Row({**GIVEN, **values}, "rows.jsonl:12"), PAIRS, target)
    assert str(caught.value) == f"rows.jsonl:12: {message}"


@pytest.mark.parametrize("column", ["anchor", "positive", "negative"])
def test_triplet_needs_three_texts(column):
    values: dict[str, str | list[str]] = {"anchor": "x", "positive": "x", "negative": "x"}
    row = Row({**values, column: ["x"]}, "a.jsonl:1")
    with pytest.raises(InputError, match=f"a.jsonl:1: {column} must be one text, got a list"):
        pair_examples(row, TRIPLETS, "binary")


@pytest.mark.parametrize(
    ("label", "value"),
    [("1", 1.0), ("-.5", -0.5), ("1e3", 1000.0), ("inf", None), ("nan", None), ("yes", None), ("", None)],
)
def test_finite_numbers_are_parsed(label, value):
    assert number(label) == value
    assert fits(label, "graded") == (value is not None)
    assert fits(label, "binary") == (value == 1.0)
    assert fits(label, "classes") and fits(label, "auto")
