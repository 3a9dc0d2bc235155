"""python -m training.predict RUN < texts.txt > answers.jsonl

Answers texts, one a line on stdin, with one JSON object a line on stdout.
"""  # noqa: D415

import json
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, BinaryIO

import tyro

from training.cli import parse, run
from training.ranges import Range


@dataclass(frozen=True)
class PredictConfig:
    """Answers texts, one a line on stdin, with JSON lines on stdout."""

    run: Annotated[Path, tyro.conf.Positional, tyro.conf.arg(metavar="RUN")]
    """Run folder that training.fit wrote."""
    top: Annotated[int, Range(at_least=0)] = 0
    """Show only this many of the most probable labels; 0: all."""


def main(argv: Sequence[str] | None = None) -> int:
    """Runs the command; returns its exit status."""
    return run(lambda: _predict(parse(PredictConfig, argv, "python -m training.predict")))


def lines(stream: BinaryIO) -> Iterator[bytes]:
    """The lines of a stream without their ends; bytes, so that invalid UTF-8 is answered and not refused."""
    for line in stream:
        yield line.rstrip(b"\r\n")


def _predict(config: PredictConfig) -> int:
    from kmha.quiet import import_tensorflow

    import_tensorflow()
    from kmha.bundle import Bundle

    bundle = Bundle.load(config.run)
    for answer in bundle.answers(lines(sys.stdin.buffer)):
        if config.top:
            ranked = sorted(answer["probabilities"].items(), key=lambda item: -item[1])
            answer["probabilities"] = dict(ranked[: config.top])
        print(json.dumps(answer, ensure_ascii=False))
    return 0


if __name__ == "__main__":
    sys.exit(main())
