import json
from pathlib import Path

import numpy as np
import pytest

from kmha.errors import InputError
from tests.command_runs import news_rows, write_csv
from training.data import classification_reader as labelled_texts
from training.data.classification_reader import write_labelled_texts
from training.io.example_store import ExampleSet, write_examples
from training.io.tables import read_blocks, read_rows
from training.io.types import Columns
from training.tasks.classify import ClassifyTask

COLUMNS = Columns("text", "label")
ODD = [("", "a"), (" \u3000x\u00a0 ", " a "), ("x", "b"), ("two\nlines", "a|b|a"), ("é港", "c")]


def both(path: Path, task: ClassifyTask, folder: Path) -> tuple[ExampleSet, ExampleSet]:
    """The examples of a table, written row by row and in blocks."""
    rows = read_rows(path, COLUMNS.required)
    one = write_examples((each for row in rows for each in task.parse_row(row, COLUMNS)), folder / "one")
    blocks = read_blocks(path, COLUMNS.required)
    return one, write_labelled_texts(blocks, str(path), task, COLUMNS, folder / "many")


def assert_equal(one: ExampleSet, many: ExampleSet) -> None:
    rows = np.arange(len(one))
    assert many.read_texts(rows) == one.read_texts(rows)
    assert many.label_names == one.label_names
    for left, right in zip(many.local_labels(rows), one.local_labels(rows), strict=True):
        assert np.array_equal(left, right) and left.dtype == right.dtype
    assert np.array_equal(many.digests, one.digests) and many.digests.dtype == one.digests.dtype
    # Numbers of texts: which ones is nobody's business.
    groups = [np.unique(each.queries, return_inverse=True)[1] for each in (one, many)]
    assert [groups[0][groups[0] == each].size for each in groups[0]] == [
        groups[1][groups[1] == each].size for each in groups[1]
    ]
    assert [many.place(int(row)) for row in rows] == [one.place(int(row)) for row in rows]
    assert (many.empty_texts, many.named_queries, many.ordered, many.origin) == (
        one.empty_texts,
        one.named_queries,
        one.ordered,
        one.origin,
    )


@pytest.mark.parametrize("several", [False, True])
def test_rows_in_blocks_are_what_they_are_one_by_one(tmp_path, several, monkeypatch):
    monkeypatch.setattr(labelled_texts, "_MOST_KNOWN", 3)
    path = write_csv(tmp_path / "a.csv", [*news_rows(50, 0), *ODD, *news_rows(9, 1)])
    assert_equal(*both(path, ClassifyTask(multi_label=several), tmp_path))


def test_lists_of_labels_in_json(tmp_path):
    path = tmp_path / "a.jsonl"
    labels = [["x", "y"], "x|y", [], ["y"], "z", ["x", "y"], 3]
    path.write_text("".join(json.dumps({"text": "t", "label": each}) + "\n" for each in labels))
    assert_equal(*both(path, ClassifyTask(multi_label=True), tmp_path))


@pytest.mark.parametrize(
    "rows",
    [
        [{"text": "a", "label": "x"}, {"text": "b", "label": " "}, {"text": ["c"], "label": "x"}],
        [{"text": "a", "label": "x"}, {"text": ["c"], "label": "x"}, {"text": "b", "label": " "}],
        [{"text": "a", "label": "x"}, {"text": "b", "label": ["x", "y"]}],
    ],
)
def test_the_first_wrong_row_is_the_one_that_is_told(tmp_path, rows):
    path = tmp_path / "a.jsonl"
    path.write_text("".join(json.dumps(each) + "\n" for each in rows))
    task, messages = ClassifyTask(), []
    for write in (
        lambda: [task.parse_row(row, COLUMNS) for row in read_rows(path, COLUMNS.required)],
        lambda: both(path, task, tmp_path)[1],
    ):
        with pytest.raises(InputError, match="a.jsonl:2: ") as caught:
            write()
        messages.append(str(caught.value))
    with pytest.raises(InputError) as caught:
        blocks = read_blocks(path, COLUMNS.required)
        write_labelled_texts(blocks, str(path), task, COLUMNS, tmp_path / "b")
    assert messages == [str(caught.value)] * 2
