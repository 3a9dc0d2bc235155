"""One line of a batch's input: a row to answer, or a bad row with its reason. Knows neither Beam nor TensorFlow."""

import base64
import json
import math
from typing import Any, NoReturn

from kmha.errors import InputError

LABEL, PROBABILITY, LABELS, PROBABILITIES = "label", "probability", "labels", "probabilities"
ANSWER_FIELDS = (LABEL, PROBABILITY, LABELS, PROBABILITIES)
INPUT_PREFIX = "input_"
"""Set before a field of the input that has the name of an answer's field."""

_BOM = b"\xef\xbb\xbf"
_KINDS = {dict: "an object", list: "a list", bool: "true or false", type(None): "null", str: "a string"}


def parse_row(line: bytes, text_column: str, keep_text: bool = True) -> tuple[str, str]:
    """The text of a line and what its answer carries.

    Args:
        line: One JSON object in UTF-8, with its line feed or without.
        text_column: The name of the text in the object.
        keep_text: Whether the answer carries the text too.

    Returns:
        The text, and the other fields as one JSON object. Those named like a field of an answer get "input_" before
        their name.

    Raises:
        InputError: The line cannot be answered; the message is the reason.
    """
    record = _object(_decoded(line))
    if text_column not in record:
        raise InputError(f"expected a field {text_column!r}, got {', '.join(record) or 'none'}")
    text = record[text_column]
    if not isinstance(text, str):
        raise InputError(f"expected a string in {text_column!r}, got {_KINDS.get(type(text), 'a number')}")
    carried: dict[str, Any] = {}
    for name, value in record.items():
        if name == text_column and not keep_text:
            continue
        new_name = f"{INPUT_PREFIX}{name}" if name in ANSWER_FIELDS else name
        if new_name != name and new_name in record:
            raise InputError(f"expected {name!r} or {new_name!r}, which the answer would hold once, got both")
        carried[new_name] = value
    written = json.dumps(carried, ensure_ascii=False)
    _check_whole_characters(text + written)
    return text, written


def answer_line(carried: str, answer: dict[str, Any]) -> str:
    """A line of the output without its line feed: what the row carries, then the answer."""
    return json.dumps({**json.loads(carried), **answer}, ensure_ascii=False)


def dead_letter(file: str, byte: int, reason: str, line: bytes) -> str:
    """A line of the bad rows' file, without its line feed.

    Args:
        file: The file that the row came from.
        byte: Where its line starts, counted from 0, in a compressed file in what it unpacks to.
        reason: Why it is not answered.
        line: The line as it was.

    Returns:
        A JSON object: file, byte, reason, and raw (the line without its line feed) or, where the line is no UTF-8,
        raw_base64.
    """
    line = line.removesuffix(b"\n")
    try:
        raw = {"raw": line.decode("utf-8")}
    except UnicodeDecodeError:
        raw = {"raw_base64": base64.b64encode(line).decode("ascii")}
    # A reason may quote half a surrogate pair, which only an escape can write.
    return json.dumps({"file": file, "byte": byte, "reason": _encodable(reason), **raw}, ensure_ascii=False)


def is_blank(line: bytes, byte: int) -> bool:
    """Whether a line that starts at this byte of its file is no row at all."""
    return not without_mark(line, byte).strip()


def without_mark(line: bytes, byte: int) -> bytes:
    """A line without the byte order mark that some editors set before the first one."""
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
