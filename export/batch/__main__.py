"""python -m export.batch RUN_OR_SAVEDMODEL --input 'in-*.jsonl' --output out [-- runner flags]

Answers the rows of many files as an Apache Beam pipeline, on this machine or on a cluster. Needs kmha[beam].
"""  # noqa: D415

import contextlib
import importlib.util
import logging
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import tyro

from export.batch.shards import ERRORS, SUFFIX, is_local, is_shard_of, shards_beside, shards_of
from kmha.errors import InputError
from training.cli.bounds import Range
from training.cli.parser import FAILED, parse, run

logger = logging.getLogger("kmha")

MISSING = "export.batch needs the extra kmha[beam], in an environment of its own: make beam, see docs/how-to/batch.md"


@dataclass(frozen=True)
class BatchConfig:
    """Answers the rows of many JSONL files with Apache Beam. Flags after -- are Beam's own, such as --runner."""

    model: Annotated[str, tyro.conf.Positional, tyro.conf.arg(metavar="RUN_OR_SAVEDMODEL")]
    """Run folder that training.fit wrote, a SavedModel, or a folder of its versions."""
    input: str
    """Pattern of the JSONL files to answer, plain or .gz; quote it."""
    output: str
    """What the names of the files written begin with: OUT-00000-of-00001.jsonl, OUT.errors-….jsonl."""
    text_column: str = "text"
    """Field of a row that holds its text."""
    keep_text: bool = True
    """Carry the text into the answer, as the other fields are."""
    batch_rows: Annotated[int, Range(at_least=1)] = 1024
    """The most rows that are given to the model together."""
    shards: Annotated[int, Range(at_least=0)] = 0
    """Files of answers; 0: as many as the runner likes."""
    overwrite: bool = False
    """Replace the files of an earlier batch."""


def main(argv: Sequence[str] | None = None) -> int:
    """Runs the command; returns its exit status."""
    mine, beams = split_flags(sys.argv[1:] if argv is None else argv)
    return run(lambda: _batch(parse(BatchConfig, mine, "python -m export.batch"), beams))


def split_flags(argv: Sequence[str]) -> tuple[list[str], list[str]]:
    """The command's own arguments and, after --, those of Beam."""
    argv = list(argv)
    cut = argv.index("--") if "--" in argv else len(argv)
    return argv[:cut], argv[cut + 1 :]


def _batch(config: BatchConfig, flags: Sequence[str]) -> int:
    if importlib.util.find_spec("apache_beam") is None:
        raise InputError(MISSING)
    # Before Beam sets up its own, which tells of every stage.
    logging.basicConfig(level=logging.ERROR, format="%(levelname)s: %(message)s")
    from export.batch.answers import text_model
    from export.batch.pipeline import Batch, matched_files
    from export.batch.runner import PipelineFailed, run_batch, runner_options

    options = runner_options(flags)
    files = matched_files(config.input)
    _check_apart(files, config.output)
    try:
        with _place(config) as output, text_model(config.model) as model:
            logger.info(f"{len(files):,} file{'s' * (len(files) != 1)} to answer")
            started = time.monotonic()
            batch = Batch(
                config.input,
                output,
                model,
                config.text_column,
                config.keep_text,
                config.batch_rows,
                config.shards,
            )
            counts = run_batch(batch, options)
            seconds = time.monotonic() - started
    except PipelineFailed as error:
        logger.info(f"error: the pipeline failed, {error}")
        return FAILED
    return report(config, counts, seconds)


@contextlib.contextmanager
def _place(config: BatchConfig) -> Iterator[str]:
    """What the pipeline's file names begin with: beside the output, or in a store the output itself."""
    if not is_local(config.output):
        # A store cannot rename; Beam itself writes each file aside and moves it when all are whole.
        yield config.output
        return
    with shards_beside(Path(config.output), config.overwrite) as beside:
        yield str(beside.absolute())


def _check_apart(files: Sequence[str], output: str) -> None:
    for file in files:
        if is_shard_of(file, output):
            raise InputError(f"{file}: expected input apart from the output, got a file of {output!r}")


def report(config: BatchConfig, counts: tuple[int, int] | None, seconds: float) -> int:
    """Says what was done and where it is.

    Args:
        config: Of the command.
        counts: Rows answered and bad ones; None where the runner does not tell.
        seconds: How long the pipeline took.

    Returns:
        The exit status: 1 if rows were given and all were bad, else 0.
    """
    if is_local(config.output):
        for path in shards_of(Path(config.output)):
            print(path)
    else:
        print(f"{config.output}-*{SUFFIX}")
    if counts is None:
        logger.info(f"done in {seconds:.1f} s; the runner does not tell how many rows")
        return 0
    answered, bad = counts
    logger.info(f"{answered:,} rows answered, {answered / seconds:,.0f} a second, {bad:,} bad")
    if bad:
        logger.info(f"bad rows with their reasons: {config.output}{ERRORS}-*{SUFFIX}")
    return FAILED if bad and not answered else 0


if __name__ == "__main__":
    sys.exit(main())
