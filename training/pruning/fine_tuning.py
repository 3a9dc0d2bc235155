"""Fine-tunes a pruned model with the settings of its run, for fewer epochs."""

import dataclasses
import logging
import shutil
from pathlib import Path
from typing import Any

from kmha.errors import InputError
from training.cli.parser import parse
from training.config.config import DataSection, FinetuneSection, FitConfig, task_section
from training.data.sources import file_source
from training.engine.trainer import StartingModel
from training.runs.run_folder import CONFIG, RUN_LOG

logger = logging.getLogger("kmha")


@dataclasses.dataclass(frozen=True)
class FineTuning:
    """Settings of the fine-tuning."""

    out: Path
    overwrite: bool
    train: Path | None
    epochs: int
    learning_rate: float


def fine_tuning_config(run: Path, fine_tuning: FineTuning) -> FitConfig:
    """The configuration of the fine-tuning: that of the run, without the settings of its initial weights.

    Raises:
        InputError: The run has no config.toml.
    """
    path = run / CONFIG
    if not path.is_file():
        raise InputError(f"{run}: expected {CONFIG}, the settings of the run, got none")
    config = parse(FitConfig, ["--config", str(path)], "python -m training.heads")
    data = config.data
    if fine_tuning.train is not None:
        data = dataclasses.replace(data, train=fine_tuning.train, tfds="")
    _check_files(data)
    return dataclasses.replace(
        config,
        config=None,
        out=fine_tuning.out,
        overwrite=fine_tuning.overwrite,
        resume=False,
        baseline=False,
        tensorboard=False,
        data=data,
        # Shape, vocabulary and weights are those of the run.
        encoder=dataclasses.replace(config.encoder, pretrained="", vectors=None),
        text=dataclasses.replace(config.text, vocabulary=None, prune=False),
        finetune=FinetuneSection(),
        train=dataclasses.replace(config.train, epochs=fine_tuning.epochs),
        optimizer=dataclasses.replace(config.optimizer, learning_rate=fine_tuning.learning_rate),
    )


def _check_files(data: DataSection) -> None:
    """Checks that the files still exist, before any long work."""
    for name, path in (("train", data.train), ("validation", data.validation), ("test", data.test)):
        if path is None:
            continue
        try:
            file_source(path)
        except InputError as error:
            hint = "; --train names other training rows" if name == "train" else f", the run's {name} rows"
            raise InputError(f"{error}{hint}") from error


def fine_tune(config: FitConfig, start: StartingModel, folder: Path, scratch: Path) -> Any:
    """Trains a model, evaluated on the validation rows of its run; test rows are only excluded from training.

    Returns:
        A `training.job.train_and_evaluate.FitResult` and the rows, a `training.data.load.Data`.

    Raises:
        InputError: The rows are invalid, or have labels that the model does not have.
        Interrupted: A signal stopped the training.
        TrainingDiverged: The loss is not finite.
    """
    from training.config.defaults import resolve_config
    from training.data.load import describe, load_data
    from training.job.train_and_evaluate import train_and_evaluate
    from training.runs.run_folder import RunContext
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
    # Pruning cannot be resumed, so its checkpoint goes to the scratch folder.
    unfinished = scratch / "unfinished"
    unfinished.mkdir()
    fit_result = train_and_evaluate(RunContext(config, unfinished, scratch), data, start)
    shutil.move(unfinished / RUN_LOG, folder / RUN_LOG)
    return fit_result, data
