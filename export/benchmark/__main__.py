"""python -m export.benchmark RUN ARTIFACT… [--texts FILE] [--threads N] [--peers] [--out FILE.json]

Measures how fast exported models answer beside the run they came from: latency of one text, texts a second in
batches, load time, memory, size. Tables on stderr, one JSON object on stdout; docs/how-to/benchmark.md tells how.
"""  # noqa: D415

import json
import logging
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import tyro

from export.checks.exportable import check_single_texts
from export.predictors.artifacts import find_artifact
from kmha.errors import InputError
from training.cli.bounds import Count, Positive, Range
from training.cli.parser import FAILED, parse, run
from training.io.atomic_write import write_result

logger = logging.getLogger("kmha")

# From here on, waiting for the processor shows in the latencies.
BUSY = 1.2


@dataclass(frozen=True)
class BenchmarkConfig:
    """Measures how fast exported models answer beside the run they came from."""

    run: Annotated[Path, tyro.conf.Positional, tyro.conf.arg(metavar="RUN")]
    """Run folder that training.fit wrote."""
    artifacts: Annotated[tuple[Path, ...], tyro.conf.Positional, tyro.conf.arg(metavar="ARTIFACT")]
    """SavedModels or folders of their versions, .tflite and .onnx files."""
    texts: Path | None = None
    """Texts to answer: .csv, .tsv or .jsonl, also .gz; default: the sample that the run keeps."""
    text_column: str = ""
    """Column of the text; empty: as in training."""
    rows: Annotated[int, Range(at_least=0)] = 256
    """Answer this many texts, spread over the file; 0: all."""
    seconds: Positive = 3.0
    """Measure each model for about so long from texts and so long from ids; as much again in batches."""
    threads: Count = 1
    """Threads that each model may compute with."""
    batch_sizes: tuple[int, ...] = (8, 32)
    """Texts a call in the search for the most texts a second, beside one."""
    peers: bool = False
    """Also measure encoders of the same sizes with random weights: keras_hub's, and Hugging Face's in PyTorch."""
    out: Path | None = None
    """Write the JSON object to this file too."""


def main(argv: Sequence[str] | None = None) -> int:
    """Runs the command; returns its exit status."""
    return run(lambda: _benchmark(parse(BenchmarkConfig, argv, "python -m export.benchmark")))


def _benchmark(config: BenchmarkConfig) -> int:
    if min(config.batch_sizes, default=1) < 1:
        raise InputError(f"--batch-sizes: expected at least 1, got {min(config.batch_sizes)}")
    artifacts = [find_artifact(path) for path in config.artifacts]
    check_single_texts(config.run, "export.benchmark")
    texts = None if config.texts is None else read_texts(config.texts, config.run, config.text_column)
    from export.benchmark.figures import busyness, fastest, report
    from export.benchmark.match import Rules, entries, play_match
    from export.benchmark.stopwatch import IDS, TEXTS
    from export.benchmark.table import tables
    from training.io.json_subprocess import Crashed

    rules = Rules(config.rows, config.seconds, config.threads, config.batch_sizes, config.peers)
    try:
        played = play_match(entries(config.run, artifacts), texts, rules)
    except Crashed as error:
        logger.info(f"error: {error}")
        return FAILED
    players = played.players
    references = {"the run": players[0]} | ({"the first": players[1]} if artifacts else {})
    reports = [report(player, references) for player in players]
    for line in tables(reports, played.ids_length):
        logger.info(line)
    busy = busyness(players)
    if busy is not None and busy > BUSY:
        logger.info(
            f"calls took {busy:.1f} times their processor time: the machine was busy, so compare cpu ms"
        )
    for reason in played.skipped.values():
        logger.info(f"left out: {reason}")
    if played.ids_length is None:
        logger.info("not measured from ids: no length is common to all the files of fixed lengths")
    for player in players:
        if player.failed is not None:
            logger.info(f"error: {player.name}: {player.failed}")
    result = {
        "run": str(config.run),
        "texts": played.rows,
        "texts_from": "the run's sample" if config.texts is None else str(config.texts),
        "ids_length": played.ids_length,
        "threads": config.threads,
        "time_over_cpu_time": busy,
        "rounds": played.rounds[0],
        "batch_rounds": played.rounds[1],
        "fastest": {name: fastest(reports, name) for name in (TEXTS, IDS)},
        "models": reports,
        "skipped": played.skipped,
    }
    if config.out is not None:
        write_result(config.out, result)
    print(json.dumps(result, ensure_ascii=False))
    return FAILED if any(player.failed for player in players) else 0


def read_texts(path: Path, run: Path, column: str = "") -> list[str]:
    """The texts of a file.

    Args:
        path: A table of texts.
        run: Says what the column was called in training.
        column: Empty for that name.

    Raises:
        InputError: The file or a row of it cannot be used, or there is no row.
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
