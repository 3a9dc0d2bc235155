import gzip
import json
from pathlib import Path

import numpy as np
import pytest

from kmha.errors import InputError
from tests.command_runs import news_rows, topic_rows, write_csv
from training.config.config import DataSection, EncoderSection, FewshotSection, FitConfig
from training.data import load as load_module
from training.data.load import Data, describe, load_data
from training.tasks.classify import ClassifyTask
from training.tasks.match.task import MatchTask


def load(tmp_path: Path, task: ClassifyTask | None = None, **data) -> Data:
    return load_data(FitConfig(data=DataSection(**data)), task or ClassifyTask(), tmp_path / "scratch")


def texts_and_labels(data: Data) -> dict[str, tuple[list[str], list]]:
    return {
        name: (part.texts(), data.task.targets(part, data.labels).tolist())
        for name, part in data.parts.items()
    }


def as_jsonl(rows) -> str:
    return "".join(json.dumps({"label": label, "text": text}) + "\n" for text, label in rows)


@pytest.mark.parametrize("suffix", [".tsv", ".jsonl", ".csv.gz", ".jsonl.gz"])
def test_every_format_gives_the_same_data(tmp_path, suffix):
    rows = news_rows(30, seed=0)
    reference = load(tmp_path, train=write_csv(tmp_path / "rows.csv", rows))
    path = tmp_path / f"rows{suffix}"
    if suffix == ".tsv":
        write_csv(path, rows)
    else:
        text = as_jsonl(rows) if "jsonl" in suffix else (tmp_path / "rows.csv").read_text()
        path.write_bytes(gzip.compress(text.encode()) if suffix.endswith(".gz") else text.encode())
    other = load_data(FitConfig(data=DataSection(train=path)), ClassifyTask(), tmp_path / "other")
    assert texts_and_labels(other) == texts_and_labels(reference)
    assert other.labels == reference.labels == ["food", "money", "sport"]


def test_columns_may_have_any_name(tmp_path):
    path = write_csv(tmp_path / "a.csv", news_rows(30, seed=0), ("Überschrift", "kind"))
    with pytest.raises(InputError, match="--data.label-column: expected a column label or labels, got Über"):
        load(tmp_path, train=path, text_column="Überschrift")
    data = load(tmp_path, train=path, text_column="Überschrift", label_column="kind")
    assert len(data.labels) == 3 and not data.task.traits.is_multi_label


def test_a_labels_column_means_several_labels(tmp_path):
    rows = [(text, "; ".join(labels)) for text, labels in topic_rows(40, seed=0)]
    path = write_csv(tmp_path / "a.csv", rows, ("text", "labels"))
    data = load(tmp_path, train=path, label_separator=";")
    assert data.task.traits.is_multi_label and data.columns.label == "labels"
    assert data.labels == ["food", "money", "sport"]
    assert data.task.targets(data.train, data.labels).shape == (len(data.train.rows), 3)
    with pytest.raises(InputError, match="labels must be one label, got none"):
        load(tmp_path, ClassifyTask(multi_label=False), train=path)


def test_test_rows_are_evaluated_or_else_validation_rows(tmp_path):
    train = write_csv(tmp_path / "a.csv", news_rows(30, seed=0))
    test = write_csv(tmp_path / "b.csv", news_rows(9, seed=1))
    alone, with_test = load(tmp_path, train=train), load(tmp_path, train=train, test=test)
    assert (alone.evaluated_name, alone.evaluated, list(alone.parts)) == (
        "validation",
        alone.validation,
        ["train", "validation"],
    )
    assert (with_test.evaluated_name, with_test.evaluated) == ("test", with_test.test)
    assert with_test.origins["test"]["name"] == str(test) and len(with_test.origins["test"]["sha256"]) == 64
    assert alone.origins.keys() == {"train"}


def test_all_rows_of_a_validation_file_are_used(tmp_path):
    train = write_csv(tmp_path / "a.csv", news_rows(30, seed=0))
    validation = write_csv(tmp_path / "b.csv", news_rows(9, seed=1))
    data = load(tmp_path, train=train, validation=validation)
    assert len(data.train.rows) == 30 and len(data.validation.rows) == 9
    assert not np.isin(data.validation.texts(), data.train.texts()).any()


def test_the_data_summary_is_reported(tmp_path):
    rows = [*news_rows(30, seed=0), ("twice", "food"), ("twice", "food"), ("both", "food"), ("both", "money")]
    train = write_csv(tmp_path / "a.csv", [*rows, ("seen", "food"), ("", "sport")])
    test = write_csv(tmp_path / "b.csv", [("seen", "food"), ("rain", "weather"), ("wind", "weather")])
    validation = write_csv(tmp_path / "c.csv", [("new", "food"), ("snow", "winter")])
    lines = describe(load(tmp_path, train=train, test=test, validation=validation))
    assert lines == [
        "35 training, 2 validation, 3 test rows; 3 labels",
        "1 rows dropped: their text is also in the test file",
        "1 training rows repeat an earlier text",
        "2 training rows have a text that also has another label",
        "1 rows have an empty text (used)",
        "labels that only validation rows have, counted as errors: winter (1)",
        "labels that only test rows have, counted as errors: weather (2)",
    ]


def test_labels_of_two_normal_forms_are_named(tmp_path):
    rows = [
        (text, label.replace("food", "cafe\u0301").replace("money", "caf\xe9"))
        for text, label in news_rows(30, 0)
    ]
    lines = describe(load(tmp_path, train=write_csv(tmp_path / "a.csv", rows)))
    assert "labels that differ only in their Unicode normal form: 'cafe\\u0301', 'caf\\xe9'" in lines


