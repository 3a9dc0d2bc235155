"""Trains the model of a task: distribution strategy, initial model, training step, loop and checkpoints."""

import dataclasses
import functools
import logging
import time
from collections.abc import Callable, Sequence
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from kmha.bundle.bundle import parts_of
from kmha.errors import InputError
from kmha.layers.initial_values import zeros_at_first
from kmha.pretrained.checkpoint import Checkpoint
from kmha.pretrained.weights import assign_weights
from kmha.text.vocabulary import Vocabulary
from kmha.text.word_vectors import assign_vectors, read_vectors
from training.config.config import NO_ENCODER, ResolvedConfig
from training.config.defaults import (
    LEARNING_RATE,
    encoder_config,
    has_new_ngrams,
    learns_residual,
    left_out_share,
    resolve_data_defaults,
    resolve_token_dropout,
)
from training.data.inputs import Inputs, Source
from training.data.length_buckets import computed_share
from training.data.load import Data
from training.distillation.task import trainable_part
from training.distributed.coordinator import SINGLE_WORKER, Coordinator
from training.engine.consistency import check_same_weights
from training.engine.loop import EpochLog, Loop, ProgressBar, TrainingProgress, epoch_plans
from training.engine.optimizer import AdamW, WeightAverage, freeze, learning_rate_schedules, warmup_then_decay
from training.engine.token_vectors import cooccurrence_vectors
from training.engine.train_step import StrategyName, TrainingStep, check_enough_rows, make_strategy
from training.evaluation.evaluator import Evaluator
from training.linear.fit import MAX_LABELS, ResidualLoss, out_of_fold_logits
from training.runs.checkpoint_folder import valid_checkpoints
from training.runs.run_folder import CHECKPOINT, RUN_LOG, RunContext
from training.runtime.cpu_sharding import can_shard, num_shards
from training.runtime.memory_estimate import (
    available_bytes,
    check_memory,
    check_model_memory,
    encoder_configs,
)
from training.runtime.mixed_precision import LossScale
from training.runtime.resource_usage import count_trainable_weights
from training.tasks.protocol import Task

logger = logging.getLogger("kmha")


@dataclasses.dataclass(frozen=True)
class StartingModel:
    """An existing model to train further, in place of a new one."""

    preprocessor: Any
    labels: list[str]  # in the order of its outputs
    build: Callable[[], Any]  # called under the dtype policy and in the scope of the strategy
    details: dict[str, Any]  # JSON values to add to its bundle


