"""python -m training.compare --data.train FILE --data.test FILE [--runs RUN …] [--out FOLDER]

Trains attention with several heads, with one head and without positions, a CNN, a BiLSTM and mean pooling on the same
rows, with the same budget and number of weights. Evaluates them, a linear model and existing runs on the same test rows
and measures their latency. Prints a table on stderr and JSON on stdout; --out also writes a figure.
See docs/how-to/compare.md.
"""  # noqa: D415

import contextlib
import logging
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated

from kmha.bundle.manifest import CLASSIFY, MODEL_NAMES, read_manifest
from kmha.errors import InputError
from kmha.quiet import import_tensorflow
from training.cli.bounds import Range
from training.cli.exceptions import Interrupted, TrainingDiverged
from training.cli.parser import FAILED, INTERRUPTED, format_table, parse, run
from training.comparison.candidates import ATTENTION, HEADS, NAMES, Name
from training.comparison.folder import (
    FIGURES,
    PICTURE,
    TABLE,
    ComparisonFolder,
    check_out_folder,
    open_folder,
)
from training.config.config import (
    DataSection,
    EncoderSection,
    FitConfig,
    OptimizerSection,
    ResolvedConfig,
    TextSection,
    TrainSection,
    settings,
)
from training.config.defaults import resolve_config
from training.config.validation import check_settings
from training.data.load import Data, describe, load_data
from training.io.disk import atomic_write, to_json
from training.runs.run_folder import START_FLAGS
from training.tasks.create import make_task
from training.tasks.settings import ClassifySettings

logger = logging.getLogger("kmha")


@dataclass(frozen=True)
class CompareConfig:
    """Compares attention with other networks and a linear model on the same rows; prints JSON on stdout."""

    candidates: tuple[Name, ...] = NAMES
    """Models to compare."""
    runs: tuple[Path, ...] = ()
    """Existing runs to include in the comparison."""
    rates: tuple[float, ...] = (0.001, 0.003)
    """Learning rates to try for each network; validation rows select one. More can be added later."""
    lengths: tuple[int, ...] = (16, 32, 64, 128, 256, 512)
    """Text lengths in tokens at which the latency is measured."""
    rounds: Annotated[int, Range(at_least=1)] = 15
    """Rounds of the latency measurement."""
    out: Path | None = None
    """Folder for results, table and figure (extra: report); the same command resumes an interrupted comparison."""
    overwrite: bool = False
    """Replace an existing comparison."""
    data: DataSection = field(default_factory=DataSection)
    text: TextSection = field(default_factory=TextSection)
    encoder: EncoderSection = field(default_factory=lambda: EncoderSection(ngram_buckets=0, linear=False))
    classify: ClassifySettings = field(default_factory=ClassifySettings)
    optimizer: OptimizerSection = field(default_factory=OptimizerSection)
    train: TrainSection = field(default_factory=TrainSection)

    def fit_config(self) -> ResolvedConfig:
        """Returns the settings of each training run."""
        sections = {
            name: getattr(self, name)
            for name in ("data", "text", "encoder", "classify", "optimizer", "train")
        }
        return resolve_config(FitConfig(out=self.out, baseline=False, calibrate=False, **sections))


def main(argv: Sequence[str] | None = None) -> int:
    """Runs the command; returns its exit status."""
    return run(lambda: _compare(parse(CompareConfig, argv, "python -m training.compare")))


def _compare(config: CompareConfig) -> int:
    _check(config)
    fit = config.fit_config()
    check_settings(fit)
    with tempfile.TemporaryDirectory(prefix="kmha-") as scratch, contextlib.ExitStack() as stack:
        data = load_data(fit, make_task("classify", fit.classify), Path(scratch))
        _check_data(data)
        folder = ComparisonFolder(Path(scratch) / "comparison")
        if config.out is not None:
            folder = stack.enter_context(
                open_folder(config.out, _fixed_settings(fit, data), config.overwrite)
            )
        for line in describe(data):
            logger.info(line)
        try:
            comparison = _run(config, fit, data, folder, Path(scratch))
        except (Interrupted, KeyboardInterrupt) as stop:
            hint = "; the same command resumes the comparison" if config.out is not None else ""
            logger.info(f"stopped by {str(stop) or 'an interrupt'}{hint}")
            return INTERRUPTED
        except TrainingDiverged as error:
            logger.info(f"error: training diverged, {error}; lower --rates")
            return FAILED
        _show(comparison, config.out)
    print(to_json(comparison))
    return 0


