"""The report of a run that is there already, on rows of a file."""

import dataclasses
import json
from pathlib import Path
from typing import Any

from kmha.bundle.bundle import Bundle
from kmha.bundle.manifest import MATCH, read_manifest
from kmha.calibration import Calibration
from kmha.errors import InputError
from training.cli.column_flags import ColumnOverrides
from training.cli.parser import parse
from training.config.config import FitConfig
from training.data.inputs import cut_parts
from training.evaluation.evaluator import predict_file
from training.reporting.report_data import ReportData, ScoredSplit, file_sizes, most_tokens
from training.reporting.reproducibility import rerun_command
from training.runs.run_folder import CONFIG, METRICS, identify_rows

_ROWS = "rows"


def report_data_of(run: Path, data: Path, given: ColumnOverrides, folder: Path) -> ReportData:
    """What a run says of the rows of a file, beside what its fit has left.

    Args:
        run: A run folder.
        data: Labelled rows.
        given: Names of columns that are others than in training.
        folder: Where the rows are kept meanwhile.

    Raises:
        InputError: The file or a row of it cannot be used, it has none, or the run was trained on it.
    """
    manifest = read_manifest(run)
    name, origins = identify_rows(manifest, data)
    bundle = Bundle.load(run)
    task, part, answers = predict_file(bundle, data, given, folder)
    if not len(part.rows):
        raise InputError(f"--data {data}: expected a row or more, got none")
    scores = task.scores(part, bundle.labels, answers, {"thresholds": bundle.thresholds}, intervals=True)
    metrics = _metrics(run)
    if any(dataclasses.astuple(given)):
        # Other columns of the same file are other rows.
        metrics = {
            key: value for key, value in metrics.items() if key not in ("baseline", "teacher", "calibration")
        }
    (folder / "cut").mkdir()
    # A part's name becomes the name of a file; this one's could be anything.
    read = cut_parts(bundle.preprocessor, {_ROWS: part}, folder / "cut", task.masking)
    tokens = {key.replace(_ROWS, name): dataclasses.asdict(met) for key, met in read.counts.items()}
    return ReportData(
        name=run.resolve().name,
        kind=bundle.task,
        task=task,
        target=bundle.model.target if bundle.task == MATCH else "",
        labels=bundle.labels,
        thresholds=bundle.thresholds,
        calibration=Calibration.of(bundle.details),
        metric=bundle.details.get("metric") or task.metric,
        asked=[ScoredSplit(name, part, answers)],
        scores=scores,
        metrics=metrics | {"tokens": metrics.get("tokens", {}) | tokens},
        details=bundle.details | {"data": origins},
        versions=manifest["versions"],
        lengths={name: read.text_lengths(_ROWS)},
        longest=most_tokens(bundle.preprocessor),
        train=None,
        command=_command(run, manifest),
        files=file_sizes(run, manifest),
    )


def _metrics(run: Path) -> dict[str, Any]:
    """metrics.json; empty where it is missing or damaged."""
    try:
        found = json.loads((run / METRICS).read_text("utf-8"))
    except (OSError, ValueError):
        return {}
    return found if isinstance(found, dict) else {}


def _command(run: Path, manifest: dict[str, Any]) -> str:
    """The command that makes the run again; empty where its settings are not known."""
    if "pruned" in manifest:
        # A fit with its settings would begin with a whole model.
        told = manifest["pruned"]
        return str(told.get("command", "")) if isinstance(told, dict) else ""
    try:
        config = parse(FitConfig, ["--config", str(run / CONFIG)], "python -m training.fit")
    except (InputError, SystemExit):
        return ""
    return rerun_command(dataclasses.replace(config, config=None))