def train(
    context: RunContext,
    data: Data,
    inputs: Inputs,
    validation: Source,
    starting_model: StartingModel | None = None,
) -> tuple[Evaluator, TrainingProgress]:
    """Trains the model of the data's task; returns its evaluator, which has the best weights, and the progress."""
    config, coordinator, task = context.config, context.coordinator, data.task
    strategy = _make_strategy(config.strategy, task, coordinator)
    shards = num_shards() if can_shard(config, task) else 1
    source_of = inputs.training_sets(
        task,
        data.train,
        data.labels,
        config.train.seed,
        full_shapes=_uses_xla(config),
        divisor=strategy.num_replicas_in_sync // coordinator.count * shards,
    )
    source = source_of(0, True)
    config = resolve_token_dropout(config, task, source.text_lengths)
    left_out = left_out_share(config) if starting_model is None else 0.0

    def shortened(part: Any, number: int) -> Source:
        return part.without_tokens(left_out, [config.train.seed, number]) if left_out else part

    trained = shortened(source, 0)
    lengths = trained.buckets([validation], config.train.buckets)
    plans = epoch_plans(trained, lengths, config.train, 0)
    check_enough_rows(plans, config.train, strategy.num_replicas_in_sync, data.train.examples.origin)
    # Large data: every part of an epoch has about as many batches as the first.
    batches = len(plans) * inputs.per_epoch
    pairs = len(source.rows) if task.traits.num_texts == 2 else 0
    config = resolve_data_defaults(config, task, source.text_lengths, batches, pairs, len(data.labels))
    rounds = config.train.epochs * inputs.per_epoch
    linear = refitted = None
    if config.encoder.linear and starting_model is None:
        linear, refitted = _fit_linear_path(config, data, inputs.preprocessor, source, validation)
    with strategy.scope():
        if starting_model is not None:
            model = starting_model.build()
            if getattr(model, "linear", None) is not None and data.holds_out_validation:
                logger.info(
                    "validation scores are too high: the run's linear path was also fitted on these rows"
                )
        else:
            vectors = _initial_vectors(context, config, source)
            model = build_initial_model(
                config, task, source, inputs.preprocessor, data.labels, linear, vectors
            )
        # On a GPU TensorFlow's own out-of-memory error has the details.
        if not tf.config.list_logical_devices("GPU"):
            check_memory(encoder_configs(model), count_trainable_weights(model), plans, available_bytes())
        freeze(model, config.finetune.frozen_layers, has_new_ngrams(config))
        row_losses = task.row_losses
        if (
            linear is not None
            and config.checkpoint is None
            and learns_residual(task, len(source.rows))
            and inputs.per_epoch == 1
        ):
            groups = data.groups if data.summary.near_copies else None
            logits = out_of_fold_logits(linear, source, config.train.seed, groups)
            row_losses = ResidualLoss(task, source.targets, logits)
            source.targets = row_losses.targets
        step, average = _make_step(config, task, row_losses, model, strategy, batches, shards)
    check_same_weights(coordinator, model.variables)
    evaluator = Evaluator(model, task, data.labels, lengths)
    evaluator.check_metric_is_defined(data.validation)
    loop = Loop(
        model=model,
        step=step,
        source_of=lambda number: shortened(source_of(number, number + 1 == rounds), number),
        lengths=lengths,
        validate=lambda: coordinator.broadcast(
            "validation", lambda: evaluator.validate(validation, data.validation)
        ),
        metric=task.metric,
        loss_terms=task.loss_terms(data.labels),
        settings=dataclasses.replace(
            config.train, epochs=rounds, patience=config.train.patience * inputs.per_epoch
        ),
        average=average,
        checkpoint=context.folder / CHECKPOINT,
        callbacks=_make_callbacks(context, config, task.metric, batches, inputs.per_epoch),
        evaluate_first=starting_model is not None,
        coordinator=coordinator,
    )
    if config.resume:
        # All checkpoints: if the newest is damaged, every worker reads the one before it.
        for name in coordinator.broadcast(
            "checkpoints", lambda: [path.name for path in valid_checkpoints(loop.checkpoint)]
        ):
            coordinator.copy_from_chief(loop.checkpoint / name)
    # Pairs have too many combinations of lengths to list.
    shown = ", ".join(map(str, lengths)) if inputs.preprocessor.num_texts == 1 else f"{len(lengths)} shapes"
    logger.info(
        f"{count_trainable_weights(model):,} weights, {batches:,} batches per epoch, padded to {shown}:"
        f" {computed_share(plans, trained.lengths):.2f} times the real tokens"
    )
    if config.encoder.size == NO_ENCODER:
        if linear is None:
            expected = f"at most {MAX_LABELS:,} labels and n-grams that occur in several texts"
            if config.task == "match":
                expected = "training pairs with different labels, got one label"
            raise InputError(f"--encoder.size none: expected {expected}")
        progress = TrainingProgress(best_epoch=0)
    else:
        progress = loop.run(resume=config.resume)
    if linear is not None:
        evaluator = _join_paths(config, data, evaluator, validation, linear, refitted)
    return evaluator, progress


def _fit_linear_path(
    config: ResolvedConfig, data: Data, preprocessor: Any, source: Source, validation: Source
) -> tuple[Any, Any]:
    """The linear path that is fitted on the training rows, and the one that is fitted on the validation rows too.

    Both are None if the task has none; the second also if validation rows have a file of their own.
    """
    alone, started = config.encoder.size == NO_ENCODER, time.monotonic()
    linear = data.task.fit_linear_path(
        source, validation, data.labels, preprocessor, config.train.seed, alone
    )
    if linear is None:
        return None, None
    logger.info(f"linear path: {linear.description}, {time.monotonic() - started:.1f} s")
    if config.checkpoint is not None:
        linear = dataclasses.replace(linear, is_base=False)
    refitted = linear.refit((source, validation), config.train.seed) if data.holds_out_validation else None
    return linear, refitted


