"""python -m training.benchmark [--data FILE] [--pretrained minilm] [--torch-python PYTHON] [--out FILE.json]

Measures training speed in tokens per second (without padding): kmha, KerasHub's `fit`, and Hugging Face's BERT in
PyTorch, in turns on the same rows. Prints a table on stderr and JSON on stdout. See docs/how-to/speed.md.
"""  # noqa: D415

import contextlib
import logging
import statistics
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

from kmha.errors import InputError
from training.cli.bounds import Count, Range
from training.cli.parser import FAILED, format_table, parse, run
from training.io.disk import to_json, write_result
from training.io.examples import FormatFlags
from training.io.json_subprocess import Crashed
from training.speed.prepare import Peer, Precision, make_workload, missing_package, read_rows
from training.speed.rounds import (
    KMHA,
    Trainer,
    operation_cells,
    result_cells,
    run_rounds,
    start_program,
    summarize,
)

logger = logging.getLogger("kmha")


@dataclass(frozen=True, kw_only=True)
class BenchmarkConfig(FormatFlags):
    """Measures the training speed of kmha, KerasHub and PyTorch; prints JSON on stdout."""

    data: Path | None = None
    """Training rows: .csv, .tsv or .jsonl, also .gz; default: the sample reviews (extra: samples)."""
    text_column: str = "text"
    """Column of the text."""
    label_column: str = "label"
    """Column of the label."""
    rows: Count = 20_000
    """Maximum number of rows; they are sampled at random."""
    peers: tuple[Peer, ...] = ("keras_hub", "torch")
    """Libraries to compare with kmha (extra: pretrained for keras_hub); missing libraries are skipped."""
    torch_python: Path | None = None
    """Python of an environment with torch and transformers; default: the current Python."""
    precisions: tuple[Precision, ...] = ("float32", "bfloat16")
    """Number formats; a separate model is measured for each."""
    pretrained: str = ""
    """Fine-tune a pretrained BERT: minilm (extra: minilm) or a Hugging Face folder; empty: new weights."""
    hidden_dim: Count = 256
    """Size of the token vectors."""
    num_layers: Count = 4
    """Number of encoder blocks."""
    num_heads: Count = 8
    """Attention heads per block."""
    intermediate_dim: Count = 1024
    """Inner size of the feed-forward network."""
    max_length: Annotated[int, Range(at_least=3)] = 128
    """Maximum tokens per text."""
    batch_rows: Count = 32
    """Rows per batch."""
    rounds: Count = 7
    """Number of rounds."""
    steps: Count = 20
    """Training steps per turn."""
    profile: bool = False
    """Also measure the time of kmha's training and inference by operation type."""
    seed: Annotated[int, Range(at_least=0)] = 0
    """Seed of the row sample and order."""
    out: Path | None = None
    """File to write the JSON object to, in addition to stdout."""


def main(argv: Sequence[str] | None = None) -> int:
    """Runs the command; returns its exit status."""
    return run(lambda: _benchmark(parse(BenchmarkConfig, argv, "python -m training.benchmark")))


def _benchmark(config: BenchmarkConfig) -> int:
    if config.hidden_dim % config.num_heads:
        raise InputError(
            f"--num-heads: expected a divisor of --hidden-dim {config.hidden_dim}, got {config.num_heads}"
        )
    trainers = _trainers(config)
    rows = read_rows(
        config.data, config.text_column, config.label_column, config.rows, config.seed, config.form
    )
    with tempfile.TemporaryDirectory(prefix="kmha-") as scratch:
        sizes = {
            name: getattr(config, name)
            for name in ("hidden_dim", "num_layers", "num_heads", "intermediate_dim")
        }
        workload = make_workload(
            rows, sizes, config.pretrained, config.max_length, config.batch_rows, Path(scratch)
        )
        path = Path(scratch) / "workload.json"
        workload.write(path)
        try:
            measurements, speeds = _run(config, trainers, path, workload.sizes)
            profiles = _profiles(config, path)
        except Crashed as error:
            logger.info(f"error: {error}")
            return FAILED
    results = summarize(measurements, speeds)
    for line in format_table(result_cells(results)):
        logger.info(line)
    for precision, times in profiles.items():
        logger.info(f"processor time of kmha in {precision}:")
        for line in format_table(operation_cells(times)):
            logger.info(line)
    failures = [each for each in results if "failed" in each]
    for each in failures:
        logger.info(f"error: {each['learner']} {each['precision']}: {each['failed']}")
    result = {
        "data": "sample reviews" if config.data is None else str(config.data),
        "rows": len(rows.texts),
        "model": config.pretrained or "new weights",
        "sizes": workload.sizes,
        "max_length": config.max_length,
        "batch_rows": config.batch_rows,
        "rounds": config.rounds,
        "steps": config.steps,
        "matmul_gflops": {name: round(statistics.median(values) / 1e9) for name, values in speeds.items()},
        "learners": results,
        **({"op_seconds": profiles} if profiles else {}),
    }
    if config.out is not None:
        write_result(config.out, result)
    print(to_json(result))
    return FAILED if failures else 0


def _trainers(config: BenchmarkConfig) -> list[Trainer]:
    """Creates the trainers; logs the skipped peers."""
    names = [KMHA]
    for peer in dict.fromkeys(config.peers):
        python = config.torch_python if peer == "torch" else None
        if python is not None and not python.exists():
            raise InputError(f"--torch-python: expected a Python, got {python}, which does not exist")
        package = missing_package(peer, python)
        if package is None:
            names.append(peer)
        else:
            logger.info(f"left out: {peer}, the package {package} is not installed")
    return [Trainer(name, precision) for name in names for precision in dict.fromkeys(config.precisions)]


def _run(config: BenchmarkConfig, trainers: Sequence[Trainer], workload: Path, sizes: dict[str, int]):
    with contextlib.ExitStack() as stack:
        workers, matmuls = {}, {}
        for trainer in trainers:
            python = config.torch_python if trainer.name == "torch" else None
            command = (f"{trainer.name}_trainer", str(workload), trainer.precision)
            process = start_program(*command, python=str(python or sys.executable))
            workers[trainer] = stack.enter_context(process)
        for precision in dict.fromkeys(config.precisions):
            matmuls[precision] = stack.enter_context(start_program("flops", precision))
        for process in (*workers.values(), *matmuls.values()):
            process.listen()
        return run_rounds(workers, matmuls, sizes, config.rounds, config.steps, logger.info)


def _profiles(config: BenchmarkConfig, workload: Path) -> dict[str, dict]:
    """Seconds of training and inference by operation type, for each number format."""
    profiles = {}
    for precision in dict.fromkeys(config.precisions) if config.profile else ():
        with start_program("profile", str(workload), precision) as process:
            profiles[precision] = process.listen()
    return profiles


if __name__ == "__main__":
    sys.exit(main())
