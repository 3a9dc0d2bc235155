import sys
from pathlib import Path

import pytest

from kmha.errors import InputError
from tests.command_runs import news_rows
from training.speed.prepare import Rows, make_workload, missing_package, read_rows

SIZES = {"hidden_dim": 8, "num_layers": 1, "num_heads": 2, "intermediate_dim": 8}


def write(path, rows):
    path.write_text("text,label\n" + "".join(f'"{text}",{label}\n' for text, label in rows), "utf-8")
    return path


def test_rows_are_drawn_by_the_seed(tmp_path):
    given = list(news_rows(20, seed=1))
    path = write(tmp_path / "rows.csv", given)
    first, again, other = (read_rows(path, "text", "label", 12, seed) for seed in (0, 0, 1))
    assert first == again != other
    assert len(first.texts) == 12
    names = sorted({label for _, label in given})
    assert first.num_labels <= len(names)
    label_of = dict(given)
    drawn_names = sorted({label_of[text] for text in first.texts})
    assert [drawn_names[label] for label in first.labels] == [label_of[text] for text in first.texts]


def test_invalid_rows_are_rejected(tmp_path):
    path = write(tmp_path / "rows.csv", [("a", "x"), ("b", "x")])
    with pytest.raises(InputError, match=r"rows\.csv: expected rows of two labels or more, got 1$"):
        read_rows(path, "text", "label", 10, 0)
    lists = tmp_path / "rows.jsonl"
    lists.write_text('{"text": ["a", "b"], "label": "x"}\n')
    with pytest.raises(InputError, match=r"rows\.jsonl:1: expected a text and its label, got a list$"):
        read_rows(lists, "text", "label", 10, 0)


def test_a_batch_needs_enough_rows(tmp_path):
    rows = Rows(["old ferry", "new bread"], [0, 1], 2)
    with pytest.raises(InputError, match="^--batch-rows: expected at most the 2 rows, got 3$"):
        make_workload(rows, SIZES, "", 16, 3, tmp_path)
    work = make_workload(rows, SIZES, "", 16, 2, tmp_path)
    assert work.sizes["vocabulary_size"] == len(Path(work.vocabulary).read_text("utf-8").splitlines())
    assert work.sizes["num_labels"] == 2


def test_a_pretrained_bert_defines_the_sizes(tmp_path, monkeypatch):
    from kmha.pretrained.sources import PACKAGES

    rows = Rows(["old ferry", "new bread"], [0, 1], 2)
    assert "minilm" in PACKAGES
    work = make_workload(rows, SIZES, "minilm", 128, 2, tmp_path)
    assert (work.sizes["hidden_dim"], work.sizes["num_layers"]) == (384, 6)
    assert (Path(work.pretrained) / "config.json").exists()
    with pytest.raises(InputError, match="^--max-length: expected at most 512 for minilm, got 513$"):
        make_workload(rows, SIZES, "minilm", 513, 2, tmp_path)


def test_missing_packages_are_named(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "torch", None)
    # An environment without packages.
    python = tmp_path / "python"
    python.write_text(f'#!/bin/sh\nexec {sys.executable} -S "$@"\n')
    python.chmod(0o755)
    assert missing_package("keras_hub", python) == "keras_hub"
    assert missing_package("torch", python) == "torch"
