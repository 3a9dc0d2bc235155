"""Rows of a batch: lines of the input to rows or bad rows, predictions as of training.predict. Needs no Beam."""

import base64
import contextlib
import json
import math
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NoReturn

import numpy as np

from export.batch.shards import is_local
from export.checks import check_single_texts
from export.names import ABSTAINED, GIVEN, LABEL, LABELS, PROBABILITIES, TAGS
from export.predictors.artifacts import SAVEDMODEL, find_artifact
from kmha.bundle.manifest import MANIFEST
from kmha.errors import InputError, format_names

PROBABILITY = "probability"
OUTPUT_FIELDS = (LABEL, PROBABILITY, LABELS, PROBABILITIES)
INPUT_PREFIX = "input_"
"""Prefix of an input field with the name of an output field."""
_BOM = b"\xef\xbb\xbf"
_KINDS = {dict: "an object", list: "a list", bool: "true or false", type(None): "null", str: "a string"}
# Most bytes of a batch after padding. On two cores, with models of the default size, four times as many were not
# faster; 1,024 unsorted rows took 1.5 (Chinese titles) to 3 (AG News) times as long.
BATCH_BYTES = 8_192
# The model truncates longer texts: 512 tokens are rarely more bytes.
LONGEST_BYTES = 2_048
Signature = Callable[[Sequence[bytes]], Mapping[str, Any]]
"""Texts [B] to tensors: see `export.savedmodel.endpoints.ClassifierEndpoints.predict_text`."""


def parse_row(line: bytes, text_column: str, keep_text: bool = True) -> tuple[str, str]:
    """The text of a line, one JSON object in UTF-8, and the fields to copy to the output as one JSON object.

    Fields with the name of an output field get the prefix "input_". Raises InputError for a bad row, with the reason.
    """
    record = _object(_decoded(line))
    if text_column not in record:
        raise InputError(f"expected a field {text_column!r}, got {format_names(record)}")
    text = record[text_column]
    if not isinstance(text, str):
        raise InputError(f"expected a string in {text_column!r}, got {_KINDS.get(type(text), 'a number')}")
    copied: dict[str, Any] = {}
    for name, value in record.items():
        if name == text_column and not keep_text:
            continue
        new_name = f"{INPUT_PREFIX}{name}" if name in OUTPUT_FIELDS else name
        if new_name != name and new_name in record:
            raise InputError(
                f"expected {name!r} or {new_name!r}, which have the same name in the output, got both"
            )
        copied[new_name] = value
    written = json.dumps(copied, ensure_ascii=False, allow_nan=False)
    _check_whole_characters(text + written)
    return text, written


def output_line(fields: str, prediction: dict[str, Any]) -> str:
    """A line of the output without its line feed: the copied fields, then the prediction."""
    return json.dumps({**json.loads(fields), **prediction}, ensure_ascii=False, allow_nan=False)


def dead_letter(file: str, byte: int, reason: str, line: bytes) -> str:
    """A line of the file of bad rows, without its line feed: a JSON object with file, byte, reason and raw.

    `byte` is the position of the row's line, from 0; in a compressed file the position after decompression. A line
    that is not UTF-8 is in raw_base64.
    """
    line = line.removesuffix(b"\n")
    try:
        raw = {"raw": line.decode("utf-8")}
    except UnicodeDecodeError:
        raw = {"raw_base64": base64.b64encode(line).decode("ascii")}
    # A reason may quote half a surrogate pair, which must be escaped.
    reason = reason.encode("utf-8", "backslashreplace").decode("utf-8")
    return json.dumps(
        {"file": file, "byte": byte, "reason": reason, **raw}, ensure_ascii=False, allow_nan=False
    )


def is_blank(line: bytes, byte: int) -> bool:
    """Whether a line at this position of its file is blank."""
    return not without_mark(line, byte).strip()


def without_mark(line: bytes, byte: int) -> bytes:
    """A line without the byte order mark that some editors write at the start of a file."""
    return line.removeprefix(_BOM) if byte == 0 else line


def _decoded(line: bytes) -> str:
    try:
        return line.decode("utf-8")
    except UnicodeDecodeError as error:
        wrong = f"byte 0x{line[error.start]:02x} at position {error.start + 1} of the line"
        raise InputError(f"expected UTF-8, got {wrong}") from None


def _object(line: str) -> dict[str, Any]:
    try:
        record = _decode(line)
    except json.JSONDecodeError as error:
        raise InputError(f"expected a JSON object, got {error.msg} at position {error.pos + 1}") from None
    except (InputError, ValueError, RecursionError) as error:
        raise InputError(f"expected a JSON object, got {error}") from None
    if not isinstance(record, dict):
        raise InputError(f"expected a JSON object, got {_KINDS.get(type(record), 'a number')}")
    return record


