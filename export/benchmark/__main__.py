"""python -m export.benchmark RUN ARTIFACT… [--texts FILE] [--threads N] [--peers] [--out FILE.json]

Compares the speed of exported models with their run: latency of one text, texts a second in batches, load time,
memory, size. Tables on stderr, one JSON object on stdout; docs/how-to/benchmark.md describes the method.
"""  # noqa: D415

import logging
import sys
from collections.abc import Sequence
from pathlib import Path

from export.benchmark.figures import busyness, fastest, report, tables
from export.benchmark.measure import BenchmarkConfig, measure_models, models_to_measure
from export.benchmark.worker import IDS, TEXTS
from export.checks import check_single_texts
from export.predictors.artifacts import find_artifact
from kmha.errors import InputError
from training.cli.parser import FAILED, parse, run
from training.io.disk import to_json, write_result
from training.io.json_subprocess import Crashed

logger = logging.getLogger("kmha")

# From this ratio of time to processor time on, latencies include waiting for the processor.
BUSY = 1.2


def main(argv: Sequence[str] | None = None) -> int:
    """Runs the command; returns its exit status."""
    return run(lambda: _benchmark(parse(BenchmarkConfig, argv, "python -m export.benchmark")))


def _benchmark(config: BenchmarkConfig) -> int:
    if min(config.batch_sizes, default=1) < 1:
        raise InputError(f"--batch-sizes: expected at least 1, got {min(config.batch_sizes)}")
    artifacts = [find_artifact(path) for path in config.artifacts]
    check_single_texts(config.run, "export.benchmark")
    texts = None if config.texts is None else read_texts(config.texts, config.run, config.text_column)

    try:
        measured = measure_models(models_to_measure(config.run, artifacts), texts, config)
    except Crashed as error:
        logger.info(f"error: {error}")
        return FAILED
    models = measured.models
    references = {"the run": models[0]} | ({"the first": models[1]} if artifacts else {})
    reports = [report(model, references) for model in models]
    for line in tables(reports, measured.ids_length):
        logger.info(line)
    busy = busyness(models)
    if busy is not None and busy > BUSY:
        logger.info(
            f"calls took {busy:.1f} times their processor time: the machine was busy, so compare cpu ms"
        )
    for reason in measured.skipped.values():
        logger.info(f"not measured: {reason}")
    if measured.ids_length is None:
        logger.info("not measured from ids: the files of fixed lengths have no common length")
    for model in models:
        if model.failed is not None:
            logger.info(f"error: {model.name}: {model.failed}")
    result = {
        "run": str(config.run),
        "texts": measured.rows,
        "texts_from": "the run's sample" if config.texts is None else str(config.texts),
        "ids_length": measured.ids_length,
        "threads": config.threads,
        "time_over_cpu_time": busy,
        "rounds": measured.rounds[0],
        "batch_rounds": measured.rounds[1],
        "fastest": {name: fastest(reports, name) for name in (TEXTS, IDS)},
        "models": reports,
        "skipped": measured.skipped,
    }
    if config.out is not None:
        write_result(config.out, result)
    print(to_json(result))
    return FAILED if any(model.failed for model in models) else 0


def read_texts(path: Path, run: Path, column: str = "") -> list[str]:
    """The texts of a table, in the column of training by default.

    Raises InputError if the file or a row of it cannot be used, or there are no rows.
    """
    from kmha.bundle.manifest import read_manifest
    from training.data.sources import file_source

    name = column or read_manifest(run).get("columns", {}).get("text", "text")
    texts = [str(row.values[name]) for row in file_source(path).rows([name])]
    if not texts:
        raise InputError(f"{path}: expected rows, got none")
    return texts


if __name__ == "__main__":
    sys.exit(main())
