"""python -m training.report RUN --data FILE [--out page.html]

Writes the report of a run on labeled rows: report.html and the model card report.md, by default in the run folder.
training.fit also writes a report; use this command for other rows. Prints one JSON object on stdout.
See docs/how-to/report.md.
"""  # noqa: D415

import logging
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import tyro

from kmha.bundle.manifest import read_manifest
from kmha.errors import InputError
from kmha.quiet import import_tensorflow
from training.cli.parser import parse, run
from training.data.sources import file_source
from training.html.page import check_page_path
from training.io.disk import to_json
from training.io.examples import ColumnFlags
from training.runs.run_folder import METRICS, REPORT, identify_rows

logger = logging.getLogger("kmha")


@dataclass(frozen=True, kw_only=True)
class ReportConfig(ColumnFlags):
    """Writes the report of a run on labeled rows."""

    run: Annotated[Path, tyro.conf.Positional, tyro.conf.arg(metavar="RUN")]
    """Run folder that training.fit wrote."""
    data: Path
    """Rows that the run was not trained on: .csv, .tsv, .jsonl, CoNLL files, or .txt for masked-lm; also .gz."""
    out: Path | None = None
    """Page to write, ending in .html; the model card gets the same name with .md. Default: report.html in the run."""
    mask_texts: bool = False
    """Hide digits and e-mail addresses in the texts of rows."""


def main(argv: Sequence[str] | None = None) -> int:
    """Runs the command; returns its exit status."""
    return run(lambda: _report(parse(ReportConfig, argv, "python -m training.report")))


def _report(config: ReportConfig) -> int:
    manifest = read_manifest(config.run)
    file_source(config.data, config.form)
    identify_rows(manifest, config.data)
    page = config.run / REPORT if config.out is None else config.out
    check_page_path(page)
    card = page.with_suffix(".md")
    if card.is_dir():
        raise InputError(f"--out {page}: expected a place for {card} too, got a folder")
    if card.exists() and not page.exists():
        raise InputError(f"--out {page}: expected a place for {card} too, got one that is taken")
    import_tensorflow()
    from training.reporting.build import report_data_of, write_report

    with tempfile.TemporaryDirectory(prefix="kmha-") as scratch:
        report_data = report_data_of(
            config.run, config.data, config.given(), Path(scratch), config.mask_texts
        )
        write_report(_build_report(report_data, config.run), page, card)
    logger.info(f"{page} and {card.name}: written")
    scores = {
        "rows": report_data.scores["rows"],
        report_data.metric: report_data.scores.get(report_data.metric),
    }
    print(to_json({"page": str(page), "card": str(card), **scores}))
    return 0


def _build_report(report_data: Any, run: Path) -> Any:
    """Builds the report; raises InputError if metrics.json is invalid."""
    from training.reporting.build import build_report

    try:
        return build_report(report_data)
    except (AttributeError, IndexError, KeyError, TypeError) as error:
        if not report_data.metrics:
            raise
        reason = f"{type(error).__name__} {error}"
        raise InputError(
            f"{run / METRICS}: expected what training.fit writes, got something else ({reason})"
        ) from error


if __name__ == "__main__":
    sys.exit(main())
