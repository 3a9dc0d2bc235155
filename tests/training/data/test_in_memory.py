"""Rows of every kind of in-memory object; fakes replace libraries that may be missing."""

import numpy as np
import pandas as pd
import pytest

from kmha.errors import InputError
from training.data.in_memory import object_source

TEXTS, LABELS = ["ä b", "c"], ["x", "y"]
EXPECTED = [{"text": "ä b", "label": "x"}, {"text": "c", "label": "y"}]
ROWS = [{"text": text, "label": label, "more": None} for text, label in zip(TEXTS, LABELS, strict=True)]


def read(data, task="classify", columns=None, part="train"):
    source = object_source(data, part, task)
    rows = list(source.rows(columns or source.columns or ()))
    return [row.values for row in rows], [row.place for row in rows]


class ClassNames:
    """A class feature of a Hugging Face data set."""

    def int2str(self, values):
        return [LABELS[value] for value in values] if isinstance(values, list) else LABELS[values]


class Several:
    feature = ClassNames()


class HuggingFace:
    column_names = ["text", "label", "labels"]
    features = {"text": object(), "label": ClassNames(), "labels": Several()}

    def __getitem__(self, name):
        return {"text": TEXTS, "label": [0, 1], "labels": [[0, 1], []]}[name]


class Streamed:
    """A data set that is only iterated; the names of its columns are not always known."""

    column_names = None

    def __iter__(self):
        return iter(ROWS)


class Scalar:
    def __init__(self, value):
        self.as_py = lambda: value


class Arrow:
    column_names = ["text", "label"]
    columns = ["chunks of text", "chunks of labels"]

    def __getitem__(self, name):
        return [Scalar(value) for value in {"text": TEXTS, "label": LABELS}[name]]


class Polars:
    columns = ["text", "label"]

    def __getitem__(self, name):
        return iter({"text": TEXTS, "label": LABELS}[name])


@pytest.mark.parametrize(
    "data",
    [
        pd.DataFrame(ROWS),
        {"text": TEXTS, "label": LABELS},
        (TEXTS, LABELS),
        (np.array(TEXTS), pd.Series(LABELS, index=[5, 3])),
        list(zip(TEXTS, LABELS, strict=True)),
        ROWS,
        iter(ROWS),
        HuggingFace(),
        Streamed(),
        Arrow(),
        Polars(),
    ],
    ids=lambda data: type(data).__name__,
)
def test_the_same_rows_in_every_form(data):
    values, places = read(data, columns=["text", "label"])
    name = f"train {type(data).__name__}"
    assert (values, places) == (EXPECTED, [f"{name}:1", f"{name}:2"])


@pytest.mark.parametrize("library", ["pyarrow", "polars", "datasets"])
def test_the_tables_of_installed_libraries(library):
    module, columns = pytest.importorskip(library), {"text": TEXTS, "label": LABELS}
    if library == "datasets":
        table = module.Dataset.from_dict(columns)
    else:
        table = module.table(columns) if library == "pyarrow" else module.DataFrame(columns)
    assert read(table)[0] == EXPECTED


def test_tensorflow_data_sets_of_rows():
    import tensorflow as tf

    pairs = tf.data.Dataset.from_tensor_slices((TEXTS, [3, 4]))
    assert read(pairs)[0] == [{"text": "ä b", "label": "3"}, {"text": "c", "label": "4"}]
    records = tf.data.Dataset.from_tensor_slices({"text": TEXTS, "label": LABELS})  # pyright: ignore
    assert read(records)[0] == EXPECTED
    words = tf.data.Dataset.from_tensors((tf.constant(["a", "b"]), tf.constant(["O", "O"])))
    assert read(words, "tag")[0] == [{"words": ["a", "b"], "tags": ["O", "O"]}]


@pytest.mark.parametrize(
    ("row", "task", "values"),
    [
        (("a", ["x", "y"]), "classify", {"text": "a", "labels": ["x", "y"]}),
        (("a", {"y", "x"}), "classify", {"text": "a", "labels": ["x", "y"]}),
        (("a", np.int64(3)), "classify", {"text": "a", "label": "3"}),
        ((("a", "b"), 1), "match", {"text_a": "a", "text_b": "b", "label": "1"}),
        ((["a", "b"], ["O", "B-X"]), "tag", {"words": ["a", "b"], "tags": ["O", "B-X"]}),
        (("a b", [(0, 1, "X")]), "tag", {"text": "a b", "spans": ['["0", "1", "X"]']}),
        ("a b", "masked-lm", {"text": "a b"}),
    ],
)
def test_rows_without_names_are_named_by_the_task(row, task, values):
    assert read([row], task)[0] == [values]


def test_classes_of_hugging_face_have_names():
    assert read(HuggingFace(), columns=["labels"])[0] == [{"labels": ["x", "y"]}, {"labels": []}]


@pytest.mark.parametrize(
    ("data", "message"),
    [
        ([], "train list: expected rows, got none"),
        (3, "train int: expected a table, (texts, labels), rows or a path, got int"),
        (b"a", "train bytes: expected a table"),
        ([3], "train list:1: expected a dictionary or (text, label), got int"),
        ([("a", "b", "c")], "train list:1: expected a dictionary or (text, label), got 3 values"),
        ((TEXTS, ["x"]), "train tuple: expected columns of the same length, got others"),
        ({"text": TEXTS, "label": ["x"]}, "train dict: expected columns of the same length, got others"),
        (
            pd.DataFrame([["a", "b"]], columns=["text", "text"]),
            "expected unique column names, got text, text",
        ),
        ([ROWS[0], {"text": "a"}], "train list:2: expected column 'label', got columns text"),
        (
            pd.DataFrame({"text": ["a", None], "label": LABELS}, dtype=object),
            "train DataFrame:2: expected a value for 'text', got None, a missing value; remove the row or fill it in",
        ),
        (
            pd.DataFrame({"text": ["a", "b"], "label": [1, float("nan")]}),
            "train DataFrame:2: expected a value for 'label', got nan, a missing value",
        ),
        (
            pd.DataFrame({"text": ["a", pd.NA], "label": LABELS}, dtype="string"),
            "train DataFrame:2: expected a value for 'text', got <NA>, a missing value",
        ),
        ([("a", np.float32("nan"))], "train list:1: expected a value for 'label', got nan, a missing value"),
        ({"text": [Scalar(None)], "label": ["x"]}, "train dict:1: expected a value for 'text', got None"),
        ([("a", None)], "train list:1: expected a value for 'label', got None, a missing value"),
        (
            [("a", object())],
            "train list:1: expected texts, numbers or lists of these, got others (a value of",
        ),
        ([(b"\xff", "x")], "train list:1: expected texts, numbers or lists of these, got others ('utf-8'"),
    ],
)
def test_other_objects_and_values_are_refused(data, message):
    with pytest.raises(InputError) as error:
        read(data, columns=["text", "label"])
    assert message in str(error.value) and "\n" not in str(error.value)


def test_names_of_columns_match_without_case_and_blanks():
    frame = pd.DataFrame(ROWS).rename(columns={"text": " Text ", "label": "LABEL"})
    assert read(frame, columns=["text", "label"])[0] == EXPECTED
    source = object_source(frame, "train", "classify")
    assert source.columns is not None and "text" in source.columns
