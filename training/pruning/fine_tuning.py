"""How a pruned model is trained on: as its run was, for a shorter while."""

import dataclasses
import logging
import shutil
from pathlib import Path
from typing import Any

from kmha.errors import InputError
from training.cli.parser import parse
from training.config.config import DataSection, FinetuneSection, FitConfig, task_section
from training.data.sources import file_source
from training.engine.model_init import StartingModel
from training.runs.run_folder import CONFIG, RUN_LOG

logger = logging.getLogger("kmha")


@dataclasses.dataclass(frozen=True)
class Short:
    """The while.

    Attributes:
        out: The folder of the pruned run.
        overwrite: Whether a run that stands there goes.
        train: Training rows; None: those of the run.
        epochs: Passes over them.
        learning_rate: The highest.
    """

    out: Path
    overwrite: bool
    train: Path | None
    epochs: int
    learning_rate: float


def settings_of(run: Path, short: Short) -> FitConfig:
    """The settings under which a run is trained on: its own, as far as they are not of its beginning.

    Args:
        run: A run folder.
        short: What differs.

    Raises:
        InputError: The run does not tell its settings.
    """
    path = run / CONFIG
    if not path.is_file():
        raise InputError(f"{run}: expected {CONFIG}, which tells what the run was trained on, got none")
    config = parse(FitConfig, ["--config", str(path)], "python -m training.heads")
    data = config.data
    if short.train is not None:
        data = dataclasses.replace(data, train=short.train, tfds="")
    _check_files(data)
    return dataclasses.replace(
        config,
        config=None,
        out=short.out,
        overwrite=short.overwrite,
        resume=False,
        baseline=False,
        tensorboard=False,
        data=data,
        # Shape, vocabulary and weights are those of the run, whatever it began with.
        encoder=dataclasses.replace(config.encoder, pretrained="", vectors=None),
        text=dataclasses.replace(config.text, vocabulary=None, prune=False),
        finetune=FinetuneSection(),
        train=dataclasses.replace(config.train, epochs=short.epochs),
        optimizer=dataclasses.replace(config.optimizer, learning_rate=short.learning_rate),
    )


def _check_files(data: DataSection) -> None:
    """Refuses files that have gone before anything long begins."""
    for name, path in (("train", data.train), ("validation", data.validation), ("test", data.test)):
        if path is None:
            continue
        try:
            file_source(path)
        except InputError as error:
            hint = "; --train names other training rows" if name == "train" else f", the run's {name} rows"
            raise InputError(f"{error}{hint}") from error


def trained_on(config: FitConfig, start: StartingModel, folder: Path, scratch: Path) -> Any:
    """Trains a model on, judged on the validation rows of its run; test rows only keep training rows away.

    Args:
        config: What `settings_of` gives.
        start: The model.
        folder: The unfinished run.
        scratch: Where the data is kept meanwhile.

    Returns:
        A `training.job.train_and_evaluate.FitResult`, and the rows, a `training.data.load.Data`.

    Raises:
        InputError: The rows cannot be used, or have labels that the model does not know.
        Interrupted: Told to stop.
        TrainingDiverged: The loss left the numbers.
    """
    from training.config.defaults import resolve_config
    from training.data.load import describe, load_data
    from training.job.train_and_evaluate import train_and_evaluate
    from training.runs.context import RunContext
    from training.tasks.create import make_task

    config = resolve_config(config)
    data = load_data(config, make_task(config.task, task_section(config)), scratch)
    unknown = sorted(set(data.labels) - set(start.labels))
    if unknown:
        name = data.origins["train"]["name"]
        raise InputError(f"{name}: expected labels of the run, got also {', '.join(unknown[:5])}")
    for line in describe(data):
        logger.info(line)
    data = dataclasses.replace(data, labels=start.labels, test=None)
    # A pruning is not gone on with: what would offer that, were it killed, goes with the scratch folder.
    unfinished = scratch / "unfinished"
    unfinished.mkdir()
    fit_result = train_and_evaluate(RunContext(config, unfinished, scratch), data, start)
    shutil.move(unfinished / RUN_LOG, folder / RUN_LOG)
    return fit_result, data
