"""Prunes a run: removes the least important parts, fine-tunes, and writes the run with its scores before and after."""

import dataclasses
import logging
import math
import shutil
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from kmha.bundle.bundle import Bundle
from kmha.bundle.manifest import MODEL
from kmha.calibration import Calibration, calibrate
from kmha.errors import InputError, format_names
from kmha.input_files import read_json
from kmha.layers.initial_values import zeros_at_first
from training.cli.parser import parse
from training.config.config import DataSection, FewshotSection, FinetuneSection, FitConfig, task_section
from training.config.defaults import resolve_config
from training.data.load import Data, describe, load_data
from training.data.sources import file_source
from training.engine.trainer import StartingModel
from training.io.disk import to_json
from training.job.train_and_evaluate import FitResult, report_fit, train_and_evaluate
from training.pruning.importance import Block, EvaluationRows, Group, Importance, prunable_groups
from training.runs.run_folder import CONFIG, METRICS, RUN_LOG, RunContext
from training.runtime.round_robin import time_in_turns
from training.tasks.create import make_task

logger = logging.getLogger("kmha")

# Parts that stay: for each block of each group their ascending indices.
Selection = Sequence[Sequence[np.ndarray]]
TIMED_ROWS, TIMED_ROUNDS = 50, 5
BEFORE, CUT, AFTER = "before", "cut", "after"


@dataclasses.dataclass(frozen=True)
class PrunedModel:
    """A model without some of its parts."""

    build: Callable[[], Any]  # builds the model under the current dtype policy
    heads: dict[str, int]  # "before" and "after"
    rows: dict[str, int]  # feed-forward rows "before" and "after"


def prune_model(
    model: Any, groups: Sequence[Group], importance: Sequence[Importance], share: float
) -> PrunedModel:
    """Removes a share of the heads and of the feed-forward rows."""
    heads, head_counts = _select(groups, [each.heads for each in importance], share)
    rows, row_counts = _select(groups, [each.rows for each in importance], share)
    return PrunedModel(slice_model(model, groups, heads, rows), head_counts, row_counts)


def _select(
    groups: Sequence[Group], importance: Sequence[np.ndarray], share: float
) -> tuple[Selection, dict[str, int]]:
    rest = iter(importance)
    selection = select_parts([[next(rest) for _ in group.blocks] for group in groups], share)
    after = sum(len(block) for group in selection for block in group)
    return selection, {"before": sum(map(len, importance)), "after": after}


def select_parts(importance: Selection, share: float) -> list[list[np.ndarray]]:
    """Selects the parts of each block that stay.

    Blocks of a group share their size, so they lose the same number of parts, but each its own least important ones.
    At least the share of all parts is removed, less if each block has only one part left. The result, ascending indices
    of the parts that stay, is nested like the importance: for each group and block float [N], N the same in a group.
    """
    # The subtracted number keeps 0.7 of 10 parts at 7 despite binary fractions.
    to_remove = math.ceil(share * sum(len(block) for group in importance for block in group) - 1e-9)
    # Cost of each removal from a group: mean importance of the least important part left in each of its blocks.
    removals = [
        (float(cost), number)
        for number, group in enumerate(importance)
        for cost in np.mean([np.sort(block) for block in group], axis=0)[:-1]
    ]
    removed = [0] * len(importance)
    for _, number in sorted(removals):
        if to_remove <= 0:
            break
        removed[number] += 1
        to_remove -= len(importance[number])
    return [
        [np.sort(np.argsort(block, kind="stable")[count:]) for block in group]
        for group, count in zip(importance, removed, strict=True)
    ]


def count_weights(model: Any) -> tuple[int, int]:
    """Number of weights of a model, and of its blocks."""
    layers = [block.layer for group in prunable_groups(model) for block in group.blocks]
    return _count(model), sum(map(_count, layers))


def _count(layer: Any) -> int:
    # The state of random generators is not a weight.
    return sum(math.prod(each.shape) for each in layer.weights if "seed_generator" not in each.path)


def slice_model(model: Any, groups: Sequence[Group], heads: Selection, rows: Selection) -> Callable[[], Any]:
    """Returns a function that builds the smaller model under the current dtype policy."""
    changed: dict[int, np.ndarray] = {}
    for group, of_heads, of_rows in zip(groups, heads, rows, strict=True):
        for block, its_heads, its_rows in zip(group.blocks, of_heads, of_rows, strict=True):
            changed |= _sliced_weights(block, its_heads, its_rows)
    values = [changed.get(id(weights), weights.numpy()) for weights in model.weights]
    config = _sliced_config(model, groups, heads, rows)

    def build() -> Any:
        with zeros_at_first():
            smaller = type(model).from_config({**config, "dtype": keras.config.dtype_policy().name})
            smaller.build()
        for weights, value in zip(smaller.weights, values, strict=True):
            weights.assign(value)
        return smaller

    return build


