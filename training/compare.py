"""python -m training.compare --data.train FILE --data.test FILE [--runs RUN …] [--out FOLDER]

Trains attention, with several heads, with one, without positions, and beside it a CNN, a BiLSTM and an average of
vectors, on the same rows with the same budget and as many weights; then judges them and a linear model, and any runs
given, on the same test rows and times their answers. A table on stderr, JSON on stdout; with --out also a picture.
docs/how-to/compare.md tells more.
"""  # noqa: D415

import contextlib
import json
import logging
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated

from kmha.bundle.manifest import CLASSIFY, MODEL_NAMES, read_manifest
from kmha.errors import InputError
from training.cli.bounds import Range
from training.cli.exceptions import Interrupted, TrainingDiverged
from training.cli.parser import FAILED, INTERRUPTED, parse, run
from training.cli.text_table import format_table
from training.comparison.candidates import ATTENTION, HEADS, NAMES, Name
from training.comparison.folder import FIGURES, PICTURE, TABLE, Workplace, check_place, opened
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
from training.runs.run_folder import START_FLAGS
from training.tasks.classify.settings import ClassifySettings
from training.tasks.create import make_task

logger = logging.getLogger("kmha")


@dataclass(frozen=True)
class CompareConfig:
    """Compares attention with other networks and a linear model on the same rows; JSON on stdout."""

    candidates: tuple[Name, ...] = NAMES
    """Who is compared."""
    runs: tuple[Path, ...] = ()
    """Run folders that are judged and timed beside them."""
    rates: tuple[float, ...] = (0.001, 0.003)
    """Learning rates; each network is trained once with each, validation rows choose. More can be tried later."""
    lengths: tuple[int, ...] = (16, 32, 64, 128, 256, 512)
    """Tokens of the texts whose answers are timed."""
    rounds: Annotated[int, Range(at_least=1)] = 15
    """Rounds of timing."""
    out: Path | None = None
    """Folder for the table, the figures and the picture (extra: report); keeps what is finished: the same command
    goes on after a stop."""
    overwrite: bool = False
    """Begin anew where a comparison stands."""
    data: DataSection = field(default_factory=DataSection)
    text: TextSection = field(default_factory=TextSection)
    encoder: EncoderSection = field(default_factory=lambda: EncoderSection(ngram_buckets=0))
    classify: ClassifySettings = field(default_factory=ClassifySettings)
    optimizer: OptimizerSection = field(default_factory=OptimizerSection)
    train: TrainSection = field(default_factory=TrainSection)

    def fit_config(self) -> ResolvedConfig:
        """The settings that every training shares."""
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
        place = Workplace(Path(scratch) / "comparison")
        if config.out is not None:
            place = stack.enter_context(opened(config.out, _kept(fit, data), config.overwrite))
        for line in describe(data):
            logger.info(line)
        try:
            comparison = _compared(config, fit, data, place, Path(scratch))
        except (Interrupted, KeyboardInterrupt) as stop:
            goes_on = "; the same command goes on" if config.out is not None else ""
            logger.info(f"stopped by {str(stop) or 'an interrupt'}{goes_on}")
            return INTERRUPTED
        except TrainingDiverged as error:
            logger.info(f"error: training diverged, {error}; lower --rates")
            return FAILED
        _show(comparison, config.out)
    print(json.dumps(comparison, ensure_ascii=False))
    return 0


def _kept(fit: ResolvedConfig, data: Data) -> dict:
    """The settings that all trainings share; files by what is in them, wherever they stand."""
    kept = {name: value for name, value in settings(fit).items() if name not in ("out", *START_FLAGS)}
    files = {part: origin["sha256"] or origin["name"] for part, origin in data.origins.items()}
    return {**kept, "data": kept["data"] | files}


