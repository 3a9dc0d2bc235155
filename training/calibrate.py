"""python -m training.calibrate RUN --data FILE [--precision 0.95] [--out diagram.png] [--write]

Fits the temperature of a run on labeled rows that it was not trained on. --precision also finds the abstention
threshold, --out draws reliability diagrams, --write saves the result in the run. Prints one JSON object on stdout.
See docs/how-to/calibration.md.
"""  # noqa: D415

import logging
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import tyro

from kmha.bundle.manifest import CLASSIFY, MASKED_LM, MATCH, MODEL_NAMES, TAG, read_manifest
from kmha.errors import InputError
from kmha.quiet import import_tensorflow
from training.cli.bounds import Range
from training.cli.parser import parse, run
from training.data.sources import file_source
from training.io.disk import to_json
from training.io.examples import ColumnFlags
from training.runs.run_folder import identify_rows

logger = logging.getLogger("kmha")


@dataclass(frozen=True, kw_only=True)
class CalibrateConfig(ColumnFlags):
    """Fits the temperature and the abstention threshold of a run on labeled rows; prints JSON on stdout."""

    run: Annotated[Path, tyro.conf.Positional, tyro.conf.arg(metavar="RUN")]
    """Run folder that training.fit wrote."""
    data: Path
    """Rows that the run was not trained on: .csv, .tsv, .jsonl, or CoNLL for sentences; also .gz."""
    refit: bool = True
    """Fit the temperature on these rows; otherwise evaluate the current temperature."""
    precision: Annotated[float | None, Range(above=0, below=1)] = None
    """Target precision; finds the probability below which to abstain."""
    out: Path | None = None
    """Reliability diagram to write, .png, .svg or .pdf; an existing file is replaced (extra: report)."""
    write: bool = False
    """Save the temperature, and with --precision the abstention threshold, in the run."""


def main(argv: Sequence[str] | None = None) -> int:
    """Runs the command; returns its exit status."""
    return run(lambda: _calibrate(parse(CalibrateConfig, argv, "python -m training.calibrate")))


def _calibrate(config: CalibrateConfig) -> int:
    _check(config)
    import_tensorflow()
    from kmha.bundle.bundle import Bundle
    from training.evaluation.model_calibration import LabeledOutputs, recalibrate

    with tempfile.TemporaryDirectory(prefix="kmha-") as scratch:
        rows = LabeledOutputs.read(Bundle.load(config.run), config.data, config.given(), Path(scratch))
        found = recalibrate(rows, config.refit, config.precision)
    shown = found.values()
    if config.out is not None:
        from training.reporting.figures import write_reliability_diagram

        write_reliability_diagram(config.out, found.diagrams)
        logger.info(f"{config.out}: written")
    if config.write:
        from training.runs.run_folder import replace_bundle

        bundle = Bundle.load(config.run)
        for line in found.apply(bundle, config.data.name):
            logger.info(line)
        replace_bundle(config.run, bundle)
        logger.info(f"{config.run}: written")
    print(to_json(shown))
    return 0


def _check(config: CalibrateConfig) -> None:
    """Checks the settings and the run before TensorFlow is imported."""
    manifest = read_manifest(config.run)
    file_source(config.data, config.form)
    identify_rows(manifest, config.data)
    task = manifest["task"]
    if task == MASKED_LM or manifest.get("target") == "graded":
        kind = MODEL_NAMES[task] if task == MASKED_LM else "one with a graded target"
        raise InputError(f"{config.run}: expected a model that gives probabilities of labels, got {kind}")
    one = (task == CLASSIFY and not manifest["multi_label"]) or task == MATCH
    if config.precision is not None and not one:
        kind = MODEL_NAMES[TAG] if task == TAG else "one with several labels per row"
        raise InputError(f"--precision: expected a model with one prediction per row, got {kind}")
    if config.write and not config.refit and config.precision is None:
        raise InputError("--write: expected something to change, --refit or --precision, got neither")
    if config.out is not None:
        from training.reporting.matplotlib_style import check_figure_path

        check_figure_path(config.out)


if __name__ == "__main__":
    sys.exit(main())
