"""python -m training.heads RUN --data FILE [--prune 0.3 --out RUN]

Measures the importance of each attention head (gate gradient and ablation), and the entropy and distance of its
attention. --prune removes the least important heads and feed-forward rows, fine-tunes, and writes a smaller run. Prints
tables on stderr and one JSON object on stdout. See docs/how-to/heads.md.
"""  # noqa: D415

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
from kmha.quiet import import_tensorflow
from training.cli.bounds import Count, Positive, Range
from training.cli.exceptions import Interrupted, TrainingDiverged
from training.cli.parser import FAILED, INTERRUPTED, parse, run
from training.data.sources import file_source
from training.io.disk import to_json
from training.io.examples import ColumnFlags

logger = logging.getLogger("kmha")


@dataclass(frozen=True, kw_only=True)
class HeadsConfig(ColumnFlags):
    """Measures the importance of attention heads, and prunes them; prints JSON on stdout."""

    run: Annotated[Path, tyro.conf.Positional, tyro.conf.arg(metavar="RUN")]
    """Run folder that training.fit wrote: a classifier, a matcher or a tagger."""
    data: Path
    """Rows that the run was not trained on, such as its validation rows: .csv, .tsv, .jsonl, .conll, also .gz."""
    rows: Annotated[int, Range(at_least=0)] = 2000
    """Number of random rows of --data on which heads are measured; 0: all."""
    seed: Annotated[int, Range(at_least=0)] = 0
    """Seed of the random rows."""
    picture: Path | None = None
    """Figure to write, .png, .svg or .pdf; an existing file is replaced (extra: report)."""
    prune: Annotated[float | None, Range(above=0, below=1)] = None
    """Fraction of all heads, and of all feed-forward rows, to remove; each block retains at least one of both."""
    out: Path | None = None
    """Folder of the pruned run."""
    overwrite: bool = False
    """Replace an existing run."""
    train: Path | None = None
    """Rows for fine-tuning; None: the training rows of the run, from its config.toml."""
    epochs: Count = 1
    """Epochs of fine-tuning."""
    learning_rate: Positive = 3e-4
    """Peak learning rate of fine-tuning."""


def main(argv: Sequence[str] | None = None) -> int:
    """Runs the command; returns its exit status."""
    return run(lambda: _heads(parse(HeadsConfig, argv, "python -m training.heads")))


def _heads(config: HeadsConfig) -> int:
    _check(config)
    try:
        if config.prune is None or config.out is None:
            with tempfile.TemporaryDirectory(prefix="kmha-") as scratch:
                result = _values(config, _measurement(config, Path(scratch)))
        else:
            result = _prune(config, config.prune, config.out)
    except Interrupted as stop:
        logger.info(f"stopped by {stop}")
        return INTERRUPTED
    except TrainingDiverged as error:
        logger.info(f"error: training diverged, {error}; lower --learning-rate")
        return FAILED
    print(to_json(result))
    return 0


def _check(config: HeadsConfig) -> None:
    """Checks the flags before TensorFlow is imported."""
    task = read_manifest(config.run)["task"]
    if task == MASKED_LM:
        raise InputError(
            f"{config.run}: expected a classifier, a matcher or a tagger, got {MODEL_NAMES[task]};"
            " prune a run that starts from it"
        )
    file_source(config.data, config.form)
    if config.train is not None:
        file_source(config.train)
    if config.prune is not None and config.out is None:
        raise InputError("--out: expected a folder for the pruned run, got none")
    if config.out is not None and config.out.resolve() == config.run.resolve():
        raise InputError(f"--out {config.out}: expected another folder than the run, got the run itself")
    if config.prune is None:
        for flag, value in (("out", config.out), ("train", config.train), ("overwrite", config.overwrite)):
            if value:
                raise InputError(f"--{flag}: expected --prune too, got none")
    if config.picture is not None:
        from training.reporting.matplotlib_style import check_figure_path

        check_figure_path(config.picture, "--picture")


def _measurement(config: HeadsConfig, scratch: Path) -> Any:
    """Measures the heads and logs the tables; returns a `training.pruning.measurement.Measurement`."""
    import_tensorflow()
    from training.pruning.measurement import measure, write_heads_figure

    found = measure(config.run, config.data, config.given(), config.rows, config.seed, scratch)
    for line in found.lines():
        logger.info(line)
    if config.picture is not None:
        write_heads_figure(config.picture, found.blocks, found.heads, found.scores["loss"])
        logger.info(f"{config.picture}: written")
    return found


def _values(config: HeadsConfig, found: Any) -> dict[str, Any]:
    return {"run": str(config.run), "data": str(config.data), **found.values()}


def _prune(config: HeadsConfig, share: float, out: Path) -> dict[str, Any]:
    from training.config.validation import check_settings
    from training.pruning.prune_run import FineTuning, fine_tuning_config
    from training.runs.run_folder import run_folder

    fine_tuning = FineTuning(out, config.overwrite, config.train, config.epochs, config.learning_rate)
    settings = fine_tuning_config(config.run, fine_tuning)
    check_settings(settings)
    with run_folder(settings) as folder, tempfile.TemporaryDirectory(prefix="kmha-") as scratch:
        parts = [Path(scratch) / name for name in ("measured", "trained")]
        for part in parts:
            part.mkdir()
        found = _measurement(config, parts[0])
        from training.pruning.measurement import pruned_table
        from training.pruning.prune_run import prune_model, write_pruned_run

        pruned = prune_model(found.all_rows.bundle.model, found.groups, found.importance, share)
        heads, rows = pruned.heads, pruned.rows
        logger.info(
            f"without {heads['before'] - heads['after']} of {heads['before']} heads and"
            f" {rows['before'] - rows['after']:,} of {rows['before']:,} feed-forward rows"
        )
        result = write_pruned_run(
            config.run, pruned, share, found.all_rows, settings, _rerun_command(config), folder, parts[1]
        )
    for line in pruned_table(result):
        logger.info(line)
    logger.info(f"written to {out}")
    return _values(config, found) | {"pruned": {"run": str(out), **result}}


def _rerun_command(config: HeadsConfig) -> str:
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