def _sliced_weights(block: Block, heads: np.ndarray, rows: np.ndarray) -> dict[int, np.ndarray]:
    """The smaller weights of a block, by the id of the variable."""
    attention, network = block.layer.attention, block.layer.feed_forward
    kernel, output = attention.query_key_value_kernel.numpy(), attention.output_kernel.numpy()
    size, inner = attention.head_size, len(kernel)
    by_head = kernel.reshape(inner, 3, attention.num_heads, size)[:, :, heads]
    output = output.reshape(attention.num_heads, size, -1)[heads]
    found = [
        (attention.query_key_value_kernel, by_head.reshape(inner, -1)),
        (attention.output_kernel, output.reshape(len(heads) * size, -1)),
        (network.expand.kernel, network.expand.kernel.numpy()[:, rows]),
        (network.expand.bias, network.expand.bias.numpy()[rows]),
        (network.contract.kernel, network.contract.kernel.numpy()[rows]),
    ]
    if attention.use_bias:
        found.append((attention.query_key_value_bias, attention.query_key_value_bias.numpy()[:, heads]))
    return {id(weights): value for weights, value in found}


def _sliced_config(model: Any, groups: Sequence[Group], heads: Selection, rows: Selection) -> dict[str, Any]:
    """The constructor arguments of the smaller model, as `get_config` returns them."""
    configs = []
    for number, config in enumerate(model.encoder_configs.values()):
        sizes: dict[bool, list[tuple[int, int]]] = {False: [], True: []}
        for group, of_heads, of_rows in zip(groups, heads, rows, strict=True):
            if group.granularity == number:
                sizes[group.is_round].append((len(of_heads[0]), len(of_rows[0])))
        smaller = dataclasses.replace(config, layer_sizes=tuple(sizes[False]), round_sizes=tuple(sizes[True]))
        configs.append(dataclasses.asdict(smaller))
    arguments = model.get_config()
    if "encoders" in arguments:
        return arguments | {"encoders": dict(zip(model.encoder_configs, configs, strict=True))}
    return arguments | {"encoder": configs[0]}


def write_pruned_run(
    run: Path,
    pruned: PrunedModel,
    share: float,
    rows: EvaluationRows,
    config: FitConfig,
    command: str,
    folder: Path,
    scratch: Path,
) -> dict[str, Any]:
    """Fine-tunes a pruned model and writes its run folder.

    Returns:
        {"share", "heads", "feed_forward_rows", "weights", "block_weights", "bytes", "latency_ms": {"before", "after"},
        "scores": {"before", "cut", "after"}}, as JSON values; "cut" is before the fine-tuning.
    """
    bundle = rows.bundle
    scores = {
        BEFORE: rows.evaluator().scores(),
        CUT: rows.with_bundle(dataclasses.replace(bundle, model=pruned.build())).evaluator().scores(),
    }
    details = {name: bundle.details[name] for name in ("pretrained",) if name in bundle.details}

    def build_uncalibrated() -> Any:
        model = pruned.build()
        # Fine-tuning fits another calibration.
        calibrate(model, Calibration.of(bundle.details).inverse())
        return model

    start = StartingModel(bundle.preprocessor, bundle.labels, build_uncalibrated, details)
    fit_result, data = _fine_tune(config, start, folder, scratch)
    if bundle.abstain_below is not None:
        hint = "it belongs to the original model; see training.calibrate --precision"
        logger.info(f"abstain_below is removed, {hint}")
    if fit_result.metrics["best_epoch"] < 0:
        logger.info("fine-tuning did not improve the validation score: the weights stay as they were pruned")
    after: Bundle = fit_result.bundle
    scores[AFTER] = rows.with_bundle(after).evaluator().scores()
    result: dict[str, Any] = {"share": share, "heads": pruned.heads, "feed_forward_rows": pruned.rows}
    counts = zip(count_weights(bundle.model), count_weights(after.model), strict=True)
    for name, values in zip(("weights", "block_weights"), counts, strict=True):
        result[name] = dict(zip((BEFORE, AFTER), values, strict=True))
    after.details["pruned"] = {"run": run.resolve().name, "command": command, **result}
    after.save(folder)
    sizes = [(each / MODEL).stat().st_size for each in (run, folder)]
    source = rows.sample(TIMED_ROWS, 0).source
    plans = source.plans(source.buckets([], 1), 1, 1, None)
    times = latencies_ms([bundle.model, after.model], [source.batch(plan)["features"] for plan in plans])
    for name, values in (("bytes", sizes), ("latency_ms", times)):
        result[name] = dict(zip((BEFORE, AFTER), values, strict=True))
    result["scores"] = scores
    _add_comment(folder / CONFIG, run, share)
    metrics = fit_result.metrics | {"pruned": result}
    (folder / METRICS).write_text(to_json(metrics, indent=2) + "\n", "utf-8")
    if config.report:
        report_fit(RunContext(resolve_config(config), folder, scratch), data, fit_result, metrics, command)
    return result


