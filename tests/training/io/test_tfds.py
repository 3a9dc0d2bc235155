import importlib.util
import socket
import sys

import numpy as np
import pytest

from kmha.errors import InputError
from training.io.tfds import tfds_rows

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
def test_what_does_not_exist_or_is_no_text_is_one_line(data_dir, name, split, column, message):
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


def test_without_the_package_the_error_names_the_extra(monkeypatch):
    monkeypatch.setitem(sys.modules, "tensorflow_datasets", None)
    with pytest.raises(InputError, match=r"kmha\[tfds\]"):
        next(tfds_rows("tiny_reviews", "train", ["review"]))
