"""A model trained on the rows of a task: where it computes, what its step is, and how often it is judged."""

import dataclasses
import logging
from pathlib import Path
from typing import Any

import keras
import tensorflow as tf

from kmha.errors import InputError
from training.config.config import FitConfig, ResolvedConfig
from training.config.defaults import LEARNING_RATE, resolve_data_defaults
from training.config.encoder_shape import has_new_ngrams
from training.data.inputs import Inputs, Source
from training.data.length_buckets import computed_share
from training.data.load import Data
from training.distillation.task import trainable_part
from training.distributed.coordinator import SINGLE_WORKER, Coordinator
from training.engine.callbacks import EpochLog, ProgressBar
from training.engine.consistency import check_same_weights
from training.engine.ema import WeightAverage
from training.engine.layerwise_lr import freeze, learning_rate_schedules
from training.engine.loop import Loop, TrainingProgress, epoch_plans
from training.engine.model_init import StartingModel, build_initial_model
from training.engine.optimizer import AdamW, warmup_then_decay
from training.engine.train_step import TrainingStep, check_enough_rows, make_strategy
from training.evaluation.evaluator import Evaluator
from training.runs.checkpoint_folder import valid_checkpoints
from training.runs.run_folder import CHECKPOINT, RUN_LOG
from training.runtime.cpu_sharding import can_shard, num_shards
from training.runtime.memory_estimate import available_bytes, check_memory, encoder_configs
from training.runtime.mixed_precision import LossScale
from training.runtime.resource_usage import count_trainable_weights
from training.tasks.protocol import Task

logger = logging.getLogger("kmha")


def train(
    config: ResolvedConfig,
    data: Data,
    inputs: Inputs,
    validation: Source,
    folder: Path,
    start: StartingModel | None = None,
    coordinator: Coordinator = SINGLE_WORKER,
) -> tuple[Any, Evaluator, TrainingProgress]:
    """Trains the model of the data's task.

    Args:
        config: All settings; those left to the data are filled in.
        data: The parts of the data.
        inputs: Their tokens.
        validation: The validation rows, which pick the best weights.
        folder: For the checkpoint and logs.
        start: The model to go on with; None begins with a new one.
        coordinator: The workers that train together.

    Returns:
        The model with its best weights, its judge, and how the training went.
    """
    strategy = _strategy(config, data.task, coordinator)
    shards = num_shards() if can_shard(config, data.task) else 1
    training_sets = inputs.training_sets(
        data.task,
        data.train,
        data.labels,
        config.train.seed,
        full_shapes=_compiled(config.train.jit),
        divisor=strategy.num_replicas_in_sync // coordinator.count * shards,
    )
    source = training_sets.of(0, last=True)
    lengths = source.buckets([validation], config.train.buckets)
    plans = epoch_plans(source, lengths, config.train, 0)
    check_enough_rows(plans, config.train, strategy.num_replicas_in_sync, data.train.examples.origin)
    # Of large data all parts of an epoch are as long as the first, but for chance.
    batches = len(plans) * training_sets.per_epoch
    pairs = len(source.rows) if data.task.num_texts == 2 else 0
    config = resolve_data_defaults(config, data.task, source.text_lengths, batches, pairs)
    rounds = config.train.epochs * training_sets.per_epoch
    with strategy.scope():
        if start is not None:
            model = start.build()
        else:
            model = build_initial_model(config, data.task, source, inputs.preprocessor, data.labels)
        # What a GPU has free is TensorFlow's to know; there it says so itself.
        if not tf.config.list_logical_devices("GPU"):
            check_memory(encoder_configs(model), count_trainable_weights(model), plans, available_bytes())
        new_ngrams = has_new_ngrams(config)
        freeze(model, config.finetune.frozen_layers, new_ngrams)
        trained = trainable_part(data.task, model)
        step, average = _step_and_average(
            config, data.task, model, trained, strategy, batches, new_ngrams, shards
        )
    check_same_weights(coordinator, model.variables)
    evaluator = Evaluator(model, data.task, data.labels, lengths)
    evaluator.check(data.validation)
    loop = Loop(
        model=model,
        step=step,
        source=source,
        lengths=lengths,
        validate=lambda: coordinator.broadcast(
            "validation", lambda: evaluator.validate(validation, data.validation)
        ),
        metric=data.task.metric,
        settings=dataclasses.replace(
            config.train, epochs=rounds, patience=config.train.patience * training_sets.per_epoch
        ),
        average=average,
        checkpoint=folder / CHECKPOINT,
        callbacks=_callbacks(config, data.task.metric, batches, training_sets.per_epoch, folder),
        evaluate_first=start is not None,
        coordinator=coordinator,
        source_of=lambda number: training_sets.of(number, last=number + 1 == rounds),
    )
    if config.resume:
        # All of them: where the newest turns out to be damaged, every worker takes the one before it.
        for name in coordinator.broadcast(
            "checkpoints", lambda: [path.name for path in valid_checkpoints(loop.checkpoint)]
        ):
            coordinator.copy_from_chief(loop.checkpoint / name)
    # Of pairs there are many combinations, more than anybody would read.
    shown = ", ".join(map(str, lengths)) if inputs.preprocessor.num_texts == 1 else f"{len(lengths)} shapes"
    share = computed_share(plans, source.lengths)
    counted = f"{batches:,} batches an epoch, padded to {shown}: {share:.2f} times the real tokens"
    logger.info(f"{count_trainable_weights(model):,} weights, {counted}")
    return model, evaluator, loop.run(resume=config.resume)