def latencies_ms(models: Sequence[Any], features: Sequence[dict[str, np.ndarray]]) -> list[float]:
    """The median latency of each model for one row, in milliseconds, in TensorFlow, without tokenizing."""
    rows = [{name: tf.constant(values) for name, values in row.items()} for row in features]

    def calls(model: Any) -> list[Callable[[], Any]]:
        forward = tf.function(lambda row: model(row, training=False), reduce_retracing=True, autograph=False)
        return [lambda row=row: forward(row).numpy() for row in rows]

    by_model = {str(number): calls(model) for number, model in enumerate(models)}
    time_in_turns(by_model, 1)  # tracing
    seconds = time_in_turns(by_model, TIMED_ROUNDS)
    return [1000 * float(np.median(each)) for each in seconds.values()]


def _add_comment(path: Path, run: Path, share: float) -> None:
    """Writes above the settings that they alone do not make the run."""
    comment = (
        f"# Settings that fine-tuned a model which training.heads --prune {share:g} made of {run.name};\n"
        "# training.fit with these settings starts from an unpruned model.\n"
    )
    path.write_text(comment + path.read_text("utf-8"), "utf-8")


@dataclasses.dataclass(frozen=True)
class FineTuning:
    """Settings of the fine-tuning."""

    out: Path
    overwrite: bool
    train: Path | None
    epochs: int
    learning_rate: float


def fine_tuning_config(run: Path, fine_tuning: FineTuning) -> FitConfig:
    """The configuration of the run, without the settings of its initial weights.

    Raises InputError without config.toml, and if the run was trained on all rows that it would be validated on.
    """
    path = run / CONFIG
    if not path.is_file():
        raise InputError(f"{run}: expected {CONFIG}, the settings of the run, got none")
    config = parse(FitConfig, ["--config", str(path)], "python -m training.heads")
    data = config.data
    if fine_tuning.train is not None:
        data = dataclasses.replace(data, train=fine_tuning.train, tfds="")
    elif _is_cross_validated(run):
        raise InputError(
            f"{run}: expected a run with validation rows, got one of few labels that was trained on all of its rows;"
            " train it with --data.validation, or name other training rows with --train"
        )
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
        fewshot=FewshotSection(mode="off"),
        train=dataclasses.replace(config.train, epochs=fine_tuning.epochs),
        optimizer=dataclasses.replace(config.optimizer, learning_rate=fine_tuning.learning_rate),
    )


def _is_cross_validated(run: Path) -> bool:
    """Whether the run was trained on its validation rows; False without metrics.json."""
    path = run / METRICS
    fewshot = read_json(path).get("fewshot") if path.is_file() else None
    return isinstance(fewshot, dict) and bool(fewshot.get("cross_validated"))


def _check_files(data: DataSection) -> None:
    """Checks that the files still exist, before any long work."""
    for name, path in (("train", data.train), ("validation", data.validation), ("test", data.test)):
        if path is None:
            continue
        try:
            file_source(path, data.form)
        except InputError as error:
            hint = "; --train names other training rows" if name == "train" else f", the run's {name} rows"
            raise InputError(f"{error}{hint}") from error


def _fine_tune(
    config: FitConfig, start: StartingModel, folder: Path, scratch: Path
) -> tuple[FitResult, Data]:
    """Trains a model, evaluated on the validation rows of its run; test rows are only excluded from training.

    Raises InputError if the rows are invalid, or have labels that the model does not have.
    """
    config = resolve_config(config)
    data = load_data(config, make_task(config.task, task_section(config)), scratch)
    unknown = sorted(set(data.labels) - set(start.labels))
    if unknown:
        name = data.origins["train"]["name"]
        raise InputError(f"{name}: expected labels of the run, got also {format_names(unknown)}")
    for line in describe(data):
        logger.info(line)
    data = dataclasses.replace(data, labels=start.labels, test=None)
    # Pruning cannot be resumed, so its checkpoint goes to the scratch folder.
    unfinished = scratch / "unfinished"
    unfinished.mkdir()
    fit_result = train_and_evaluate(RunContext(config, unfinished, scratch), data, start)
    shutil.move(unfinished / RUN_LOG, folder / RUN_LOG)
    return fit_result, data
