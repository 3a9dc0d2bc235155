"""The report that a fit writes into its run."""

import logging
from pathlib import Path
from typing import Any

from kmha.bundle.manifest import read_manifest
from training.config.config import FitConfig
from training.data.load import Data
from training.job.train_and_evaluate import FitResult
from training.reporting.build import build_report, write_report
from training.reporting.report_data import ReportData
from training.runs.run_folder import CARD, REPORT

logger = logging.getLogger("kmha")


def report_fit(
    config: FitConfig, data: Data, fit_result: FitResult, metrics: dict[str, Any], folder: Path, command: str
) -> None:
    """Writes report.html and report.md into the folder of a run that has everything else.

    Args:
        config: All settings.
        data: The rows.
        fit_result: The trained model and what it says of rows.
        metrics: What metrics.json holds.
        folder: Of the run.
        command: What makes the run again.
    """
    try:
        report = build_report(_report_data(config, data, fit_result, metrics, folder, command))
        write_report(report, folder / REPORT, folder / CARD)
    # Whatever is wrong with a picture or a table, hours of training are not lost for it.
    except Exception as error:
        reason = next(iter(str(error).splitlines()), "")
        logger.info(
            f"no report was written, {type(error).__name__}: {reason}; python -m training.report tries again"
        )


def _report_data(
    config: FitConfig, data: Data, fit_result: FitResult, metrics: dict[str, Any], folder: Path, command: str
) -> ReportData:
    return ReportData.of_bundle(
        fit_result.bundle,
        read_manifest(folder),
        folder,
        name=config.out_folder().resolve().name,
        task=data.task,
        metric=data.task.metric,
        splits=fit_result.asked,
        scores=metrics[metrics["judged_on"]],
        metrics=metrics,
        lengths=fit_result.lengths,
        train=data.train,
        command=command,
    )
