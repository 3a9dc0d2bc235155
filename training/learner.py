"""The part of a job that needs TensorFlow: inputs, model, epochs, judgement, bundle."""

import contextlib
import dataclasses
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import keras
import tensorflow as tf

from kmha.bundle import Bundle
from kmha.errors import InputError
from training import baseline
from training.averaging import WeightAverage
from training.buckets import computed_share
from training.calibrated import BeforeCalibration, calibrated
from training.callbacks import Progress
from training.cli import say
from training.config import FitConfig
from training.data import Data
from training.distill import TaughtTask, trained_beside, with_teacher
from training.encoder_shape import checkpoint_of, has_new_ngrams
from training.fine_tuning import freeze, rate_courses
from training.initial_model import initial_model
from training.inputs import Inputs, Source, make_inputs
from training.judge import Judge
from training.kept import length_percentiles, sample_texts
from training.loop import Loop, Standing, epoch_plans
from training.model_calibration import described
from training.optimizer import AdamW, warmup_then_decay
from training.precision import POLICIES, LossScale, in_float32
from training.replicas import TrainingStep, make_strategy
from training.run_folder import CHECKPOINT, RUN_LOG
from training.tasks.task import Task
from training.usual import LEARNING_RATE, with_usual


@dataclasses.dataclass(frozen=True)
class Learnt:
    """What a training leaves: the bundle to save and the scores to report."""

    bundle: Bundle
    metrics: dict[str, Any]


def learn(config: FitConfig, data: Data, scratch: Path, folder: Path) -> Learnt:
    """Trains a model on checked data and judges it.

    Args:
        config: All settings.
        data: The parts of the data.
        scratch: Where token ids are kept meanwhile.
        folder: The unfinished run, for its checkpoint and logs.

    Raises:
        InputError: A vocabulary, vector or checkpoint file cannot be used.
        Stopped: Told to stop; a checkpoint is kept.
        Diverged: The loss left the numbers.
    """
    keras.utils.set_random_seed(config.train.seed)
    checkpoint = checkpoint_of(config)
    vocabulary = checkpoint.vocabulary if checkpoint else None
    inputs = make_inputs(config.text, data.parts, scratch, data.task, vocabulary)
    for name, counts in inputs.counts.items():
        say(counts.describe(name))
    data, inputs = with_teacher(config, data, inputs, scratch)
    with _dtype_policy(POLICIES[config.precision]):
        validation = inputs.judged("validation", data.task.targets(data.validation, data.labels))
        model, judge, progress = train(config, data, inputs, validation, folder)
    with _dtype_policy(POLICIES["float32"]):
        model = in_float32(model)
        judge = dataclasses.replace(judge, model=model)
        before = calibrated(data, inputs, judge, validation) if config.calibrate else None
        decision, metrics = _judged(config, data, inputs, judge, validation, before)
    if isinstance(data.task, TaughtTask):
        metrics["teacher"] = data.task.judged_beside(
            metrics[data.judged_name], data.judged, data.labels, scratch
        )
    metrics |= {
        "best_epoch": progress.best_epoch,
        "history": progress.history,
        "data": dataclasses.asdict(data.summary),
        "tokens": {name: dataclasses.asdict(counts) for name, counts in inputs.counts.items()},
    }
    details = {
        "columns": data.columns.named,
        "data": data.origins,
        "lengths": length_percentiles(inputs.text_lengths("train")),
        **({"pretrained": config.encoder.pretrained} if checkpoint else {}),
        **({"calibration": before.calibration.values()} if before else {}),
        **data.task.kept,
    }
    sample = sample_texts(data.train, config.train.seed)
    bundle = Bundle(model, inputs.preprocessor, data.labels, decision.get("thresholds"), details, sample)
    return Learnt(bundle, metrics)


@contextlib.contextmanager
def _dtype_policy(name: str) -> Iterator[None]:
    before = keras.config.dtype_policy()
    keras.config.set_dtype_policy(name)
    try:
        yield
    finally:
        keras.config.set_dtype_policy(before)


def train(
    config: FitConfig, data: Data, inputs: Inputs, validation: Source, folder: Path
) -> tuple[Any, Judge, Standing]:
    """Trains the model of the data's task.

    Args:
        config: All settings; those left to the data are filled in.
        data: The parts of the data.
        inputs: Their tokens.
        validation: The validation rows, which pick the best weights.
        folder: For the checkpoint and logs.

    Returns:
        The model with its best weights, its judge, and how the training went.
    """
    strategy = _strategy(config, data.task)
    source = inputs.source(
        "train",
        data.task.lesson(data.train, data.labels, config.train.seed),
        full_shapes=_compiled(config.train.jit),
        divisor=strategy.num_replicas_in_sync,
    )
    lengths = source.buckets([validation], config.train.buckets)
    plans = epoch_plans(source, lengths, config.train, 0)
    pairs = len(source.rows) if data.task.num_texts == 2 else 0
    config = with_usual(config, data.task, source.text_lengths, len(plans), pairs)
    with strategy.scope():
        model = initial_model(config, data.task, source, inputs.preprocessor, data.labels)
        new_ngrams = has_new_ngrams(config)
        freeze(model, config.finetune.frozen_layers, new_ngrams)
        trained = trained_beside(data.task, model)
        step, average = _step_and_average(config, data.task, model, trained, strategy, len(plans), new_ngrams)
    judge = Judge(model, data.task, data.labels, lengths)
    judge.check(data.validation)
    loop = Loop(
        model=model,
        step=step,
        source=source,
        lengths=lengths,
        validate=lambda: judge.validate(validation, data.validation),
        metric=data.task.metric,
        settings=config.train,
        average=average,
        checkpoint=folder / CHECKPOINT,
        callbacks=_callbacks(config, data.task.metric, len(plans), folder),
    )
    size = sum(variable.value.shape.num_elements() for variable in model.trainable_variables)
    # Of pairs there are many combinations, more than anybody would read.
    shown = ", ".join(map(str, lengths)) if inputs.preprocessor.num_texts == 1 else f"{len(lengths)} shapes"
    share = computed_share(plans, source.lengths)
    say(
        f"{size:,} weights, {len(plans):,} batches an epoch, padded to {shown}: {share:.2f} times the real tokens"
    )
    return model, judge, loop.run(resume=config.resume)


