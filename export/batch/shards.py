"""Settings of a batch, and its output files: numbered shards that appear together when the whole batch is finished."""

import contextlib
import os
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import tyro

from kmha.errors import InputError
from training.cli.bounds import Range
from training.io.disk import publishing, staging_folder, writing

SUFFIX, ERRORS = ".jsonl", ".errors"
_NUMBER = r"-\d{5,}-of-\d{5,}"


@dataclass(frozen=True)
class BatchConfig:
    """Predicts for the rows of many JSONL files with Apache Beam. Flags after -- are Beam's, such as --runner."""

    model: Annotated[str, tyro.conf.Positional, tyro.conf.arg(metavar="RUN_OR_SAVEDMODEL")]
    """Run folder that training.fit wrote, a SavedModel, or a folder of its versions."""
    input: str
    """Pattern of the input JSONL files, plain or .gz; quote it."""
    output: str
    """Prefix of the output files: OUT-00000-of-00001.jsonl, OUT.errors-….jsonl."""
    text_column: str = "text"
    """Field of a row with its text."""
    keep_text: bool = True
    """Copy the text to the output, like the other fields."""
    batch_rows: Annotated[int, Range(at_least=1)] = 1024
    """Most rows in a batch."""
    shards: Annotated[int, Range(at_least=0)] = 0
    """Number of output files; 0: the runner decides."""
    overwrite: bool = False
    """Replace the files of an earlier batch."""


def is_local(place: str) -> bool:
    """Whether a path is on this machine, not in a store such as gs:// or hdfs://."""
    return "://" not in place


def with_folder(place: str) -> str:
    """A local path as an absolute one: Beam finds no files for a pattern without a folder, such as `in-*`."""
    return os.path.abspath(place) if is_local(place) else place


def is_shard_of(place: str, output: str) -> bool:
    """Whether a path is an output file, of predictions or bad rows, of a batch with this output."""
    expected = f"{re.escape(with_folder(output))}({re.escape(ERRORS)})?{_NUMBER}{re.escape(SUFFIX)}"
    return bool(re.fullmatch(expected, with_folder(place)))


def shards_of(output: Path) -> list[Path]:
    """The existing output files of a batch, sorted: predictions, then bad rows."""
    if not output.parent.is_dir():
        return []
    found = (path for path in output.parent.iterdir() if is_shard_of(str(path), str(output)))
    return sorted(found, key=lambda path: (path.name.startswith(f"{output.name}{ERRORS}-"), path.name))


@contextlib.contextmanager
def atomic_shards(output: Path, overwrite: bool = False) -> Iterator[Path]:
    """A temporary prefix for output files; they move to `output` when the block ends without an error.

    Missing parent folders are created, and removed again after an error. Raises InputError if such files exist and
    must not be replaced, or the folder cannot be written to.
    """
    if not output.name:
        raise InputError(f"{output}: expected a prefix of file names, got no name")
    _check_free(output, overwrite)
    with contextlib.ExitStack() as stack:
        with writing(output):
            staging = stack.enter_context(staging_folder(output))
        yield staging / output.name
        with writing(output), publishing(output.parent):
            _check_free(output, overwrite)
            _move(staging, output)


def _check_free(output: Path, overwrite: bool) -> None:
    existing = [] if overwrite else shards_of(output)
    if existing:
        raise InputError(
            f"{output}: expected a new prefix, got one with files such as {existing[0].name}; use --overwrite"
        )


def _move(staging: Path, output: Path) -> None:
    moved: list[Path] = []
    try:
        for path in shards_of(output):
            path.unlink()
        for path in shards_of(staging / output.name):
            moved.append(path.replace(output.parent / path.name))
    except BaseException:
        for path in moved:
            path.unlink(missing_ok=True)
        raise
