"""python -m export.verify RUN ARTIFACT… --data FILE [--label-column NAME] [--rows N]

Checks that exported models give the predictions of their run: a table on stderr, one JSON object on stdout,
NAME.verify.json next to each artifact; exit status 1 if one fails.
"""  # noqa: D415

import logging
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import tyro

from export.checks import check_exportable
from export.predictors.artifacts import find_artifact
from kmha.bundle.manifest import CLASSIFY, MATCH, TAG
from kmha.errors import InputError
from training.cli.bounds import Range
from training.cli.parser import FAILED, parse, run
from training.data.sources import file_source
from training.io.disk import to_json, write_result
from training.io.examples import ColumnFlags

logger = logging.getLogger("kmha")


@dataclass(frozen=True, kw_only=True)
class VerifyConfig(ColumnFlags):
    """Checks that exported models give the predictions of their run."""

    run: Annotated[Path, tyro.conf.Positional, tyro.conf.arg(metavar="RUN")]
    """Run folder that training.fit wrote."""
    artifacts: Annotated[tuple[Path, ...], tyro.conf.Positional, tyro.conf.arg(metavar="ARTIFACT")]
    """SavedModels or folders of their versions, .tflite and .onnx files."""
    data: Path
    """Labeled rows: .csv, .tsv, .jsonl or .conll, also .gz."""
    rows: Annotated[int, Range(at_least=0)] = 2000
    """Compare this many rows, spread over the file; 0: all."""


def main(argv: Sequence[str] | None = None) -> int:
    """Runs the command; returns its exit status."""
    return run(lambda: _verify(parse(VerifyConfig, argv, "python -m export.verify")))


def _verify(config: VerifyConfig) -> int:
    if not config.artifacts:
        raise InputError("ARTIFACT: expected one or more exported models, got none")
    artifacts = [find_artifact(path) for path in config.artifacts]
    file_source(config.data)
    check_exportable(config.run)
    from kmha.quiet import import_tensorflow

    import_tensorflow()
    from export.verification.examiner import Examiner, table
    from export.verification.rows import read_rows
    from kmha.bundle.bundle import Bundle

    bundle = Bundle.load(config.run)
    with tempfile.TemporaryDirectory(prefix="kmha-") as scratch:
        rows = read_rows(bundle, config.data, config.given(), config.rows, Path(scratch))
        kind = {CLASSIFY: "texts", MATCH: "pairs", TAG: "sentences"}[bundle.task]
        others = (
            f"{len(rows.edge_case)} edge-case {kind}, {rows.compared - rows.real} rows of the run's sample"
        )
        logger.info(f"{rows.real:,} rows of {config.data} and {others}")
        examiner = Examiner(bundle, rows)
        reports = []
        for artifact in artifacts:
            logger.info(f"running {artifact.path}")
            reports.append(examiner.report(artifact))
            path = artifact.path.with_name(f"{artifact.path.name}.verify.json")
            write_result(path, {**reports[-1], "data": str(config.data)})
    for line in table(reports, examiner.metric):
        logger.info(line)
    assert rows.task is not None
    passed = all(report["passed"] for report in reports)
    result = {"passed": passed, "rows": rows.real, "artifacts": reports}
    if rows.task is not None:
        result[rows.task.metric] = examiner.metric
    print(to_json(result))
    return 0 if passed else FAILED


if __name__ == "__main__":
    sys.exit(main())
