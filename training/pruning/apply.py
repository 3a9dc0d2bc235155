"""Removes the least important attention heads and feed-forward rows of a model."""

import dataclasses
import math
from collections.abc import Callable, Sequence
from typing import Any

import keras
import numpy as np

from training.pruning.importance import Importance
from training.pruning.prunable_blocks import Block, Group, prunable_groups

# Parts that stay: for each block of each group their ascending indices.
Selection = Sequence[Sequence[np.ndarray]]


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
