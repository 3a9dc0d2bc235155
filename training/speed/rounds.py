"""Learners that take turns: each in a process of its own, asked for a few steps at a time."""

import statistics
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple, Protocol

from training.io.json_subprocess import Crashed, WorkerProcess
from training.speed.flops import step_flops

_ROOT = Path(__file__).resolve().parent.parent.parent
KMHA = "kmha"


class Learner(NamedTuple):
    """Who trains, and in which number format."""

    name: str
    precision: str


class ScoredSplit(Protocol):
    """A learner's process."""

    def ask(self, **request: Any) -> dict[str, Any]:
        """Its answer; raises `training.io.json_subprocess.Crashed`."""
        ...


@dataclass
class Turns:
    """What was measured of a learner, round by round.

    Attributes:
        tokens_per_second: Real tokens, padding not counted.
        tokens_per_cpu_second: The same over processor time.
        flops_per_second: Of matrix products, padding included.
        padding: Computed tokens over real ones, of all rounds.
        failed: Why it did not play to the end; None: it did.
    """

    tokens_per_second: list[float] = field(default_factory=list)
    tokens_per_cpu_second: list[float] = field(default_factory=list)
    flops_per_second: list[float] = field(default_factory=list)
    padding: list[float] = field(default_factory=list)
    failed: str | None = None

    def note(self, done: Mapping[str, Any], sizes: Mapping[str, int]) -> None:
        """Adds a round."""
        tokens, seconds = done["tokens"], done["seconds"]
        self.tokens_per_second.append(tokens / seconds)
        self.tokens_per_cpu_second.append(tokens / done["cpu_seconds"])
        self.flops_per_second.append(step_flops(sizes, done["shapes"]) / seconds)
        self.padding.append(sum(rows * length for rows, length in done["shapes"]) / tokens)


def start(learner: Learner, work: Path, python: str = sys.executable) -> WorkerProcess:
    """Starts a learner's process."""
    return _started([python, "-m", f"training.speed.{learner.name}_trainer", str(work), learner.precision])


def start_matmuls(precision: str) -> WorkerProcess:
    """Starts what measures the rate of matrix products."""
    return _started([sys.executable, "-m", "training.speed.flops", precision])


def start_profile(work: Path, precision: str) -> WorkerProcess:
    """Starts what says where kmha's time goes."""
    return _started([sys.executable, "-m", "training.speed.profile", str(work), precision])


def _started(command: list[str]) -> WorkerProcess:
    return WorkerProcess(command, {"PYTHONPATH": str(_ROOT), "TF_CPP_MIN_LOG_LEVEL": "3"})


def play(
    learners: Mapping[Learner, ScoredSplit],
    matmuls: Mapping[str, ScoredSplit],
    sizes: Mapping[str, int],
    rounds: int,
    steps: int,
    tell: Callable[[str], None],
) -> tuple[dict[Learner, Turns], dict[str, list[float]]]:
    """Lets all train in turns; nobody always follows the same other one.

    Args:
        learners: Ready ones.
        matmuls: By number format, what measures the rate of matrix products.
        sizes: Of the encoder.
        rounds: How often each has its turn.
        steps: Of each turn.
        tell: Is given a line after each round.

    Returns:
        What was measured of each learner, and of each number format the rates, operations a second.
    """
    turns = {learner: Turns() for learner in learners}
    rates: dict[str, list[float]] = {precision: [] for precision in matmuls}

    def turn(learner: Learner) -> dict[str, Any] | None:
        if turns[learner].failed is None:
            try:
                return learners[learner].ask(steps=steps)
            except Crashed as error:
                turns[learner].failed = str(error)
        return None

    for learner in learners:
        turn(learner)  # tracing, and what else happens once
    order = list(learners)
    for number in range(rounds):
        for precision, process in matmuls.items():
            rates[precision].append(process.ask()["flops_per_second"])
        shift = number % len(order)
        for learner in order[shift:] + order[:shift]:
            done = turn(learner)
            if done is not None:
                turns[learner].note(done, sizes)
        shown = ", ".join(
            f"{learner.name} {learner.precision} {turns[learner].tokens_per_second[-1]:,.0f}"
            for learner in order
            if turns[learner].failed is None
        )
        tell(f"round {number + 1} of {rounds}, real tokens a second: {shown}")
    return turns, rates


def report(turns: Mapping[Learner, Turns], rates: Mapping[str, Sequence[float]]) -> list[dict[str, Any]]:
    """What was found of each learner, JSON values.

    `kmha_over` is the median of the rounds' ratios of kmha's real tokens a second to the learner's, in the same number
    format; `kmha_float32_over` of kmha's in float32. `matmul_share` is the share of the measured rate of matrix
    products, of the same format, that the computed tokens took; it is None where the rate was not measured.
    """
    return [_found(learner, turns, rates) for learner in turns]


def _found(
    learner: Learner, turns: Mapping[Learner, Turns], rates: Mapping[str, Sequence[float]]
) -> dict[str, Any]:
    measured = turns[learner]
    found: dict[str, Any] = {"learner": learner.name, "precision": learner.precision}
    if measured.failed is not None:
        return found | {"failed": measured.failed}

    def over(precision: str) -> float | None:
        ours = turns.get(Learner(KMHA, precision))
        if ours is None or ours.failed is not None:
            return None
        return round(_median_ratio(ours.tokens_per_second, measured.tokens_per_second), 3)

    expected = rates.get(learner.precision)
    return found | {
        "tokens_per_second": round(statistics.median(measured.tokens_per_second)),
        "tokens_per_cpu_second": round(statistics.median(measured.tokens_per_cpu_second)),
        "kmha_over": over(learner.precision),
        "kmha_float32_over": over("float32"),
        "computed_over_real": round(statistics.mean(measured.padding), 3),
        "matmul_share": round(_median_ratio(measured.flops_per_second, expected), 4) if expected else None,
    }


def _median_ratio(over: Sequence[float], under: Sequence[float]) -> float:
    """The median of the ratios round by round: what a busy machine does to one round it does to both."""
    return statistics.median(a / b for a, b in zip(over, under, strict=True))
