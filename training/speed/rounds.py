"""Runs trainers in turns, each in its own process, and measures their speed."""

import statistics
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple, Protocol

from training.io.json_subprocess import Crashed, WorkerProcess
from training.runtime.round_robin import round_order
from training.speed.flops import step_flops

_ROOT = Path(__file__).resolve().parent.parent.parent
KMHA = "kmha"


class Trainer(NamedTuple):
    """A trainer and its number format."""

    name: str
    precision: str


class Worker(Protocol):
    """The process of a trainer."""

    def request(self, **request: Any) -> dict[str, Any]:
        """Sends a request and returns the reply; raises `training.io.json_subprocess.Crashed`."""
        ...


@dataclass
class Measurements:
    """The measurements of a trainer by round.

    Attributes:
        tokens_per_second: Real tokens, without padding.
        tokens_per_cpu_second: Real tokens per processor time.
        flops_per_second: Operations of matrix products, with padding.
        padding: Computed tokens divided by real tokens.
        failed: Error message; None if it did not fail.
    """

    tokens_per_second: list[float] = field(default_factory=list)
    tokens_per_cpu_second: list[float] = field(default_factory=list)
    flops_per_second: list[float] = field(default_factory=list)
    padding: list[float] = field(default_factory=list)
    failed: str | None = None

    def add(self, done: Mapping[str, Any], sizes: Mapping[str, int]) -> None:
        """Adds a round."""
        tokens, seconds = done["tokens"], done["seconds"]
        self.tokens_per_second.append(tokens / seconds)
        self.tokens_per_cpu_second.append(tokens / done["cpu_seconds"])
        self.flops_per_second.append(step_flops(sizes, done["shapes"]) / seconds)
        self.padding.append(sum(rows * length for rows, length in done["shapes"]) / tokens)


def start_trainer(trainer: Trainer, work: Path, python: str = sys.executable) -> WorkerProcess:
    """Starts the process of a trainer."""
    return _start([python, "-m", f"training.speed.{trainer.name}_trainer", str(work), trainer.precision])


def start_matmul_benchmark(precision: str) -> WorkerProcess:
    """Starts the process that measures the speed of matrix products."""
    return _start([sys.executable, "-m", "training.speed.flops", precision])


def start_profiler(work: Path, precision: str) -> WorkerProcess:
    """Starts the process that profiles kmha."""
    return _start([sys.executable, "-m", "training.speed.profile", str(work), precision])


def _start(command: list[str]) -> WorkerProcess:
    return WorkerProcess(command, {"PYTHONPATH": str(_ROOT), "TF_CPP_MIN_LOG_LEVEL": "3"})


def run_rounds(
    trainers: Mapping[Trainer, Worker],
    matmuls: Mapping[str, Worker],
    sizes: Mapping[str, int],
    rounds: int,
    steps: int,
    report_progress: Callable[[str], None],
) -> tuple[dict[Trainer, Measurements], dict[str, list[float]]]:
    """Runs the trainers in turns; each round starts with another one.

    Returns:
        The measurements of each trainer, and the speeds of each number format, operations per second.
    """
    measurements = {trainer: Measurements() for trainer in trainers}
    speeds: dict[str, list[float]] = {precision: [] for precision in matmuls}

    def turn(trainer: Trainer) -> dict[str, Any] | None:
        if measurements[trainer].failed is None:
            try:
                return trainers[trainer].request(steps=steps)
            except Crashed as error:
                measurements[trainer].failed = str(error)
        return None

    for trainer in trainers:
        turn(trainer)  # warm-up, with tracing
    for number in range(rounds):
        for precision, process in matmuls.items():
            speeds[precision].append(process.request()["flops_per_second"])
        for trainer in round_order(list(trainers), number):
            done = turn(trainer)
            if done is not None:
                measurements[trainer].add(done, sizes)
        shown = ", ".join(
            f"{trainer.name} {trainer.precision} {measured.tokens_per_second[-1]:,.0f}"
            for trainer, measured in measurements.items()
            if measured.failed is None
        )
        report_progress(f"round {number + 1}/{rounds}: tokens/s: {shown}")
    return measurements, speeds


def summarize(
    measurements: Mapping[Trainer, Measurements], speeds: Mapping[str, Sequence[float]]
) -> list[dict[str, Any]]:
    """The results of each trainer as JSON values.

    `kmha_over` is the median ratio over rounds of kmha's real tokens per second to the trainer's, in the same number
    format; `kmha_float32_over` of kmha's in float32. `matmul_share` is the share of the measured speed of matrix
    products in the same format that the trainer reached; None if the speed was not measured.
    """
    return [_result(trainer, measurements, speeds) for trainer in measurements]


def _result(
    trainer: Trainer, measurements: Mapping[Trainer, Measurements], speeds: Mapping[str, Sequence[float]]
) -> dict[str, Any]:
    measured = measurements[trainer]
    result: dict[str, Any] = {"learner": trainer.name, "precision": trainer.precision}
    if measured.failed is not None:
        return result | {"failed": measured.failed}

    def kmha_over(precision: str) -> float | None:
        ours = measurements.get(Trainer(KMHA, precision))
        if ours is None or ours.failed is not None:
            return None
        return round(_median_ratio(ours.tokens_per_second, measured.tokens_per_second), 3)

    speed = speeds.get(trainer.precision)
    return result | {
        "tokens_per_second": round(statistics.median(measured.tokens_per_second)),
        "tokens_per_cpu_second": round(statistics.median(measured.tokens_per_cpu_second)),
        "kmha_over": kmha_over(trainer.precision),
        "kmha_float32_over": kmha_over("float32"),
        "computed_over_real": round(statistics.mean(measured.padding), 3),
        "matmul_share": round(_median_ratio(measured.flops_per_second, speed), 4) if speed else None,
    }


def _median_ratio(numerators: Sequence[float], denominators: Sequence[float]) -> float:
    """The median ratio over rounds; other load on the machine affects both sides of a round."""
    return statistics.median(a / b for a, b in zip(numerators, denominators, strict=True))
