"""The report data of an existing run, for the rows of a file."""

import dataclasses
import json
from pathlib import Path
from typing import Any

from kmha.bundle.bundle import Bundle
from kmha.bundle.manifest import read_manifest
from kmha.errors import InputError
from training.cli.parser import parse
from training.config.config import FitConfig
from training.data.inputs import cut_parts
from training.evaluation.bundle_evaluation import predict_file
from training.io.examples import ColumnOverrides
from training.reporting.report_data import ReportData, ScoredSplit
from training.reporting.reproducibility import rerun_command
from training.runs.run_folder import CONFIG, METRICS, identify_rows

_ROWS = "rows"


def report_data_of(run: Path, data: Path, columns: ColumnOverrides, scratch: Path) -> ReportData:
    """Evaluates a run on the rows of a file, and reads the metrics of its fit.

    Raises:
        InputError: The file or a row of it is invalid, it has no rows, or the run was trained on it.
    """
    manifest = read_manifest(run)
    name, origins = identify_rows(manifest, data)
    bundle = Bundle.load(run)
    task, part, predictions = predict_file(bundle, data, columns, scratch)
    if not len(part.rows):
        raise InputError(f"--data {data}: expected a row or more, got none")
    metrics = _read_metrics(run)
    if any(dataclasses.astuple(columns)):
        # With other columns of the same file these are not scores of the same rows.
        for key in ("baseline", "teacher", "calibration"):
            metrics.pop(key, None)
    (scratch / "report_tokens").mkdir()
    # The split's own name may not be a valid file name.
    inputs = cut_parts(bundle.preprocessor, {_ROWS: part}, scratch / "report_tokens", task.masking)
    tokens = {key.replace(_ROWS, name): dataclasses.asdict(each) for key, each in inputs.counts.items()}
    return ReportData.of_bundle(
        bundle,
        manifest,
        run,
        name=run.resolve().name,
        task=task,
        metric=bundle.details.get("metric") or task.metric,
        splits=[ScoredSplit(name, part, predictions)],
        scores=task.scores(
            part, bundle.labels, predictions, {"thresholds": bundle.thresholds}, intervals=True
        ),
        metrics=metrics | {"tokens": metrics.get("tokens", {}) | tokens},
        details=bundle.details | {"data": origins},
        lengths={name: inputs.text_lengths(_ROWS)},
        train=None,
        command=_command(run, manifest),
    )


def _read_metrics(run: Path) -> dict[str, Any]:
    """Reads metrics.json; empty if it is missing or damaged."""
    try:
        found = json.loads((run / METRICS).read_text("utf-8"))
    except (OSError, ValueError):
        return {}
    return found if isinstance(found, dict) else {}


def _command(run: Path, manifest: dict[str, Any]) -> str:
    """The command that makes the run again; empty if its settings are not known."""
    if "pruned" in manifest:
        # training.fit with the same settings would train the unpruned model.
        pruned = manifest["pruned"]
        return str(pruned.get("command", "")) if isinstance(pruned, dict) else ""
    try:
        config = parse(FitConfig, ["--config", str(run / CONFIG)], "python -m training.fit")
    except (InputError, SystemExit):
        return ""
    return rerun_command(dataclasses.replace(config, config=None))
