"""Parses flags and TOML files, reports errors in one line, and maps exceptions to exit codes."""

import contextlib
import dataclasses
import errno
import io
import logging
import os
import re
import sys
import tomllib
import types
import typing
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, TypeVar

import tyro

from kmha.errors import InputError, did_you_mean, printable, shown
from kmha.input_files import read_input
from training.cli.bounds import check_ranges
from training.cli.exceptions import CheckpointWriteError, check_stop, interruptible
from training.cli.help import format_help

Config = TypeVar("Config")

FAILED, WRONG_INPUT, INTERRUPTED, NO_READER = 1, 2, 130, 141

# Messages for OSErrors of a full disk.
FULL = {
    errno.ENOSPC: "the disk is full",
    errno.EDQUOT: "the disk quota is used up",
    errno.EFBIG: "a file is larger than it may be",
}

# Of paths that no command can read or write. Most readers and writers have messages of their own.
UNUSABLE = (
    errno.ENAMETOOLONG,
    errno.EACCES,
    errno.EPERM,
    errno.ENOTDIR,
    errno.EISDIR,
    errno.ELOOP,
    errno.ENXIO,
)

# Rewrites tyro's messages to `FLAG: expected X, got Y`.
_REWORDED = (
    (
        r"Error parsing (--\S+): invalid literal for int\(\) with base 10: (.*)",
        r"\1: expected a whole number, got \2",
    ),
    (r"Error parsing (--\S+): could not convert string to float: (.*)", r"\1: expected a number, got \2"),
    (
        r"Error parsing (--\S+): no type matching \{None\}\|FLOAT could be instantiated from \['(.*)'\]\.?",
        r"\1: expected a number, got '\2'",
    ),
    (r"Error parsing (--\S+): Could not find valid parse for .*: (.*)", r"\1: expected other values, got \2"),
    (r"Missing value for argument '(--[^'/ ]+).*", r"\1: expected a value, got none"),
    (
        r"[Ii]nvalid choice '(.*)' for argument '(--[^'/ ]+).*Expected one of \((.*)\) ?\.",
        r"\2: expected one of \3, got '\1'",
    ),
    (r"Unrecognized options: (.*)", r"unexpected argument \1"),
    (r"Missing from [^:]*: (.*)", r"missing \1"),
)
_COLOUR = re.compile(r"\x1b\[[0-9;]*m")
_FRAME = "│╭╮╰╯ "
# A missing argument: its name and its help text.
_MISSING = r"(--\S+ \S+|\b[A-Z_]+(?:\.[a-z]+)?) ([A-Z].*?)\.? \(required\)"


class _StandardError(logging.Handler):
    """Writes each message to the current `sys.stderr` in one call, so that lines of different threads are not mixed."""

    def emit(self, record: logging.LogRecord) -> None:
        """Writes the message and a newline."""
        if sys.stderr is not None:  # None in services
            message = "\n".join(map(printable, as_started(record.getMessage()).split("\n")))
            sys.stderr.write(f"{message}\n")
            sys.stderr.flush()


def as_started(text: str) -> str:
    """Text with `kmha fit` in place of `python -m training.fit`, and so on, if `kmha` started the process."""
    if Path(sys.argv[0]).name != "kmha":
        return text
    return text.replace("python -m training.", "kmha ").replace("python -m export.", "kmha export ")


logger = logging.getLogger("kmha")
if not logger.handlers:
    logger.addHandler(_StandardError())
    logger.setLevel(logging.INFO)
    logger.propagate = False


def run(command: Callable[[], int]) -> int:
    """Runs a command and returns its exit status; logs errors in one line on stderr.

    The exit status is that of the command; 0 after --help, 1 for a full disk, 2 for wrong input, 130 after SIGINT or
    SIGTERM, 141 for a closed output pipe (`| head`).
    """
    # JSON is UTF-8 in every locale.
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(encoding="utf-8")
    try:
        with interruptible():
            status = command()
            sys.stdout.flush()
            if status != INTERRUPTED:
                check_stop()
            return status
    except InputError as error:
        logger.error(f"error: {error}")
        return WRONG_INPUT
    except BrokenPipeError:
        # Discards the buffer, so that closing stdout does not fail again.
        with contextlib.suppress(OSError, ValueError), open(os.devnull, "wb") as nowhere:
            os.dup2(nowhere.fileno(), sys.stdout.fileno())
        return NO_READER
    except CheckpointWriteError as error:
        logger.error(f"error: {error}")
        return FAILED
    except OSError as error:
        if error.errno in UNUSABLE and error.filename is not None:
            logger.error(
                f"error: {InputError(f'{error.filename}: expected a usable path, {error.strerror}')}"
            )
            return WRONG_INPUT
        logger.error(f"error: {full_disk(error)}")
        return FAILED
    except KeyboardInterrupt:
        logger.info("interrupted")
        return INTERRUPTED
    except SystemExit as stop:
        # Raised by --help only.
        return int(stop.code or 0)


def full_disk(error: OSError) -> str:
    """Returns the message for a full disk; raises any other error again."""
    if error.errno not in FULL:
        raise error
    return FULL[error.errno] + (f", writing {error.filename}" if error.filename else "")