def test_many_unknown_labels_are_counted(tmp_path):
    train = write_csv(tmp_path / "a.csv", news_rows(30, seed=0))
    test = write_csv(tmp_path / "b.csv", [(f"text {row}", f"{row:03} {'long' * 99}") for row in range(500)])
    (line,) = (each for each in describe(load(tmp_path, train=train, test=test)) if "only test" in each)
    assert line.endswith(" and 490 more") and len(line) < 1200


def test_unusable_validation_rows_are_refused(tmp_path):
    same = write_csv(tmp_path / "a.csv", [("one", "a")] * 5 + [("two", "b")] * 5)
    with pytest.raises(InputError, match="a.csv: expected rows to hold out .*--data.validation"):
        load(tmp_path, train=same)
    other = write_csv(tmp_path / "b.csv", [("three", "c")])
    with pytest.raises(
        InputError, match="--data.validation: expected labels of the training rows, got only c"
    ):
        load(tmp_path, train=same, validation=other)


def test_a_column_that_the_last_file_lacks_is_found_before_the_first_is_read(tmp_path):
    train = write_csv(tmp_path / "a.csv", [*news_rows(30, seed=0), ("one", "a", "too many")])
    test = write_csv(tmp_path / "b.csv", [("one", "a")], ("txt", "label"))
    with pytest.raises(InputError, match="b.csv: expected column 'text'"):
        load(tmp_path, train=train, test=test)
    assert not (tmp_path / "scratch" / "train").exists()


def test_unlabeled_texts_are_a_random_sample_of_new_texts(tmp_path, monkeypatch):
    monkeypatch.setattr(load_module, "MOST_TEXTS", 20)
    rows, test = (write_csv(tmp_path / f"{seed}.csv", news_rows(30, seed)) for seed in (0, 1))
    more = [text for text, _ in [*news_rows(30, 5), *news_rows(3, 5), *news_rows(30, 0), *news_rows(30, 1)]]
    (tmp_path / "more.txt").write_text("\n".join(more) + "\n", "utf-8")
    config = FitConfig(
        data=DataSection(train=rows, test=test),
        encoder=EncoderSection(pretrained="minilm"),
        fewshot=FewshotSection(texts=tmp_path / "more.txt"),
    )
    data = load_data(config, ClassifyTask(), tmp_path / "scratch")
    assert data.texts is not None and data.texts.rows.shape == (20,)
    assert data.texts.rows.max() < 30 and data.texts.rows.tolist() != list(range(20))
    assert "20 texts without labels" in describe(data)
    assert any(line.startswith("73 texts without labels dropped: copies") for line in describe(data))
    assert data.origins["texts"]["name"] == str(tmp_path / "more.txt")


@pytest.fixture(scope="module")
def tfds_folder(tmp_path_factory) -> Path:
    """A folder with the small data set `tiny_news`, prepared without a network."""
    tfds = pytest.importorskip("tensorflow_datasets")

    class TinyNews(tfds.core.GeneratorBasedBuilder):
        """Invented news."""

        VERSION = tfds.core.Version("1.0.0")

        def _info(self):
            label = tfds.features.ClassLabel(names=["sport", "money", "food"])
            features = tfds.features.FeaturesDict({"text": tfds.features.Text(), "label": label})
            return self.dataset_info_from_configs(features=features)

        def _split_generators(self, dl_manager):
            return {"train": self._generate_examples(30, 0), "test": self._generate_examples(9, 1)}

        def _generate_examples(self, count, seed):
            for number, (text, label) in enumerate(news_rows(count, seed)):
                yield number, {"text": text, "label": label}

    folder = tmp_path_factory.mktemp("tfds")
    TinyNews(data_dir=folder).download_and_prepare(file_format="tfrecord")
    return folder


def test_a_tensorflow_data_set_can_be_loaded(tmp_path, tfds_folder):
    data = load(tmp_path, tfds="tiny_news", tfds_dir=tfds_folder)
    assert data.labels == ["food", "money", "sport"] and not data.task.traits.is_multi_label
    assert len(data.train.rows) + len(data.validation.rows) == 30 and data.evaluated_name == "test"
    assert sorted(data.evaluated.texts()) == sorted(text for text, _ in news_rows(9, seed=1))
    assert data.origins["train"] == {"name": "tiny_news (train)", "sha256": None}
    with pytest.raises(InputError, match="tiny_news: expected feature 'body', got features text, label"):
        load_data(
            FitConfig(data=DataSection(tfds="tiny_news", tfds_dir=tfds_folder, text_column="body")),
            ClassifyTask(),
            tmp_path / "other",
        )


@pytest.mark.parametrize(
    ("columns", "missing"),
    [
        ({}, "text_a"),
        ({"text_column": "text"}, "text_b"),
        ({"text_column": "text", "text_b_column": "text", "query_column": "qid"}, "qid"),
    ],
)
def test_a_tensorflow_data_set_of_single_texts_has_no_pairs(tmp_path, tfds_folder, columns, missing):
    data = DataSection(tfds="tiny_news", tfds_dir=tfds_folder, **columns)
    with pytest.raises(
        InputError, match=f"tiny_news: expected feature '{missing}', got features text, label"
    ):
        load_data(FitConfig(task="match", data=data), MatchTask(), tmp_path / "scratch")
