"""A smaller run made of a run, and what that did to its size, speed and scores."""

import dataclasses
import json
import logging
from collections.abc import Callable
from pathlib import Path
from typing import Any

from kmha.bundle.bundle import Bundle
from kmha.bundle.manifest import MODEL
from kmha.calibration import Calibration, calibrate
from training.config.config import FitConfig
from training.engine.model_init import StartingModel
from training.job.fit_report import report_fit
from training.pruning.apply import Cut, weight_counts
from training.pruning.evaluation_rows import MeasuredRows
from training.pruning.fine_tuning import trained_on
from training.pruning.latency import latencies_ms
from training.runs.context import RunContext
from training.runs.run_folder import CONFIG, METRICS

logger = logging.getLogger("kmha")

TIMED_ROWS = 50
BEFORE, CUT, AFTER = "before", "cut", "after"


def write_pruned(
    run: Path,
    cut: Cut,
    share: float,
    rows: MeasuredRows,
    config: FitConfig,
    command: str,
    folder: Path,
    scratch: Path,
) -> dict[str, Any]:
    """Trains a cut model on and writes it.

    Args:
        run: The folder of the run that it is made of.
        cut: Its model without the weakest parts.
        share: Of the parts, as it was asked for.
        rows: All rows that the run was measured on, with its bundle.
        config: How it is trained on.
        command: What makes it again, for its report.
        folder: The unfinished run.
        scratch: Where the data is kept meanwhile.

    Returns:
        {"share", "heads", "feed_forward_rows", "weights", "block_weights", "bytes", "latency_ms": {"before", "after"},
        "scores": {"before", "cut", "after"}}, as JSON values; "cut" is before training on.

    Raises:
        InputError: The training rows cannot be used, or have labels that the run does not know.
        Interrupted: Told to stop.
        TrainingDiverged: The loss left the numbers.
    """
    bundle = rows.bundle
    scores = {
        BEFORE: rows.evaluated().scores(),
        CUT: rows.of(dataclasses.replace(bundle, model=cut.build())).evaluated().scores(),
    }
    details = {name: bundle.details[name] for name in ("pretrained",) if name in bundle.details}
    start = StartingModel(bundle.preprocessor, bundle.labels, _uncalibrated(cut.build, bundle), details)
    fit_result, data = trained_on(config, start, folder, scratch)
    if bundle.abstain_below is not None:
        logger.info(
            "abstain_below went, it was chosen for another model; training.calibrate --precision finds one"
        )
    if fit_result.metrics["best_epoch"] < 0:
        logger.info("training on has not helped on the validation rows: the model stays as it was cut")
    after: Bundle = fit_result.bundle
    scores[AFTER] = rows.of(after).evaluated().scores()
    counts = [weight_counts(each.model) for each in (bundle, after)]
    told: dict[str, Any] = {"share": share, "heads": cut.heads, "feed_forward_rows": cut.rows}
    told |= {
        name: {BEFORE: counts[0][place], AFTER: counts[1][place]}
        for place, name in enumerate(("weights", "block_weights"))
    }
    after.details["pruned"] = {"run": run.resolve().name, "command": command, **told}
    after.save(folder)
    sizes = [(each / MODEL).stat().st_size for each in (run, folder)]
    source = rows.drawn(TIMED_ROWS, 0).source
    plans = source.plans(source.buckets([], 1), 1, 1, None)
    times = latencies_ms([bundle.model, after.model], [source.batch(plan)["features"] for plan in plans])
    told |= {
        name: dict(zip((BEFORE, AFTER), values, strict=True))
        for name, values in (("bytes", sizes), ("latency_ms", times))
    }
    told["scores"] = scores
    _say_what_it_is(folder / CONFIG, run, share)
    metrics = fit_result.metrics | {"pruned": told}
    (folder / METRICS).write_text(json.dumps(metrics, ensure_ascii=False, indent=2) + "\n", "utf-8")
    if config.report:
        report_fit(RunContext(config, folder, scratch), data, fit_result, metrics, command)
    return told


def _say_what_it_is(path: Path, run: Path, share: float) -> None:
    """Writes above the settings that they alone make no such run."""
    made = f"# How a model was trained on that training.heads --prune {share:g} had cut from {run.name};"
    path.write_text(
        f"{made}\n# training.fit with these settings begins with a whole one.\n{path.read_text('utf-8')}",
        "utf-8",
    )


def _uncalibrated(build: Callable[[], Any], bundle: Bundle) -> Callable[[], Any]:
    """What makes the model as it was trained: at its end the training finds another temperature."""

    def made() -> Any:
        model = build()
        calibrate(model, Calibration.of(bundle.details).inverse())
        return model

    return made
