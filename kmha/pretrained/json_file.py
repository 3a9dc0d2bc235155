"""Reads the JSON files of a checkpoint, which may come from anywhere."""

import json
from pathlib import Path
from typing import Any

from kmha.errors import InputError


def read_json(path: Path) -> dict[str, Any]:
    """The JSON object in a file.

    Raises:
        InputError: The file is missing, is not valid JSON or contains something other than an object.
    """
    try:
        values = json.loads(path.read_bytes())
    except OSError as error:
        raise InputError(f"{path}: expected a checkpoint's {path.name}, {error.strerror or error}") from error
    except (ValueError, RecursionError) as error:
        raise InputError(f"{path}: not valid JSON: {error}") from error
    if not isinstance(values, dict):
        raise InputError(f"{path}: must be a JSON object, got {type(values).__name__}")
    return values


def shown(value: Any) -> str:
    """A value for an error message: one line of limited length."""
    text = repr(value)
    return text if len(text) <= 60 else f"{text[:60]}…"
