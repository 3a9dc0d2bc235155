import io
import zipfile

import numpy as np
import pytest
from ai_edge_litert import schema_py_generated as schema

from export.tflite.metadata import has_metadata, with_metadata
from export.tflite.write import convert, new_interpreter
from tests.artifact_store import stored
from tests.bundles import make_bundle, one_label_bundle

FILES = {"labels.txt": b"a\nb\nc\n", "vocab.txt": b"[PAD]\n[UNK]\n"}


@pytest.fixture(scope="module")
def content():
    folder, _ = stored(
        "tflite_content", lambda folder: (folder / "m").write_bytes(convert(one_label_bundle(), [16]))
    )
    return (folder / "m").read_bytes()


def test_files_are_appended_and_the_model_still_runs(content):
    described = with_metadata(content, one_label_bundle(), FILES)
    with zipfile.ZipFile(io.BytesIO(described)) as archive:
        assert {name: archive.read(name) for name in archive.namelist()} == FILES
        assert all(entry.compress_type == zipfile.ZIP_STORED for entry in archive.infolist())
    inputs = {name: np.ones((1, 16), np.int32) for name in ("token_ids", "padding_mask", "segment_ids")}
    predictions = [
        new_interpreter(model).get_signature_runner("serving_default")(**inputs)["probabilities"]
        for model in (content, described)
    ]
    np.testing.assert_array_equal(*predictions)
    assert described == with_metadata(content, one_label_bundle(), FILES)


def test_weights_are_aligned(content):
    described = with_metadata(content, one_label_bundle(), FILES)
    model = schema.Model.GetRootAsModel(described, 0)
    start = np.frombuffer(described, np.uint8).__array_interface__["data"][0]
    places = [
        model.Buffers(index).DataAsNumpy().__array_interface__["data"][0] - start
        for index in range(model.BuffersLength())
        if model.Buffers(index).DataLength()
    ]
    assert len(places) > 10 and not [place for place in places if place % 16]


def test_the_metadata_names_tensors_in_the_models_order(content):
    """Read back by hand, field by field, as the published schema numbers them."""
    described = with_metadata(content, one_label_bundle(), FILES)
    model = schema.ModelT.InitFromObj(schema.Model.GetRootAsModel(described, 0))
    (entry,) = [entry for entry in model.metadata if entry.name == b"TFLITE_METADATA"]
    data = bytes(model.buffers[entry.buffer].data)
    assert data[4:8] == b"M001"
    root = Table.root(data)
    graph = root.tables(3)[0]
    assert root.string(7) == "1.1.0"
    order = [
        d["name"].split(":")[0].split("serving_default_")[-1]
        for d in new_interpreter(content).get_input_details()
    ]
    bert = {"token_ids": "ids", "padding_mask": "mask", "segment_ids": "segment_ids"}
    assert [tensor.string(0) for tensor in graph.tables(2)] == [bert[name] for name in order]
    (output,) = graph.tables(3)
    (labels,) = output.tables(6)
    assert (output.string(0), labels.string(0), labels.byte(2)) == ("probabilities", "labels.txt", 2)
    (unit,) = graph.tables(5)
    (vocabulary,) = unit.table(1).tables(0)
    assert (unit.byte(0), vocabulary.string(0), vocabulary.byte(2)) == (4, "vocab.txt", 5)


@pytest.mark.parametrize(
    ("tokenization", "signatures", "attention", "expected"),
    [
        ("wordpiece", 1, False, True),
        ("wordpiece", 2, False, False),
        ("wordpiece", 1, True, False),
        ("char", 1, False, False),
    ],
)
def test_only_models_for_mediapipe_have_metadata(tokenization, signatures, attention, expected):
    assert has_metadata(make_bundle(tokenization=tokenization), signatures, attention) == expected


class Table:
    """A flatbuffer table, read by field number."""

    def __init__(self, data: bytes, place: int):
        self.data, self.place = data, place

    @classmethod
    def root(cls, data: bytes) -> "Table":
        return cls(data, int.from_bytes(data[:4], "little"))

    def number(self, place: int, width: int = 4) -> int:
        return int.from_bytes(self.data[place : place + width], "little", signed=width == 4)

    def field(self, number: int) -> int:
        fields = self.place - self.number(self.place)
        assert 4 + 2 * number < self.number(fields, 2)
        return self.place + self.number(fields + 4 + 2 * number, 2)

    def follow(self, place: int) -> int:
        return place + self.number(place)

    def byte(self, number: int) -> int:
        return self.data[self.field(number)]

    def string(self, number: int) -> str:
        place = self.follow(self.field(number))
        return self.data[place + 4 : place + 4 + self.number(place)].decode()

    def table(self, number: int) -> "Table":
        return Table(self.data, self.follow(self.field(number)))

    def tables(self, number: int) -> list["Table"]:
        place = self.follow(self.field(number))
        return [Table(self.data, self.follow(place + 4 + 4 * i)) for i in range(self.number(place))]