def _distinct(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    record = dict(pairs)
    if len(record) < len(pairs):
        names = [name for name, _ in pairs]
        repeated = next(name for name in record if names.count(name) > 1)
        raise InputError(f"one with the name {repeated!r} twice")
    return record


def _finite(number: str) -> float:
    value = float(number)
    if not math.isfinite(value):
        raise InputError(f"one with the number {number[:40]}, which no float64 holds")
    return value


def _refused_constant(name: str) -> NoReturn:
    raise InputError(f"one with {name}, which is not JSON")


_decode = json.JSONDecoder(
    object_pairs_hook=_distinct, parse_float=_finite, parse_constant=_refused_constant
).decode


def _check_whole_characters(text: str) -> None:
    try:
        text.encode("utf-8")
    except UnicodeEncodeError:
        raise InputError("expected whole characters, got half a surrogate pair") from None


def predict(texts: Sequence[str], signature: Signature) -> list[dict[str, Any]]:
    """What `kmha.bundle.bundle.Bundle.predict` returns for each text, in their order.

    Batches have texts of similar length, since every text is padded to the longest of its batch.
    """
    encoded = [text.encode("utf-8") for text in texts]
    found: dict[int, dict[str, Any]] = {}
    for rows in batches_by_length([len(text) for text in encoded]):
        outputs = signature([encoded[row] for row in rows])
        found.update(zip(rows, _predictions_of(outputs), strict=True))
    return [found[row] for row in range(len(texts))]


def batches_by_length(lengths: Sequence[int]) -> Iterator[list[int]]:
    """Row numbers, each once, in groups of similar length in bytes, the shortest rows first.

    Rows times the longest row are at most `BATCH_BYTES`.
    """
    order = sorted(range(len(lengths)), key=lengths.__getitem__)
    group: list[int] = []
    for row in order:
        if group and (len(group) + 1) * min(max(lengths[row], 1), LONGEST_BYTES) > BATCH_BYTES:
            yield group
            group = []
        group.append(row)
    if group:
        yield group


def check_signature(signature: Signature, place: str) -> None:
    """Predicts for one text; raises InputError if the outputs are not those of an exported classifier."""
    try:
        outputs = signature([b""])
        is_tagger = TAGS in outputs
        if not is_tagger:
            next(_predictions_of(outputs))
    except Exception as error:  # TensorFlow raises many classes of errors for a wrong input.
        reason = next(iter(str(error).splitlines()), type(error).__name__)
        raise InputError(
            f"{place}: expected a SavedModel of texts that export.savedmodel wrote, got another"
            f" ({type(error).__name__}: {reason})"
        ) from error
    if is_tagger:
        raise InputError(
            f"{place}: expected a classifier, since export.batch takes single texts, got a tagger's SavedModel"
        )


def _predictions_of(outputs: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    probabilities = outputs[PROBABILITIES].numpy()
    if not len(probabilities):
        return
    labels = [name.decode("utf-8") for name in outputs[LABELS].numpy()[0]]
    if GIVEN not in outputs:
        abstained = outputs[ABSTAINED].numpy() if ABSTAINED in outputs else None
        for index, (row, best) in enumerate(zip(probabilities, outputs[LABEL].numpy(), strict=True)):
            yield {
                LABEL: best.decode("utf-8"),
                PROBABILITY: float(row.max()),
                **({} if abstained is None else {ABSTAINED: bool(abstained[index])}),
                PROBABILITIES: _named(labels, row),
            }
        return
    for row, decisions in zip(probabilities, outputs[GIVEN].numpy(), strict=True):
        order = np.argsort(-row, kind="stable")
        yield {LABELS: [labels[i] for i in order if decisions[i]], PROBABILITIES: _named(labels, row)}


def _named(labels: list[str], probabilities: np.ndarray) -> dict[str, float]:
    return {label: float(p) for label, p in zip(labels, probabilities, strict=True)}


@contextlib.contextmanager
def text_model(place: str) -> Iterator[str]:
    """The folder of a checked SavedModel of texts; the export of a run is removed when the block ends.

    The place is a run folder, a SavedModel, a folder of its versions (the newest is used), or a SavedModel in a store
    that TensorFlow reads (gs://). Raises InputError for another one.
    """
    from kmha.quiet import import_tensorflow

    import_tensorflow()
    from export.savedmodel.predictor import load_savedmodel
    from export.savedmodel.write import write_savedmodel

    with contextlib.ExitStack() as stack:
        if is_local(place) and (Path(place) / MANIFEST).exists():
            from kmha.bundle.bundle import Bundle

            check_single_texts(Path(place), "export.batch")
            bundle = Bundle.load(place)
            exported = stack.enter_context(tempfile.TemporaryDirectory(prefix="kmha-batch-"))
            folder = str(write_savedmodel(bundle, Path(exported)))
        else:
            folder = str(_version(Path(place))) if is_local(place) else place
        # As a string: a Path would change gs://.
        check_signature(load_savedmodel(folder), place)
        yield folder


def _version(path: Path) -> Path:
    try:
        found = find_artifact(path)
    except InputError as error:
        raise InputError(f"{path}: expected a run folder or a SavedModel, got neither") from error
    if found.format != SAVEDMODEL:
        raise InputError(f"{path}: expected a run folder or a SavedModel, got a {path.suffix} file")
    return found.path.absolute()