def parse(
    config_type: type[Config], argv: Sequence[str] | None, program: str, short_help: Sequence[str] = ()
) -> Config:
    """Parses settings; flags override the TOML file of --config, if there is that field, which overrides the defaults.

    With `short_help`, --help shows only these flags and those of the task, and --help-all shows all.

    Raises:
        InputError: An unknown flag or key, a value of the wrong type or out of range, or an invalid file.
        SystemExit: Status 0 after --help.
    """
    argv = list(sys.argv[1:] if argv is None else argv)
    if {"-h", "--help", "--help-all"} & set(argv):
        task = _value(argv, "--task") or "classify"
        shown = () if "--help-all" in argv or not short_help else (*short_help, f"--{task}.")
        print(format_help(config_type, as_started(program), shown))
        raise SystemExit(0)
    flags = _flag_names(config_type)
    for argument in argv:
        name = argument.split("=")[0]
        if name.startswith("--") and name.replace("_", "-") not in flags:
            raise InputError(f"unknown flag {name}{did_you_mean(name, flags)}")
    value = _value(argv, "--config") if "--config" in flags else None
    path = None if value is None else Path(value)
    from_file = [] if path is None else toml_flags(path, config_type)
    config = _parse(config_type, from_file + argv, program)
    try:
        check_ranges(config)
    except InputError as error:
        flag = str(error).split(":")[0]
        is_from_file = any(word.startswith(f"{flag}=") for word in from_file) and not any(
            word.split("=")[0].replace("_", "-") == flag for word in argv
        )
        raise InputError(f"{path}: {error}" if is_from_file else str(error)) from None
    return config


def _parse(config_type: type[Config], arguments: Sequence[str], program: str) -> Config:
    messages = io.StringIO()
    try:
        with contextlib.redirect_stderr(messages):
            return tyro.cli(config_type, args=arguments, prog=program)
    except SystemExit as stop:
        if stop.code in (0, None):
            raise
        raise InputError(_reworded(_one_line(messages.getvalue()))) from None


def _one_line(message: str) -> str:
    """Extracts the error from tyro's message, without colors, frame, title, help text and hints."""
    lines = [line.strip(_FRAME) for line in _COLOUR.sub("", message).splitlines()]
    # Horizontal rules separate blocks. The title is in the top rule, or without a frame a separate block.
    blocks: list[list[str]] = [[]]
    for line in lines:
        if set(line) <= {"-", "─"} or "───" in line:
            blocks.append([])
        else:
            blocks[-1].append(line)
    blocks = [block for block in blocks if block]
    has_frame = "─" in message
    point = blocks[0] if has_frame or len(blocks) == 1 else blocks[1]
    return " ".join(point)


def _reworded(message: str) -> str:
    for pattern, words in _REWORDED:
        if re.fullmatch(pattern, message):
            return re.sub(_MISSING, r"\1 (\2)", re.sub(pattern, words, message))
    return message


def _value(argv: Sequence[str], flag: str) -> str | None:
    """The last value of a flag; None without it."""
    found = None
    for index, argument in enumerate(argv):
        if argument == flag and index + 1 < len(argv):
            found = argv[index + 1]
        elif argument.startswith(f"{flag}="):
            found = argument.split("=", 1)[1]
    return found


def _flag_names(config_type: type, prefix: str = "") -> list[str]:
    names = [] if prefix else ["--help", "--help-all"]
    for name, kind in typing.get_type_hints(config_type, include_extras=True).items():
        if dataclasses.is_dataclass(kind):
            names += _flag_names(kind, f"{prefix}{name}.")  # pyright: ignore
        elif tyro.conf.Positional not in getattr(kind, "__metadata__", ()):
            annotations = getattr(kind, "__metadata__", ())
            given = next(filter(None, (getattr(each, "name", None) for each in annotations)), name)
            flag = f"{prefix}{given}".replace("_", "-")
            names.append(f"--{flag}")
            for annotation in annotations:
                names += getattr(annotation, "aliases", None) or ()
            if kind is bool:
                parent, _, last = flag.rpartition(".")
                names.append(f"--{parent}.no-{last}" if parent else f"--no-{last}")
    return names


def read_toml(path: Path) -> dict[str, Any]:
    """The values of a TOML file; raises InputError if it cannot be read."""
    try:
        return tomllib.loads(read_input(path).decode("utf-8-sig"))
    except OSError as error:
        raise InputError(f"--config {path}: expected a TOML file, {error.strerror or error}") from error
    except UnicodeDecodeError as error:
        line = error.object[: error.start].count(b"\n") + 1
        raise InputError(f"{path}:{line}: expected UTF-8 text, got other bytes") from error
    # Also of integers with thousands of digits.
    except (ValueError, RecursionError) as error:
        raise InputError(
            f"{path}: expected valid TOML, got an error: {' '.join(str(error).split())}"
        ) from error


def toml_flags(path: Path, config_type: type) -> list[str]:
    """Reads a TOML file, whose keys are fields of the dataclass, and converts it to flags; raises InputError."""
    return table_flags(read_toml(path), config_type, str(path))


def table_flags(values: Mapping[str, Any], config_type: type, origin: str) -> list[str]:
    """Converts nested settings, as in a TOML file, to flags; raises InputError, which names their origin."""
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
            raise InputError(f"{origin}: {name} must be {_in_words(expected[key])}, got {shown(value)}{hint}")
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


def format_table(rows: Sequence[Sequence[str]]) -> list[str]:
    """Formats one or more rows as lines of text; the first column is left-aligned, the others right-aligned."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return [
        "  ".join(
            cell.rjust(width) if place else cell.ljust(width)
            for place, (cell, width) in enumerate(zip(row, widths, strict=True))
        ).rstrip()
        for row in rows
    ]
