"""Runs trainers in turns, each in its own process, measures their speed, and presents the results."""

import statistics
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

from training.io.json_subprocess import Crashed, WorkerProcess
from training.runtime.round_robin import round_order
from training.speed.flops import step_flops

_ROOT = Path(__file__).resolve().parent.parent.parent
KMHA = "kmha"

_TITLES = ["trainer", "precision", "real tokens/s", "per CPU s"]
_TITLES += ["kmha / it", "kmha float32 / it", "computed / real", "of matmul speed"]


class Trainer(NamedTuple):
    """A trainer and its number format."""

    name: str
    precision: str


@dataclass
class Measurements:
    """The measurements of a trainer by round."""

    tokens_per_second: list[float] = field(default_factory=list)  # real tokens, without padding
    tokens_per_cpu_second: list[float] = field(default_factory=list)  # real tokens per processor time
    flops_per_second: list[float] = field(default_factory=list)  # of matrix products, with padding
    padding: list[float] = field(default_factory=list)  # computed tokens divided by real tokens
    failed: str | None = None  # error message

    def add(self, done: Mapping[str, Any], sizes: Mapping[str, int]) -> None:
        """Adds a round."""
        tokens, seconds = done["tokens"], done["seconds"]
        self.tokens_per_second.append(tokens / seconds)
        self.tokens_per_cpu_second.append(tokens / done["cpu_seconds"])
        self.flops_per_second.append(step_flops(sizes, done["shapes"]) / seconds)
        self.padding.append(sum(rows * length for rows, length in done["shapes"]) / tokens)


def start_program(module: str, *arguments: str, python: str = sys.executable) -> WorkerProcess:
    """Starts a module of this package as a process."""
    command = [python, "-m", f"training.speed.{module}", *arguments]
    return WorkerProcess(command, {"PYTHONPATH": str(_ROOT), "TF_CPP_MIN_LOG_LEVEL": "3"})


def run_rounds(
    trainers: Mapping[Trainer, Any],
    matmuls: Mapping[str, Any],
    sizes: Mapping[str, int],
    rounds: int,
    steps: int,
    report_progress: Callable[[str], None],
) -> tuple[dict[Trainer, Measurements], dict[str, list[float]]]:
    """Runs the trainers in turns; each round starts with another one.

    Returns the measurements of each trainer, and the operations per second of each number format by round.
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


def result_cells(found: Sequence[Mapping[str, Any]]) -> list[list[str]]:
    """A header, and a row for each trainer that did not fail."""
    rows = [_TITLES]
    for each in found:
        if "failed" in each:
            continue
        share = each["matmul_share"]
        rows.append(
            [
                each["learner"],
                each["precision"],
                f"{each['tokens_per_second']:,}",
                f"{each['tokens_per_cpu_second']:,}",
                _shown_ratio(each["kmha_over"]),
                _shown_ratio(each["kmha_float32_over"]),
                f"{each['computed_over_real']:.2f}",
                "" if share is None else f"{share:.0%}",
            ]
        )
    return rows


def operation_cells(times: Mapping[str, Mapping[str, float]], most: int = 12) -> list[list[str]]:
    """A header, and a row for each kind of operation with its share of the processor time, largest first."""
    totals = {name: sum(kinds.values()) or 1.0 for name, kinds in times.items()}
    order = sorted(
        {kind for kinds in times.values() for kind in kinds},
        key=lambda kind: -max(kinds.get(kind, 0.0) / totals[name] for name, kinds in times.items()),
    )
    shares = {kind: [kinds.get(kind, 0.0) / totals[name] for name, kinds in times.items()] for kind in order}
    shown = {kind: shares[kind] for kind in order[:most]}
    if rest := order[most:]:
        shown[f"{len(rest)} others"] = [
            sum(column) for column in zip(*(shares[kind] for kind in rest), strict=True)
        ]
    return [
        ["operation", *times],
        *([kind, *(f"{share:.1%}" for share in row)] for kind, row in shown.items()),
    ]


def _shown_ratio(value: float | None) -> str:
    return "" if value is None else f"{value:.2f}"
