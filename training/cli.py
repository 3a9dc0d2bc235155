"""The command line: TOML file and flags through one parser, and errors in one line."""

import contextlib
import dataclasses
import difflib
import io
import sys
import tomllib
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TypeVar

import tyro

from kmha.errors import InputError

Config = TypeVar("Config")


def run(command: Callable[[], int]) -> int:
    """Runs a command; wrong input becomes one line on stderr and exit status 2.

    Args:
        command: Returns the exit status.

    Returns:
        The exit status: the command's, 2 for wrong input, 130 when interrupted.
    """
    try:
        return command()
    except InputError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    except BrokenPipeError:
        # The reader of our output has gone (`| head`): nobody to tell.
        sys.stdout = None
        return 1
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)
        return 130


def parse(config_type: type[Config], argv: Sequence[str] | None, program: str) -> Config:
    """Settings from defaults, then the file named by --config, then flags.

    Args:
        config_type: A dataclass, perhaps of dataclasses; with a field `config` it may be given a TOML file.
        argv: Arguments; None takes the process's.
        program: How the command is called, for its help.

    Raises:
        InputError: An unknown flag or key (the nearest is suggested), a value of the wrong type, a bad file.
        SystemExit: With status 0, after --help.
    """
    argv = list(sys.argv[1:] if argv is None else argv)
    flags = _flag_names(config_type)
    for argument in argv:
        name = argument.split("=")[0].replace("_", "-")
        if argument.startswith("--") and name not in flags:
            raise InputError(f"unknown flag {argument.split('=')[0]}{_near(name, flags)}")
    path = _config_path(argv) if "--config" in flags else None
    from_file: list[str] = []
    if path is not None:
        from_file = toml_flags(path, config_type)
        try:
            _parse(config_type, from_file, program)
        except InputError as error:
            raise InputError(f"{path}: {error}") from None
    return _parse(config_type, from_file + argv, program)


def _parse(config_type: type[Config], arguments: Sequence[str], program: str) -> Config:
    messages = io.StringIO()
    try:
        with contextlib.redirect_stderr(messages):
            return tyro.cli(config_type, args=arguments, prog=program)
    except SystemExit as stop:
        if stop.code in (0, None):
            raise
        raise InputError(_one_line(messages.getvalue())) from None


def _one_line(message: str) -> str:
    """The point of tyro's framed message, without frame, help text and advice."""
    kept: list[str] = []
    for line in message.splitlines():
        text = line.strip("│╭╮╰╯ ")
        if not text.strip("─") or text.endswith(("error ─", "options ─")) or "─" * 3 in text:
            if kept:
                break
            continue
        kept.append(text)
    return " ".join(kept) or "cannot read the command line"


def _config_path(argv: Sequence[str]) -> Path | None:
    path = None
    for index, argument in enumerate(argv):
        if argument == "--config" and index + 1 < len(argv):
            path = argv[index + 1]
        elif argument.startswith("--config="):
            path = argument.split("=", 1)[1]
    return None if path is None else Path(path)


def toml_flags(path: Path, config_type: type) -> list[str]:
    """Spells a TOML file as flags.

    Raises:
        InputError: The file is missing or no TOML, or has a key that no field has.
    """
    try:
        values = tomllib.loads(path.read_text("utf-8"))
    except OSError as error:
        raise InputError(f"--config {path}: wanted a TOML file, {error.strerror or error}") from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise InputError(f"{path}: not valid TOML: {error}") from error
    return _table_flags(values, config_type, str(path), "")


def _table_flags(values: dict, config_type: type, origin: str, prefix: str) -> list[str]:
    fields = {f.name: f for f in dataclasses.fields(config_type) if f.name != "config"}
    flags: list[str] = []
    for key, value in values.items():
        if key not in fields:
            raise InputError(f"{origin}: unknown key {prefix}{key}{_near(key, fields)}")
        section = fields[key].type
        if dataclasses.is_dataclass(section) != isinstance(value, dict):
            wanted = "a section" if dataclasses.is_dataclass(section) else "a value"
            raise InputError(f"{origin}: {prefix}{key} must be {wanted}, given {value!r}")
        if isinstance(value, dict):
            flags += _table_flags(value, section, origin, f"{prefix}{key}.")  # pyright: ignore
        elif section is bool and isinstance(value, bool):
            flags.append(f"--{prefix}{'' if value else 'no-'}{key}".replace("_", "-"))
        else:
            flags += [f"--{prefix}{key}".replace("_", "-"), *_words(value)]
    return flags


def _words(value) -> list[str]:
    return [word for item in value for word in _words(item)] if isinstance(value, list) else [str(value)]


def _flag_names(config_type: type, prefix: str = "") -> set[str]:
    names = {"--help"} if not prefix else set()
    for f in dataclasses.fields(config_type):
        if dataclasses.is_dataclass(f.type):
            names |= _flag_names(f.type, f"{prefix}{f.name}.")  # pyright: ignore
            continue
        name = f"{prefix}{f.name}".replace("_", "-")
        names.add(f"--{name}")
        if f.type is bool:
            parent, _, last = name.rpartition(".")
            names.add(f"--{parent}.no-{last}" if parent else f"--no-{last}")
    return names


def _near(name: str, known) -> str:
    near = difflib.get_close_matches(name, list(known), n=1)
    return f"; did you mean {near[0]}?" if near else ""