def _strategy(config: FitConfig, task: Task) -> tf.distribute.Strategy:
    """Where to compute; raises InputError where replicas would each see too few rows."""
    if not task.whole_batches:
        return make_strategy(config.strategy)
    strategy = make_strategy("one" if config.strategy == "auto" else config.strategy)
    if strategy.num_replicas_in_sync > 1:
        raise InputError(
            "--strategy: wanted one for a loss that compares each row with all others of its batch, given"
            f" {config.strategy} with {strategy.num_replicas_in_sync} devices"
        )
    return strategy


def _step_and_average(
    config: FitConfig,
    task: Task,
    model: Any,
    trained: Any,
    strategy: tf.distribute.Strategy,
    batches: int,
    new_ngrams: bool,
) -> tuple[TrainingStep, WeightAverage | None]:
    """The training step of a run with so many batches an epoch; call it in the scope of the strategy.

    Trained are the variables of the model, or with a teacher of what learns beside it too.
    """
    optimizer = config.optimizer
    variables = trained.trainable_variables
    weights = [variable.value for variable in variables]
    steps = -(-batches // optimizer.accumulation_steps) * config.train.epochs
    rate = warmup_then_decay(
        optimizer.learning_rate or LEARNING_RATE,
        steps,
        round(optimizer.warmup_fraction * steps),
        optimizer.decay,
    )
    step = TrainingStep(
        trained,
        task.row_losses,
        AdamW(
            weights,
            rate,
            optimizer.weight_decay,
            row_rate=optimizer.embedding_rate or 1.0,
            courses=rate_courses(model, config.finetune, steps, variables, new_ngrams),
        ),
        strategy,
        jit_compile=_compiled(config.train.jit),
        clip_norm=optimizer.clip_norm or None,
        accumulation_steps=optimizer.accumulation_steps,
        loss_scale=LossScale() if config.precision == "float16" else None,
        forward=lambda features: task.forward(trained, features),
    )
    average = WeightAverage(weights, strategy, optimizer.ema_decay) if optimizer.ema_decay else None
    return step, average


def _compiled(jit: str) -> bool:
    """Whether XLA compiles the step; auto: on GPUs."""
    return jit == "on" or (jit == "auto" and bool(tf.config.list_logical_devices("GPU")))


def _callbacks(config: FitConfig, metric: str, batches: int, folder: Path) -> list[keras.callbacks.Callback]:
    callbacks: list[keras.callbacks.Callback] = [
        Progress(batches * config.train.epochs, metric),
        keras.callbacks.CSVLogger(str(folder / RUN_LOG), append=config.resume),
    ]
    if config.tensorboard:
        callbacks.append(keras.callbacks.TensorBoard(str(folder / "tensorboard")))
    return callbacks


def _judged(
    config: FitConfig,
    data: Data,
    inputs: Inputs,
    judge: Judge,
    validation: Source,
    before: BeforeCalibration | None,
) -> tuple[dict[str, Any], dict[str, Any]]:
    """The decision found on validation rows, and the scores of model and baseline."""
    task, labels, name = data.task, data.labels, data.judged_name
    answers = judge.answers(validation)
    decision = before.decision if before else task.decision(data.validation, labels, answers)
    metrics: dict[str, Any] = {
        "judged_on": name,
        "validation": task.scores(data.validation, labels, answers, decision),
    }
    if data.test is not None:
        answers = judge.answers(inputs.judged("test", task.targets(data.test, labels)))
    metrics[name] = scores = task.scores(data.judged, labels, answers, decision, intervals=True)
    if before:
        metrics["calibration"] = before.told(metrics)
        say(f"{name}: {described(before.calibration, before.scores[name], scores)}")
    value = scores[task.metric]
    say(f"{name}: {task.metric} {'is undefined for these rows' if value is None else f'{value:.4f}'}")
    if config.baseline:
        description, result = task.baseline(
            inputs.part("train"), inputs.part("validation"), inputs.part(name), labels, config.train.seed
        )
        metrics["baseline"] = {"description": description, **result}
        say(f"{task.baseline_name}: {description}")
        say(baseline.compare(scores, result, task.metric, task.baseline_name))
    return decision, metrics
