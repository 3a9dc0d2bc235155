"""TFLite metadata, with which MediaPipe Tasks' TextClassifier runs a model on raw text.

It uses the field numbers of TFLite's public metadata schema (metadata_schema.fbs, identifier M001). As the schema
requires, the named files are appended to the model as an uncompressed zip.
"""

import io
import zipfile
from collections.abc import Callable, Sequence
from typing import Any

import flatbuffers
import numpy as np

from export.names import PROBABILITIES
from kmha.bundle.bundle import Bundle
from kmha.bundle.manifest import CLASSIFY
from kmha.features import PADDING_MASK, SEGMENT_IDS, TOKEN_IDS

NAME = "TFLITE_METADATA"
IDENTIFIER = b"M001"
PARSER = "1.1.0"
LABELS, VOCABULARY = "labels.txt", "vocab.txt"
# MediaPipe's names of BERT's three inputs.
BERT_NAMES = {TOKEN_IDS: "ids", PADDING_MASK: "mask", SEGMENT_IDS: "segment_ids"}
# Values of the schema's enums and unions.
AXIS_LABELS, VOCABULARY_FILE = 2, 5
FEATURE_PROPERTIES, BERT_TOKENIZER = 1, 4
# 1980, the first date that a zip can hold: the same run makes the same bytes.
NO_DATE = (1980, 1, 1, 0, 0, 0)


def has_metadata(bundle: Bundle, signatures: int, with_attention: bool) -> bool:
    """Whether MediaPipe can run a model: WordPiece, one text, one signature, and only probabilities."""
    if bundle.task != CLASSIFY or signatures != 1 or with_attention:
        return False
    return bundle.preprocessor.tokenization == "wordpiece"


def with_metadata(content: bytes, bundle: Bundle, files: dict[str, bytes]) -> bytes:
    """Adds metadata about the first subgraph to a TFLite model, and appends its labels.txt and vocab.txt.

    The inputs of its signatures must be named as BERT_NAMES.
    """
    from ai_edge_litert import schema_py_generated as schema

    model = schema.ModelT.InitFromObj(schema.Model.GetRootAsModel(content, 0))
    inputs, outputs = _tensor_names(model)
    buffer = schema.BufferT()
    buffer.data = np.frombuffer(_metadata(bundle, inputs, outputs), np.uint8)
    entry = schema.MetadataT()
    entry.name, entry.buffer = NAME, len(model.buffers)
    model.buffers.append(buffer)
    model.metadata = [*(model.metadata or []), entry]
    builder = _AlignedBuilder(len(content) + 65_536)
    builder.Finish(model.Pack(builder), b"TFL3")
    stream = io.BytesIO()
    stream.write(builder.Output())
    with zipfile.ZipFile(stream, "a", zipfile.ZIP_STORED) as archive:
        for name, data in files.items():
            archive.writestr(zipfile.ZipInfo(name, NO_DATE), data)
    return stream.getvalue()


class _AlignedBuilder(flatbuffers.Builder):
    """Aligns the weights to 16 bytes, as TFLite's schema requires; the Python writer does not."""

    def CreateNumpyVector(self, x):
        self.StartVector(x.itemsize, x.size, 16)
        length = x.itemsize * x.size
        self.head -= length
        self.Bytes[self.head : self.head + length] = x.tobytes()
        self.vectorNumElems = x.size
        return self.EndVector()


def _tensor_names(model: Any) -> tuple[list[str], list[str]]:
    """Signature names of the first subgraph's inputs and outputs in their order."""
    graph = model.subgraphs[0]
    (signature,) = [signature for signature in model.signatureDefs if signature.subgraphIndex == 0]
    inputs = {entry.tensorIndex: entry.name.decode() for entry in signature.inputs}
    outputs = {entry.tensorIndex: entry.name.decode() for entry in signature.outputs}
    return [inputs[index] for index in graph.inputs], [outputs[index] for index in graph.outputs]


def _metadata(bundle: Bundle, inputs: Sequence[str], outputs: Sequence[str]) -> bytes:
    builder = flatbuffers.Builder(1024)
    write = _writer(builder)
    labels = write({0: LABELS, 1: "Labels in the order of the probabilities", 2: ("int8", AXIS_LABELS)})
    vocabulary = write({0: VOCABULARY, 1: "WordPiece tokens by id", 2: ("int8", VOCABULARY_FILE)})
    content = write({0: ("uint8", FEATURE_PROPERTIES), 1: write({})})
    tensors = [write({0: BERT_NAMES[name], 1: f"{name}, int32 [1, T]", 3: content}) for name in inputs]
    predictions = [
        write({0: name, 1: "of each label", 3: content, 6: [labels] if name == PROBABILITIES else []})
        for name in outputs
    ]
    tokenizer = write({0: ("uint8", BERT_TOKENIZER), 1: write({0: [vocabulary]})})
    graph = write({2: tensors, 3: predictions, 5: [tokenizer]})
    kind = "several labels" if bundle.multi_label else "one label"
    root = write({0: "TextClassifier", 1: f"Text to {kind} of {len(bundle.labels)}", 3: [graph], 7: PARSER})
    builder.Finish(root, IDENTIFIER)
    return bytes(builder.Output())


def _writer(builder: flatbuffers.Builder) -> Callable[[dict[int, Any]], int]:
    """A function that writes a table of fields by number and returns its offset.

    A field is a string, an offset, a list of offsets, or a number with its type.
    """

    def write(fields: dict[int, Any]) -> int:
        ready = {number: _placed(builder, value) for number, value in fields.items()}
        builder.StartObject(max(fields, default=-1) + 1)
        for number, value in ready.items():
            if isinstance(value, tuple):
                add = {"int8": builder.PrependInt8Slot, "uint8": builder.PrependUint8Slot}[value[0]]
                add(number, value[1], 0)
            elif value is not None:
                builder.PrependUOffsetTRelativeSlot(number, value, 0)
        return builder.EndObject()

    return write


def _placed(builder: flatbuffers.Builder, value: Any) -> Any:
    if isinstance(value, str):
        return builder.CreateString(value)
    if not isinstance(value, list):
        return value
    if not value:
        return None
    builder.StartVector(4, len(value), 4)
    for place in reversed(value):
        builder.PrependUOffsetTRelative(place)
    return builder.EndVector()
