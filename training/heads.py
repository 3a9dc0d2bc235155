"""python -m training.heads RUN --data FILE [--prune 0.3 --out RUN]

Tells what each attention head of a run is worth, by the gradient of a gate on it and by leaving it out, and where it
looks: a table on stderr, one JSON object on stdout. With --prune a smaller run is written without the weakest heads and
feed-forward rows, trained on for a short while. docs/how-to/heads.md tells more.
"""  # noqa: D415

import json
import logging
import shlex
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Annotated, Any

import tyro

from kmha.bundle.manifest import MASKED_LM, MODEL_NAMES, read_manifest
from kmha.errors import InputError
from training.cli.bounds import Count, Positive, Range
from training.cli.column_flags import ColumnFlags
from training.cli.exceptions import Interrupted, TrainingDiverged
from training.cli.parser import FAILED, INTERRUPTED, parse, run
from training.data.sources import file_source

logger = logging.getLogger("kmha")


@dataclass(frozen=True, kw_only=True)
class HeadsConfig(ColumnFlags):
    """Tells what the heads of a run are worth, and writes a smaller run without the weakest; JSON on stdout."""

    run: Annotated[Path, tyro.conf.Positional, tyro.conf.arg(metavar="RUN")]
    """Run folder that training.fit wrote: a classifier, a matcher or a tagger."""
    data: Path
    """Rows that the run was not trained on, best its validation rows: .csv, .tsv, .jsonl, .conll, also .gz."""
    rows: Annotated[int, Range(at_least=0)] = 2000
    """Rows of --data, drawn at random, on which heads are measured; 0: all."""
    seed: Annotated[int, Range(at_least=0)] = 0
    """Draws them."""
    picture: Path | None = None
    """Picture to write, .png, .svg or .pdf; one that stands there is replaced (extra: report)."""
    prune: Annotated[float | None, Range(above=0, below=1)] = None
    """Share of all heads, and of all feed-forward rows, to remove; each block keeps one of either."""
    out: Path | None = None
    """Folder of the pruned run."""
    overwrite: bool = False
    """Replace a run that stands there."""
    train: Path | None = None
    """Rows to train the pruned model on; None: those that the run was trained on, as its config.toml says."""
    epochs: Count = 1
    """Passes over them."""
    learning_rate: Positive = 3e-4
    """The highest rate in them."""


def main(argv: Sequence[str] | None = None) -> int:
    """Runs the command; returns its exit status."""
    return run(lambda: _heads(parse(HeadsConfig, argv, "python -m training.heads")))


def _heads(config: HeadsConfig) -> int:
    _check(config)
    try:
        if config.prune is None or config.out is None:
            told = _told(config)
        else:
            told = _pruned(config, config.prune, config.out)
    except Interrupted as stop:
        logger.info(f"stopped by {stop}")
        return INTERRUPTED
    except TrainingDiverged as error:
        logger.info(f"error: training diverged, {error}; lower --learning-rate")
        return FAILED
    print(json.dumps(told, ensure_ascii=False))
    return 0


def _check(config: HeadsConfig) -> None:
    """Refuses what can be refused before TensorFlow loads."""
    task = read_manifest(config.run)["task"]
    if task == MASKED_LM:
        raise InputError(
            f"{config.run}: expected a classifier, a matcher or a tagger, got {MODEL_NAMES[task]};"
            " prune a run that starts from it"
        )
    file_source(config.data)
    if config.train is not None:
        file_source(config.train)
    if config.prune is not None and config.out is None:
        raise InputError("--out: expected a folder for the pruned run beside --prune, got none")
    if config.out is not None and config.out.resolve() == config.run.resolve():
        raise InputError(f"--out {config.out}: expected a folder beside the run, got the run itself")
    if config.prune is None:
        for flag, given in (("out", config.out), ("train", config.train), ("overwrite", config.overwrite)):
            if given:
                raise InputError(f"--{flag}: expected --prune beside it, got none")
    if config.picture is not None:
        from training.reporting.matplotlib_style import check_figure_path

        check_figure_path(config.picture, "--picture")


def _told(config: HeadsConfig) -> dict[str, Any]:
    with tempfile.TemporaryDirectory(prefix="kmha-") as scratch:
        return _values(config, _measured(config, Path(scratch)))


def _measured(config: HeadsConfig, scratch: Path) -> Any:
    """The `Measurement`, shown."""
    from kmha.quiet import import_tensorflow

    import_tensorflow()
    from training.pruning.measurement import measure
    from training.pruning.presentation import draw

    found = measure(config.run, config.data, config.given(), config.rows, config.seed, scratch)
    for line in found.lines():
        logger.info(line)
    if config.picture is not None:
        draw(config.picture, found.blocks, found.heads, found.scores["loss"])
        logger.info(f"{config.picture}: drawn")
    return found


def _values(config: HeadsConfig, found: Any) -> dict[str, Any]:
    return {"run": str(config.run), "data": str(config.data), **found.values()}


def _pruned(config: HeadsConfig, share: float, out: Path) -> dict[str, Any]:
    from training.config.validation import check_settings
    from training.pruning.fine_tuning import Short, settings_of
    from training.runs.run_folder import run_folder

    short = Short(out, config.overwrite, config.train, config.epochs, config.learning_rate)
    settings = settings_of(config.run, short)
    check_settings(settings)
    with run_folder(settings) as folder, tempfile.TemporaryDirectory(prefix="kmha-") as scratch:
        parts = [Path(scratch) / name for name in ("measured", "trained")]
        for part in parts:
            part.mkdir()
        found = _measured(config, parts[0])
        from training.pruning.apply import cut_model
        from training.pruning.presentation import pruned_table
        from training.pruning.prune_run import write_pruned

        cut = cut_model(found.all_rows.bundle.model, found.groups, found.found, share)
        heads, rows = cut.heads, cut.rows
        logger.info(
            f"without {heads['before'] - heads['after']} of {heads['before']} heads and"
            f" {rows['before'] - rows['after']:,} of {rows['before']:,} feed-forward rows"
        )
        pruned = write_pruned(
            config.run, cut, share, found.all_rows, settings, _again(config), folder, parts[1]
        )
    for line in pruned_table(pruned):
        logger.info(line)
    logger.info(f"written to {out}")
    return _values(config, found) | {"pruned": {"run": str(out), **pruned}}


def _again(config: HeadsConfig) -> str:
    """The command that prunes the same way."""
    flags = [
        f"--{field.name.replace('_', '-')}={getattr(config, field.name)}"
        for field in fields(config)
        if field.name not in ("run", "out", "overwrite", "picture")
        and getattr(config, field.name) != field.default
    ]
    command = ["python", "-m", "training.heads", str(config.run), *flags, "--out", "runs/again"]
    return shlex.join(command)


if __name__ == "__main__":
    sys.exit(main())
