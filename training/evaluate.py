"""python -m training.evaluate RUN --data FILE [--label-column NAME]

Evaluates a run on a file of labeled rows. Prints one JSON object on stdout.
"""  # noqa: D415

import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import tyro

from kmha.quiet import import_tensorflow
from training.cli.parser import parse, run
from training.data.sources import file_source
from training.io.disk import to_json
from training.io.examples import ColumnFlags


@dataclass(frozen=True, kw_only=True)
class EvaluateConfig(ColumnFlags):
    """Evaluates a run on a file of labeled rows; prints JSON on stdout."""

    run: Annotated[Path, tyro.conf.Positional, tyro.conf.arg(metavar="RUN")]
    """Run folder that training.fit wrote."""
    data: Path
    """Labeled rows: .csv, .tsv, .jsonl, or CoNLL for sentences; also .gz."""
    intervals: bool = True
    """Add 95 % bootstrap intervals."""


def main(argv: Sequence[str] | None = None) -> int:
    """Runs the command; returns its exit status."""
    return run(lambda: _evaluate(parse(EvaluateConfig, argv, "python -m training.evaluate")))


def _evaluate(config: EvaluateConfig) -> int:
    file_source(config.data, config.form)
    import_tensorflow()
    from kmha.bundle.bundle import Bundle
    from training.evaluation.evaluator import evaluate_file

    bundle = Bundle.load(config.run)
    with tempfile.TemporaryDirectory(prefix="kmha-") as scratch:
        scores = evaluate_file(bundle, config.data, config.given(), config.intervals, Path(scratch))
    print(to_json(scores))
    return 0


if __name__ == "__main__":
    sys.exit(main())