def _compared(
    config: CompareConfig, fit: ResolvedConfig, data: Data, place: Workplace, scratch: Path
) -> dict:
    from kmha.quiet import import_tensorflow

    import_tensorflow()
    from training.comparison.run import Wanted, compare

    # In the order of the help, whatever order they were asked for in; each once.
    asked = [name for name in NAMES if name in config.candidates]
    return compare(
        Wanted(asked, config.runs, config.rates, sorted(set(config.lengths)), config.rounds),
        fit,
        data,
        place,
        scratch,
    )


def _show(comparison: dict, out: Path | None) -> None:
    from training.comparison.figure import as_markdown, cells, notes

    rows = cells(comparison)
    for line in (*format_table(rows), *notes(comparison)):
        logger.info(line)
    if out is None:
        return
    from training.comparison.figure import draw
    from training.io.atomic_write import atomic_write

    told = "".join(f"- {line}\n" for line in notes(comparison))
    written = {FIGURES: json.dumps(comparison, ensure_ascii=False, indent=2) + "\n"}
    written[TABLE] = f"{as_markdown(rows)}\n{told}"
    for name, text in written.items():
        with atomic_write(out / name, overwrite=True, flag="--out") as beside:
            beside.write_text(text, "utf-8")
    draw(out / PICTURE, comparison)
    logger.info(f"written to {out}")


def _check(config: CompareConfig) -> None:
    """Refuses what can be refused before any row is read."""
    if not config.candidates and not config.runs:
        raise InputError("--candidates: expected one or more, or --runs, got none")
    # Trainings are kept by their rate as it is shown.
    shown = {f"{rate:g}" for rate in config.rates}
    if not config.rates or len(shown) < len(config.rates) or not all(0 < rate < 1 for rate in config.rates):
        given = " ".join(map(str, config.rates)) or "none"
        raise InputError(f"--rates: expected different numbers above 0 and below 1, got {given}")
    if not config.lengths or min(config.lengths) < 3:
        raise InputError(
            f"--lengths: expected numbers of at least 3, got {' '.join(map(str, config.lengths)) or 'none'}"
        )
    for flag, given in (
        ("encoder.pretrained", config.encoder.pretrained),
        ("encoder.vectors", config.encoder.vectors),
        ("optimizer.learning-rate", config.optimizer.learning_rate),
    ):
        if given:
            expected = "--rates in its place" if "rate" in flag else "none, all candidates start from nothing"
            raise InputError(f"--{flag}: expected {expected}, got {given}")
    if config.classify.window:
        raise InputError(
            f"--classify.window: expected 0, all candidates read texts whole, got {config.classify.window}"
        )
    if config.classify.multi_label:
        raise InputError("--classify.multi-label: expected rows of one label each, got True")
    if config.encoder.num_heads == 1 and HEADS in config.candidates and "one-head" in config.candidates:
        raise InputError("--encoder.num-heads: expected 2 or more beside --candidates one-head, got 1")
    attention = [name for name in ATTENTION if name in config.candidates]
    if config.encoder.num_layers == 0 and attention:
        raise InputError(
            f"--encoder.num-layers: expected 1 or more beside --candidates {attention[0]}, got 0"
        )
    if config.runs:
        _check_runs(config.runs)
    if config.out is not None:
        from training.comparison.figure import check_matplotlib

        check_place(config.out)
        check_matplotlib()


def _check_runs(runs: tuple[Path, ...]) -> None:
    """Refuses what is no run of a classifier with one label a row."""
    for path in runs:
        manifest = read_manifest(path)
        if manifest["task"] != CLASSIFY or manifest["multi_label"]:
            several = manifest["task"] == CLASSIFY
            kind = "one of several labels" if several else MODEL_NAMES[manifest["task"]]
            raise InputError(f"--runs {path}: expected a classifier of one label a row, got {kind}")


def _check_data(data: Data) -> None:
    if data.task.several_labels:
        raise InputError(
            f"--data.label-column: expected one label a row, got {data.columns.label}, which may hold several"
        )
    if data.test is None:
        raise InputError(
            "--data.test: expected test rows (validation rows choose the epoch and the rate), got none"
        )


if __name__ == "__main__":
    sys.exit(main())