def _strategy(
    config: FitConfig, task: Task, coordinator: Coordinator = SINGLE_WORKER
) -> tf.distribute.Strategy:
    """Where to compute; raises InputError where replicas would each see too few rows."""
    if coordinator.strategy is not None:
        if task.whole_batches:
            raise InputError(
                "--match.loss: expected one that scores each row by itself or within its list for several workers, got"
                " one that compares each row with all others of its batch"
            )
        return coordinator.strategy
    if not task.whole_batches:
        return make_strategy(config.strategy)
    strategy = make_strategy("one" if config.strategy == "auto" else config.strategy)
    if strategy.num_replicas_in_sync > 1:
        raise InputError(
            "--strategy: expected one for a loss that compares each row with all others of its batch, got"
            f" {config.strategy} with {strategy.num_replicas_in_sync} devices"
        )
    return strategy


def _step_and_average(
    config: ResolvedConfig,
    task: Task,
    model: Any,
    trained: Any,
    strategy: tf.distribute.Strategy,
    batches: int,
    new_ngrams: bool,
    shards: int,
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
            schedules=learning_rate_schedules(model, config.finetune, steps, variables, new_ngrams),
        ),
        strategy,
        jit_compile=_compiled(config.train.jit),
        clip_norm=optimizer.clip_norm or None,
        accumulation_steps=optimizer.accumulation_steps,
        loss_scale=LossScale() if config.precision == "float16" else None,
        forward=lambda features: task.forward(trained, features),
        shards=shards,
    )
    average = WeightAverage(weights, strategy, optimizer.ema_decay) if optimizer.ema_decay else None
    return step, average


def _compiled(jit: str) -> bool:
    """Whether XLA compiles the step; auto: on GPUs."""
    return jit == "on" or (jit == "auto" and bool(tf.config.list_logical_devices("GPU")))


def _callbacks(
    config: ResolvedConfig, metric: str, batches: int, parts: int, folder: Path
) -> list[keras.callbacks.Callback]:
    callbacks: list[keras.callbacks.Callback] = [
        ProgressBar(batches * config.train.epochs, metric, parts),
        EpochLog(folder / RUN_LOG, append=config.resume),
    ]
    if config.tensorboard:
        callbacks.append(keras.callbacks.TensorBoard(str(folder / "tensorboard")))
    return callbacks
