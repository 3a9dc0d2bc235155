"""Writes the report of a run into its folder."""

import logging
from typing import Any

from kmha.bundle.manifest import read_manifest
from training.data.load import Data
from training.job.train_and_evaluate import FitResult
from training.reporting.build import build_report, write_report
from training.reporting.report_data import ReportData
from training.runs.context import RunContext
from training.runs.run_folder import CARD, REPORT

logger = logging.getLogger("kmha")


def report_fit(
    context: RunContext, data: Data, result: FitResult, metrics: dict[str, Any], command: str
) -> None:
    """Writes report.html and report.md into a run folder that has all other files."""
    try:
        report = build_report(_report_data(context, data, result, metrics, command))
        write_report(report, context.folder / REPORT, context.folder / CARD)
    # A failed figure or table must not discard hours of training.
    except Exception as error:
        reason = next(iter(str(error).splitlines()), "")
        logger.info(
            f"no report was written, {type(error).__name__}: {reason}; python -m training.report tries again"
        )


def _report_data(
    context: RunContext, data: Data, result: FitResult, metrics: dict[str, Any], command: str
) -> ReportData:
    return ReportData.of_bundle(
        result.bundle,
        read_manifest(context.folder),
        context.folder,
        name=context.config.out_folder().resolve().name,
        task=data.task,
        metric=data.task.metric,
        splits=result.scored_splits,
        scores=metrics[metrics["judged_on"]],
        metrics=metrics,
        lengths=result.lengths,
        train=data.train,
        command=command,
    )
