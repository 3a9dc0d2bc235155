"""Parses a line of the input to a row, or to a bad row with its reason. Needs neither Beam nor TensorFlow."""

import base64
import json
import math
from typing import Any, NoReturn

from export.names import LABEL, LABELS, PROBABILITIES
from kmha.errors import InputError

PROBABILITY = "probability"
OUTPUT_FIELDS = (LABEL, PROBABILITY, LABELS, PROBABILITIES)
INPUT_PREFIX = "input_"
"""Prefix of an input field with the name of an output field."""

_BOM = b"\xef\xbb\xbf"
_KINDS = {dict: "an object", list: "a list", bool: "true or false", type(None): "null", str: "a string"}


def parse_row(line: bytes, text_column: str, keep_text: bool = True) -> tuple[str, str]:
    """The text of a line, one JSON object in UTF-8, and the fields to copy to the output as one JSON object.

    Fields with the name of an output field get the prefix "input_". Raises InputError for a bad row, with the reason.
    """
    record = _object(_decoded(line))
    if text_column not in record:
        raise InputError(f"expected a field {text_column!r}, got {', '.join(record) or 'none'}")
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
    written = json.dumps(copied, ensure_ascii=False)
    _check_whole_characters(text + written)
    return text, written


def output_line(fields: str, prediction: dict[str, Any]) -> str:
    """A line of the output without its line feed: the copied fields, then the prediction."""
    return json.dumps({**json.loads(fields), **prediction}, ensure_ascii=False)


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
    return json.dumps({"file": file, "byte": byte, "reason": _encodable(reason), **raw}, ensure_ascii=False)


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


def _encodable(text: str) -> str:
    return text.encode("utf-8", "backslashreplace").decode("utf-8")