def _join_paths(
    config: ResolvedConfig, data: Data, evaluator: Evaluator, validation: Source, linear: Any, refitted: Any
) -> Evaluator:
    """Scales both paths of the trained model on the validation rows; the evaluator of the result.

    The model gets the refitted linear path, if there is one.
    """
    alone = config.encoder.size == NO_ENCODER
    outputs = None if alone else evaluator.raw_outputs(validation)
    factors, outputs = data.task.join_paths(evaluator.model, linear, outputs, validation)
    if refitted is not None or (config.task != "tag" and config.precision == "float32"):
        # The validation rows are not predicted again. If the path is refitted on them, calibration and thresholds
        # depend on these logits of models that were not trained on a row.
        evaluator = evaluator.with_outputs(validation, outputs)
    if config.task != "tag" and not np.any(factors[0]):
        # A checkpoint's encoder may need no path.
        evaluator = dataclasses.replace(evaluator, model=evaluator.model.without_linear_path())
    elif refitted is not None:
        if config.task == "classify" and refitted.ngrams is not linear.ngrams:
            evaluator = dataclasses.replace(evaluator, model=refitted.copy_into(evaluator.model, factors[0]))
        else:
            refitted.assign(evaluator.model, factors[0])
    evaluator.linear_paths = linear, refitted or linear
    if alone:
        return evaluator
    both = evaluator.validate(validation, data.validation)
    path = "linear path" if getattr(linear, "network", None) is None else "linear path and its network"
    logger.info(
        f"both paths: {factors[0]:.2f} times the {path}, {np.max(factors[1]):.2f} times the encoder, "
        + ", ".join(f"val_{name} {value:.3f}" for name, value in both.items())
    )
    if not np.any(factors[1]):
        has_hint = config.task != "tag" and config.checkpoint is None
        hint = "; --encoder.size none trains it alone" if has_hint else ""
        logger.info(
            f"the model is its {path}: the encoder lowers the validation loss by no more than the"
            f" standard error{hint}"
        )
    elif not np.any(factors[0]):
        logger.info(
            "the model is its encoder: the linear path lowers the validation loss by no more than the standard error"
        )
    return evaluator


def _make_strategy(
    name: StrategyName, task: Task, coordinator: Coordinator = SINGLE_WORKER
) -> tf.distribute.Strategy:
    """The distribution strategy; raises InputError if the loss needs whole batches and several replicas train."""
    if coordinator.strategy is not None:
        if task.traits.needs_whole_batches:
            raise InputError(
                "--match.loss: expected a loss of each row or of each list of candidates, since several workers train,"
                " got one that compares each row with all others of its batch"
            )
        return coordinator.strategy
    if not task.traits.needs_whole_batches:
        return make_strategy(name)
    strategy = make_strategy("one" if name == "auto" else name)
    if strategy.num_replicas_in_sync > 1:
        raise InputError(
            "--strategy: expected one, since the loss compares each row with all others of its batch, got"
            f" {name} with {strategy.num_replicas_in_sync} devices"
        )
    return strategy


