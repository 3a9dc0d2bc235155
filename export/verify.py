"""python -m export.verify RUN ARTEFACT… --data FILE [--label-column NAME] [--rows N]

Checks that exported models answer like the run they came from: a table on stderr, one JSON object on stdout,
NAME.verify.json beside each artefact; exit 1 where one does not.
"""  # noqa: D415

import json
import logging
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import tyro

from export.checks.exportable import check_exportable
from export.predictors.artefacts import recognise
from kmha.bundle.manifest import CLASSIFY, MATCH, TAG
from kmha.errors import InputError
from training.cli.bounds import Range
from training.cli.column_flags import ColumnFlags
from training.cli.parser import FAILED, parse, run
from training.data.sources import file_source
from training.io.atomic_write import write_result

logger = logging.getLogger("kmha")


@dataclass(frozen=True, kw_only=True)
class VerifyConfig(ColumnFlags):
    """Checks that exported models answer like the run they came from."""

    run: Annotated[Path, tyro.conf.Positional, tyro.conf.arg(metavar="RUN")]
    """Run folder that training.fit wrote."""
    artefacts: Annotated[tuple[Path, ...], tyro.conf.Positional, tyro.conf.arg(metavar="ARTEFACT")]
    """SavedModels or folders of their versions, .tflite and .onnx files."""
    data: Path
    """Labelled rows to answer: .csv, .tsv, .jsonl or .conll, also .gz."""
    rows: Annotated[int, Range(at_least=0)] = 2000
    """Answer this many rows, spread over the file; 0: all."""


def main(argv: Sequence[str] | None = None) -> int:
    """Runs the command; returns its exit status."""
    return run(lambda: _verify(parse(VerifyConfig, argv, "python -m export.verify")))


def _verify(config: VerifyConfig) -> int:
    if not config.artefacts:
        raise InputError("ARTEFACT: expected one or more exported models, got none")
    artefacts = [recognise(path) for path in config.artefacts]
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
        logger.info(f"{rows.real:,} rows of {config.data} and {len(rows.edge_case)} nasty {kind}")
        examiner = Examiner(bundle, rows)
        reports = []
        for artefact in artefacts:
            logger.info(f"asking {artefact.path}")
            reports.append(examiner.report(artefact))
            beside = artefact.path.with_name(f"{artefact.path.name}.verify.json")
            write_result(beside, {**reports[-1], "data": str(config.data)})
    for line in table(reports, examiner.metric):
        logger.info(line)
    passed = all(report["passed"] for report in reports)
    result = {
        "passed": passed,
        "rows": rows.real,
        rows.task.metric: examiner.metric,
        "artefacts": reports,
    }
    print(json.dumps(result, ensure_ascii=False))
    return 0 if passed else FAILED


if __name__ == "__main__":
    sys.exit(main())
