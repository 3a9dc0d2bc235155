import gzip
from pathlib import Path

import numpy as np
import pytest

from kmha.errors import InputError
from training.data.unlabelled import read_unlabelled, unseen
from training.io.example_store import Example, write_examples
from training.io.types import Columns, Subset

TEXT, PAIR, WORDS = Columns("text"), Columns("text_a", text_b="text_b"), Columns("words")


def read(folder: Path, name: str, content: str, task: str, columns: Columns) -> list[list[str]]:
    path = folder / name
    path.write_bytes(gzip.compress(content.encode()) if name.endswith(".gz") else content.encode())
    found = read_unlabelled(path, task, columns, folder / "set")
    return [found.read_texts(np.arange(len(found)), field) for field in range(len(found.texts))]


@pytest.mark.parametrize("name", ["a.txt", "a.TXT.gz"])
def test_plain_files_hold_a_text_a_line(tmp_path, name):
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
def test_what_cannot_be_used_is_refused_by_place(
    tmp_path, monkeypatch, name, content, task, columns, message
):
    monkeypatch.chdir(tmp_path)
    Path(name).write_text(content)
    with pytest.raises(InputError) as caught:
        read_unlabelled(Path(name), task, columns, tmp_path / "set")
    assert str(caught.value).startswith(message)


def test_a_missing_file_is_refused(tmp_path):
    with pytest.raises(InputError, match="no such file"):
        read_unlabelled(tmp_path / "a.txt", "classify", TEXT, tmp_path / "set")


def test_texts_that_are_judged_are_not_learnt_from(tmp_path):
    def part(name: str, texts: list[str], rows: list[int]) -> Subset:
        examples = write_examples((Example((text,), ("x",), "") for text in texts), tmp_path / name)
        return Subset(examples, np.array(rows))

    more = part("more", ["a", "b", " c ", "d"], [])
    evaluated = [part("validation", ["a", "d"], [0]), part("test", ["c"], [0])]
    assert unseen(more.examples, evaluated).tolist() == [1, 3]
