"""Checks a TOML file of settings against a dataclass and converts it to flags."""

import dataclasses
import tomllib
import types
import typing
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal

from kmha.errors import InputError, did_you_mean


def toml_flags(path: Path, config_type: type) -> list[str]:
    """Reads a TOML file and converts it to flags; its keys are the fields of the dataclass, except `config`.

    Raises:
        InputError: The file is missing or invalid TOML, or has an unknown key or a value of the wrong type.
    """
    try:
        values = tomllib.loads(path.read_text("utf-8-sig"))
    except OSError as error:
        raise InputError(f"--config {path}: expected a TOML file, {error.strerror or error}") from error
    except UnicodeDecodeError as error:
        line = error.object[: error.start].count(b"\n") + 1
        raise InputError(f"{path}:{line}: expected UTF-8 text, got other bytes") from error
    except tomllib.TOMLDecodeError as error:
        raise InputError(
            f"{path}: expected valid TOML, got an error: {' '.join(str(error).split())}"
        ) from error
    return table_flags(values, config_type, str(path))


def table_flags(values: Mapping[str, Any], config_type: type, origin: str) -> list[str]:
    """Converts nested settings, as in a TOML file, to flags; `origin` is their source, for messages.

    Raises:
        InputError: An unknown key or a value of the wrong type.
    """
    return _table_flags(values, config_type, origin, "", _all_keys(config_type))


def _table_flags(
    values: Mapping[str, Any], config_type: type, origin: str, prefix: str, known: list[str]
) -> list[str]:
    expected = {name: kind for name, kind in typing.get_type_hints(config_type).items() if name != "config"}
    flags: list[str] = []
    for key, value in values.items():
        name = prefix + key
        if key not in expected:
            raise InputError(f"{origin}: unknown key {name}{did_you_mean(name, known)}")
        flag = f"--{name}".replace("_", "-")
        if dataclasses.is_dataclass(expected[key]) and isinstance(value, dict):
            flags += _table_flags(value, expected[key], origin, f"{name}.", known)
        elif not _fits(value, expected[key]):
            choices = typing.get_args(expected[key]) if typing.get_origin(expected[key]) is Literal else ()
            hint = did_you_mean(str(value), choices)
            raise InputError(f"{origin}: {name} must be {_in_words(expected[key])}, got {value!r}{hint}")
        elif expected[key] is bool:
            parent, _, last = flag.removeprefix("--").rpartition(".")
            flags.append(f"--{parent}{'.' if parent else ''}{'' if value else 'no-'}{last}")
        elif isinstance(value, list):
            flags += [flag, *map(str, value)]
        else:
            # "=" allows values that begin with a dash.
            flags.append(f"{flag}={value}")
    return flags


def _all_keys(config_type: Any, prefix: str = "") -> list[str]:
    keys = []
    for name, kind in typing.get_type_hints(config_type).items():
        keys += [prefix + name] if name != "config" else []
        keys += _all_keys(kind, f"{prefix}{name}.") if dataclasses.is_dataclass(kind) else []
    return keys


def _fits(value: Any, expected: Any) -> bool:
    """Returns whether a TOML value has the type of a field."""
    origin, arguments = typing.get_origin(expected), typing.get_args(expected)
    if origin in (typing.Union, types.UnionType):
        return any(_fits(value, each) for each in arguments if each is not type(None))
    if origin is Literal:
        return value in arguments
    if origin is tuple:
        return isinstance(value, list) and all(_fits(item, arguments[0]) for item in value)
    if expected is Path:
        return isinstance(value, str)
    if expected is float:
        return isinstance(value, int | float) and not isinstance(value, bool)
    # Not isinstance: a bool is an int.
    return not dataclasses.is_dataclass(expected) and type(value) is expected


def _in_words(expected: Any) -> str:
    origin, arguments = typing.get_origin(expected), typing.get_args(expected)
    if origin in (typing.Union, types.UnionType):
        return " or ".join(_in_words(each) for each in arguments if each is not type(None))
    if origin is Literal:
        return f"one of {', '.join(arguments)}"
    if origin is tuple:
        return f"a list, each item {_in_words(arguments[0])}"
    if dataclasses.is_dataclass(expected):
        return "a section"
    words = {int: "a whole number", float: "a number", bool: "true or false", str: "a string", Path: "a path"}
    return words[expected]