def _fixed_settings(fit: ResolvedConfig, data: Data) -> dict:
    """The settings that all results depend on; files are replaced by their hashes."""
    fixed = {name: value for name, value in settings(fit).items() if name not in ("out", *START_FLAGS)}
    files = {part: origin["sha256"] or origin["name"] for part, origin in data.origins.items()}
    return {**fixed, "data": fixed["data"] | files}


def _run(
    config: CompareConfig, fit: ResolvedConfig, data: Data, folder: ComparisonFolder, scratch: Path
) -> dict:
    import_tensorflow()
    from training.comparison.run import ComparisonPlan, compare

    # In the order of --help, without repetitions.
    candidates = [name for name in NAMES if name in config.candidates]
    return compare(
        ComparisonPlan(candidates, config.runs, config.rates, sorted(set(config.lengths)), config.rounds),
        fit,
        data,
        folder,
        scratch,
    )


def _show(comparison: dict, out: Path | None) -> None:
    from training.comparison.figure import (
        comparison_cells,
        markdown_table,
        notes,
        write_comparison_figure,
    )

    rows = comparison_cells(comparison)
    for line in (*format_table(rows), *notes(comparison)):
        logger.info(line)
    if out is None:
        return
    listed = "".join(f"- {line}\n" for line in notes(comparison))
    written = {FIGURES: to_json(comparison, indent=2) + "\n"}
    written[TABLE] = f"{markdown_table(rows)}\n{listed}"
    for name, text in written.items():
        with atomic_write(out / name, overwrite=True, flag="--out") as partial:
            partial.write_text(text, "utf-8")
    write_comparison_figure(out / PICTURE, comparison)
    logger.info(f"written to {out}")


def _check(config: CompareConfig) -> None:
    if not config.candidates and not config.runs:
        raise InputError("--candidates: expected one or more, or --runs, got none")
    # Results are saved under the formatted learning rate.
    shown = {f"{rate:g}" for rate in config.rates}
    if not config.rates or len(shown) < len(config.rates) or not all(0 < rate < 1 for rate in config.rates):
        rates = " ".join(map(str, config.rates)) or "none"
        raise InputError(f"--rates: expected different numbers above 0 and below 1, got {rates}")
    if not config.lengths or min(config.lengths) < 3:
        raise InputError(
            f"--lengths: expected numbers of at least 3, got {' '.join(map(str, config.lengths)) or 'none'}"
        )
    for flag, value in (
        ("encoder.pretrained", config.encoder.pretrained),
        ("encoder.vectors", config.encoder.vectors),
        ("optimizer.learning-rate", config.optimizer.learning_rate),
    ):
        if value:
            expected = (
                "--rates instead" if "rate" in flag else "none, all candidates are trained from scratch"
            )
            raise InputError(f"--{flag}: expected {expected}, got {value}")
    if config.classify.window:
        raise InputError(
            f"--classify.window: expected 0, the candidates read whole texts, got {config.classify.window}"
        )
    if config.classify.multi_label:
        raise InputError("--classify.multi-label: expected rows of one label each, got True")
    if config.encoder.num_heads == 1 and HEADS in config.candidates and "one-head" in config.candidates:
        raise InputError("--encoder.num-heads: expected 2 or more with --candidates one-head, got 1")
    attention = [name for name in ATTENTION if name in config.candidates]
    if config.encoder.num_layers == 0 and attention:
        raise InputError(f"--encoder.num-layers: expected 1 or more with --candidates {attention[0]}, got 0")
    if config.runs:
        _check_runs(config.runs)
    if config.out is not None:
        from training.reporting.matplotlib_style import check_matplotlib

        check_out_folder(config.out)
        check_matplotlib()


def _check_runs(runs: tuple[Path, ...]) -> None:
    """Checks that the runs are classifiers of one label per row."""
    for path in runs:
        manifest = read_manifest(path)
        if manifest["task"] != CLASSIFY or manifest["multi_label"]:
            several = manifest["task"] == CLASSIFY
            kind = "one of several labels" if several else MODEL_NAMES[manifest["task"]]
            raise InputError(f"--runs {path}: expected a classifier of one label per row, got {kind}")


def _check_data(data: Data) -> None:
    if data.task.traits.is_multi_label:
        raise InputError(
            f"--data.label-column: expected one label per row, got {data.columns.label}, which may have several"
        )
    if data.test is None:
        raise InputError(
            "--data.test: expected test rows (validation rows select the epoch and the learning rate), got none"
        )


if __name__ == "__main__":
    sys.exit(main())
