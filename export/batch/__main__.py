"""python -m export.batch RUN_OR_SAVEDMODEL --input 'in-*.jsonl' --output out [-- runner flags]

Predicts for the rows of many files with an Apache Beam pipeline, on this machine or on a cluster. Needs kmha[beam].
"""  # noqa: D415

import contextlib
import dataclasses
import importlib.util
import logging
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

from export.batch.shards import ERRORS, SUFFIX, BatchConfig, atomic_shards, is_local, is_shard_of, shards_of
from kmha.errors import InputError
from training.cli.parser import FAILED, parse, run

logger = logging.getLogger("kmha")

MISSING = (
    "export.batch: expected the package apache-beam, got none; pip install 'kmha[beam]' in an environment of its own,"
    " since it excludes other extras"
)


def main(argv: Sequence[str] | None = None) -> int:
    """Runs the command; returns its exit status."""
    own, beam = split_flags(sys.argv[1:] if argv is None else argv)
    return run(lambda: _batch(parse(BatchConfig, own, "python -m export.batch"), beam))


def split_flags(argv: Sequence[str]) -> tuple[list[str], list[str]]:
    """The command's own arguments, and Beam's after --."""
    argv = list(argv)
    separator_index = argv.index("--") if "--" in argv else len(argv)
    return argv[:separator_index], argv[separator_index + 1 :]


def _batch(config: BatchConfig, flags: Sequence[str]) -> int:
    if importlib.util.find_spec("apache_beam") is None:
        raise InputError(MISSING)
    # Before Beam configures logging, which would report every stage.
    logging.basicConfig(level=logging.ERROR, format="%(levelname)s: %(message)s")
    from export.batch.pipeline import PipelineFailed, matched_files, run_batch, runner_options
    from export.batch.rows import text_model

    options = runner_options(flags)
    files = matched_files(config.input)
    for file in files:
        if is_shard_of(file, config.output):
            raise InputError(
                f"{file}: expected input that is not an output file, got a file of {config.output!r}"
            )
    try:
        with _output_prefix(config) as output, text_model(config.model) as model:
            logger.info(f"{len(files):,} input file{'s' * (len(files) != 1)}")
            started = time.monotonic()
            counts = run_batch(dataclasses.replace(config, output=output, model=model), options)
            seconds = time.monotonic() - started
    except PipelineFailed as error:
        logger.info(f"error: the pipeline failed, {error}")
        return FAILED
    return report(config, counts, seconds)


@contextlib.contextmanager
def _output_prefix(config: BatchConfig) -> Iterator[str]:
    """The prefix of the pipeline's files: a temporary one, or in a remote store the output itself."""
    if not is_local(config.output):
        # A remote store cannot rename. Beam itself writes temporary files and moves them when all are complete.
        yield config.output
        return
    with atomic_shards(Path(config.output), config.overwrite) as prefix:
        yield str(prefix.absolute())


def report(config: BatchConfig, counts: tuple[int, int] | None, seconds: float) -> int:
    """Prints the output files, and logs the numbers of predictions and bad rows (None: the runner does not count).

    Returns the exit status: 1 if there were rows and all were bad, else 0.
    """
    if is_local(config.output):
        for path in shards_of(Path(config.output)):
            print(path)
    else:
        print(f"{config.output}-*{SUFFIX}")
    if counts is None:
        logger.info(f"done in {seconds:.1f} s; the runner does not report the number of rows")
        return 0
    good, bad = counts
    logger.info(f"{good:,} predictions, {good / seconds:,.0f} rows/s, {bad:,} bad rows")
    if bad:
        logger.info(f"bad rows with their reasons: {config.output}{ERRORS}-*{SUFFIX}")
    return FAILED if bad and not good else 0


if __name__ == "__main__":
    sys.exit(main())
