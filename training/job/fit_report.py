"""The report that a fit writes into its run."""

import logging
from pathlib import Path
from typing import Any

from kmha.bundle.manifest import MATCH, read_manifest
from kmha.calibration import Calibration
from training.config.config import FitConfig
from training.data.load import Data
from training.job.train_and_evaluate import FitResult
from training.reporting.build import report, write_report
from training.reporting.report_data import ReportData, file_sizes, most_tokens
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
        made = report(_material(config, data, fit_result, metrics, folder, command))
        write_report(made, folder / REPORT, folder / CARD)
    # Whatever is wrong with a picture or a table, hours of training are not lost for it.
    except Exception as error:
        reason = next(iter(str(error).splitlines()), "")
        logger.info(
            f"no report was written, {type(error).__name__}: {reason}; python -m training.report tries again"
        )


def _material(
    config: FitConfig, data: Data, fit_result: FitResult, metrics: dict[str, Any], folder: Path, command: str
) -> ReportData:
    bundle, manifest = fit_result.bundle, read_manifest(folder)
    return ReportData(
        name=config.out_folder().resolve().name,
        kind=bundle.task,
        task=data.task,
        target=bundle.model.target if bundle.task == MATCH else "",
        labels=bundle.labels,
        thresholds=bundle.thresholds,
        calibration=Calibration.of(bundle.details),
        metric=data.task.metric,
        asked=fit_result.asked,
        scores=metrics[metrics["judged_on"]],
        metrics=metrics,
        details=bundle.details,
        versions=manifest["versions"],
        lengths=fit_result.lengths,
        longest=most_tokens(bundle.preprocessor),
        train=data.train,
        command=command,
        files=file_sizes(folder, manifest),
    )