def _make_step(
    config: ResolvedConfig,
    task: Task,
    row_losses: Callable,
    model: Any,
    strategy: tf.distribute.Strategy,
    batches: int,
    shards: int,
) -> tuple[TrainingStep, WeightAverage | None]:
    """The training step of a run with so many batches per epoch; call it in the scope of the strategy."""
    # With a teacher, projections may be trained in addition to the model.
    trained = trainable_part(task, model)
    optimizer = config.optimizer
    variables = trained.trainable_variables
    weights = [variable.value for variable in variables]
    steps = -(-batches // optimizer.accumulation_steps) * config.train.epochs
    learning_rate = warmup_then_decay(
        optimizer.learning_rate or LEARNING_RATE,
        steps,
        round(optimizer.warmup_fraction * steps),
        optimizer.decay,
    )
    schedules = learning_rate_schedules(model, config.finetune, steps, variables, has_new_ngrams(config))
    step = TrainingStep(
        trained,
        row_losses,
        AdamW(
            weights,
            learning_rate,
            optimizer.weight_decay,
            row_factor=optimizer.embedding_rate or 1.0,
            schedules=schedules,
        ),
        strategy,
        jit_compile=_uses_xla(config),
        clip_norm=optimizer.clip_norm or None,
        accumulation_steps=optimizer.accumulation_steps,
        loss_scale=LossScale() if config.precision == "float16" else None,
        forward=lambda features: task.forward(trained, features),
        shards=shards,
    )
    average = WeightAverage(weights, strategy, optimizer.ema_decay) if optimizer.ema_decay else None
    return step, average


def _uses_xla(config: ResolvedConfig) -> bool:
    """Whether XLA compiles the step; "auto" compiles it on GPUs."""
    jit = config.train.jit
    return jit == "on" or (jit == "auto" and bool(tf.config.list_logical_devices("GPU")))


def _make_callbacks(
    context: RunContext, config: ResolvedConfig, metric: str, batches: int, parts: int
) -> list[keras.callbacks.Callback]:
    epochs = config.train.epochs
    callbacks: list[keras.callbacks.Callback] = [EpochLog(context.folder / RUN_LOG, append=config.resume)]
    if logger.isEnabledFor(logging.INFO):
        callbacks.append(ProgressBar(batches * epochs, metric, epochs, parts))
    if config.tensorboard:
        callbacks.append(keras.callbacks.TensorBoard(str(context.folder / "tensorboard")))
    return callbacks


def _initial_vectors(
    context: RunContext, config: ResolvedConfig, source: Source
) -> Callable[[int, int, int], np.ndarray] | None:
    """Makes vectors of granularity, number of tokens and width from the training texts, the same on all workers.

    None for other tasks than texts and pairs, without an encoder, and if embeddings come from a checkpoint or a file.
    """
    encoder = config.encoder
    is_given = config.checkpoint is not None or encoder.vectors is not None or encoder.size == NO_ENCODER
    if is_given or config.task not in ("classify", "match"):
        return None
    folder = context.scratch / "token-vectors"
    folder.mkdir(exist_ok=True)

    # Two encoders of a granularity start from the same vectors.
    @functools.cache
    def vectors(granularity: int, size: int, width: int) -> np.ndarray:
        started, file = time.monotonic(), folder / f"{granularity}-{width}.npy"
        if context.coordinator.is_chief:
            texts, tokens = source.different_ids(granularity), int(source.text_lengths.sum())
            np.save(file, cooccurrence_vectors(texts, size, width, tokens, config.train.seed))
        # Rounding differs between machines, and all workers start from the same weights.
        context.coordinator.copy_from_chief(folder)
        logger.info(f"token vectors from co-occurrence: {time.monotonic() - started:.1f} s")
        return np.load(file, allow_pickle=False)

    return vectors


def build_initial_model(
    config: ResolvedConfig,
    task: Task,
    source: Source,
    preprocessor: Any,
    labels: Sequence[str],
    linear: Any = None,
    token_vectors: Callable[[int, int, int], np.ndarray] | None = None,
) -> Any:
    """Builds the model of a task and initializes it; raises InputError if the word vectors cannot be used.

    `token_vectors`: gives initial embeddings, float32 [V, D], of a granularity, V and D; rows of zeros are not used.
    """
    parts = parts_of(preprocessor)
    encoders = {
        name: task.encoder(encoder_config(config, len(part.vocabulary), part.unknown_id))
        for name, part in parts.items()
    }
    if not tf.config.list_logical_devices("GPU"):
        check_model_memory(list(encoders.values()), available_bytes())
    checkpoint = config.checkpoint
    if checkpoint is None:
        model = task.build_model(encoders, labels, linear)
    else:
        vocabulary = next(iter(parts.values())).vocabulary
        model = _pretrained_model(lambda: task.build_model(encoders, labels, linear), checkpoint, vocabulary)
    if linear is not None:
        linear.assign(model)
    has_ngram_vocabulary = checkpoint is not None and bool(checkpoint.config.ngram_buckets)
    task.initialize(model, source)
    for index, (name, part) in enumerate(parts.items()):
        suffix = f" ({name})" if len(parts) > 1 else ""
        for encoder in model.encoders_of(index):
            ngrams = encoder.embedding.ngrams
            if ngrams is not None and not has_ngram_vocabulary:
                counts = zip(
                    encoders[name].ngram_orders, ngrams.adapt(source.different_ids(index)), strict=True
                )
                shown = ", ".join(f"{count:,} of {order} tokens" for order, count in counts)
                logger.info(f"n-gram vocabulary{suffix}: {shown}")
            if token_vectors is not None:
                table = encoder.embedding.tokens.embeddings
                rows = token_vectors(index, *table.shape)
                assign_vectors(table, {int(token): rows[token] for token in np.flatnonzero(rows.any(axis=1))})
            if config.encoder.vectors is not None:
                vectors = read_vectors(
                    config.encoder.vectors, part.vocabulary, encoders[name].hidden_dim, part.lower_case
                )
                assign_vectors(encoder.embedding.tokens.embeddings, vectors)
                total = len(part.vocabulary)
                logger.info(
                    f"word vectors{suffix}: {len(vectors):,} of {total:,} tokens ({len(vectors) / total:.1%})"
                )
    return model


def _pretrained_model(build: Callable[[], Any], checkpoint: Checkpoint, vocabulary: Vocabulary) -> Any:
    """A new model with the checkpoint's weights in its encoders."""
    started = time.monotonic()
    weights = checkpoint.read_weights()
    # A pruned vocabulary has some of the checkpoint's tokens.
    rows = [checkpoint.vocabulary.id_of(token) for token in vocabulary.tokens]

    def assign(model: Any) -> bool:
        """Whether the checkpoint has all weights that have random initial values."""
        missing = [
            assign_weights(encoder, weights, checkpoint.config.num_layers, rows)
            for encoder in model.encoders_of(0)
        ]
        return all("/ngrams/" in path for paths in missing for path in paths)

    with zeros_at_first():
        model = build()
    if not assign(model):
        model = build()
        assign(model)
    for kernel in model.additions:
        # Inputs that the checkpoint was not trained with start at zero.
        kernel.assign(np.zeros(kernel.shape, np.float32))
    logger.info(f"loaded {checkpoint.origin} in {time.monotonic() - started:.1f} s")
    return model
