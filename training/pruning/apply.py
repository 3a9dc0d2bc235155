"""A model without its weakest heads and feed-forward rows."""

import dataclasses
import math
from collections.abc import Callable, Sequence
from typing import Any

import keras
import numpy as np

from training.pruning.importance import Importance
from training.pruning.prunable_blocks import Block, Group, prunable_groups


def kept_parts(groups: Sequence[Sequence[np.ndarray]], share: float) -> list[list[np.ndarray]]:
    """What stays of each block.

    The blocks of a group lose as many parts each, because they share a size; which ones, each has its own.

    Args:
        groups: Of each block of each group the worth of its parts, float [N]; N is the same in a group.
        share: Of all parts, to be removed at least, in (0, 1); fewer where each block has one part left.

    Returns:
        As `groups`, the numbers of the parts that stay, ascending.
    """
    # Of 10 parts .7 are 7, whatever binary fractions make of it.
    expected = math.ceil(share * sum(len(block) for group in groups for block in group) - 1e-9)
    # What the next step of each group costs: the mean worth of the weakest part that each of its blocks still has.
    steps = [
        (float(cost), number)
        for number, group in enumerate(groups)
        for cost in np.mean([np.sort(block) for block in group], axis=0)[:-1]
    ]
    lost = [0] * len(groups)
    for _, number in sorted(steps):
        if expected <= 0:
            break
        lost[number] += 1
        expected -= len(groups[number])
    return [
        [np.sort(np.argsort(block, kind="stable")[count:]) for block in group]
        for group, count in zip(groups, lost, strict=True)
    ]


Counts = dict[str, int]


@dataclasses.dataclass(frozen=True)
class Cut:
    """A model that has lost parts.

    Attributes:
        build: Makes it, under the dtype policy that it is called under.
        heads: How many it has, "before" and "after".
        rows: The same of feed-forward rows.
    """

    build: Callable[[], Any]
    heads: Counts
    rows: Counts


def cut_model(model: Any, groups: Sequence[Group], found: Sequence[Importance], share: float) -> Cut:
    """A model without a share of its heads and of its feed-forward rows.

    Args:
        model: A built one.
        groups: Its blocks.
        found: What the parts of each block are worth, in the order of the groups' blocks.
        share: In (0, 1).
    """
    heads, head_counts = _kept(groups, [each.heads for each in found], share)
    rows, row_counts = _kept(groups, [each.rows for each in found], share)
    return Cut(sliced(model, groups, heads, rows), head_counts, row_counts)


def _kept(groups: Sequence[Group], worth: Sequence[Any], share: float) -> tuple[Any, Counts]:
    rest = iter(worth)
    kept = kept_parts([[next(rest) for _ in group.blocks] for group in groups], share)
    after = sum(len(block) for group in kept for block in group)
    return kept, {"before": sum(map(len, worth)), "after": after}


def weight_counts(model: Any) -> tuple[int, int]:
    """How many weights a model has, and how many of them its blocks have."""
    layers = [block.layer for group in prunable_groups(model) for block in group.blocks]
    return _numbers(model), sum(map(_numbers, layers))


def _numbers(layer: Any) -> int:
    # Random generators are no weights.
    return sum(math.prod(each.shape) for each in layer.weights if "seed_generator" not in each.path)


Kept = Sequence[Sequence[np.ndarray]]


def sliced(model: Any, groups: Sequence[Group], heads: Kept, rows: Kept) -> Callable[[], Any]:
    """What makes the smaller model, under the dtype policy that it is called under.

    Args:
        model: A built one, whose weights are read now.
        groups: Its blocks.
        heads: Of each block of each group the numbers of the heads that stay, ascending.
        rows: The same of the feed-forward rows.
    """
    cuts: dict[int, np.ndarray] = {}
    for group, of_heads, of_rows in zip(groups, heads, rows, strict=True):
        for block, its_heads, its_rows in zip(group.blocks, of_heads, of_rows, strict=True):
            cuts |= _cuts(block, its_heads, its_rows)
    values = [cuts.get(id(weights), weights.numpy()) for weights in model.weights]
    settings = _smaller_settings(model, groups, heads, rows)

    def build() -> Any:
        smaller = type(model).from_config({**settings, "dtype": keras.config.dtype_policy().name})
        smaller.build()
        for weights, value in zip(smaller.weights, values, strict=True):
            weights.assign(value)
        return smaller

    return build


def _cuts(block: Block, heads: np.ndarray, rows: np.ndarray) -> dict[int, np.ndarray]:
    """The weights of a block that change, by the id of the variable."""
    attention, network = block.layer.attention, block.layer.feed_forward
    kernel, output = attention.query_key_value_kernel.numpy(), attention.output_kernel.numpy()
    size, inner = attention.head_size, len(kernel)
    by_head = kernel.reshape(inner, 3, attention.num_heads, size)
    by_head, output = by_head[:, :, heads], output.reshape(attention.num_heads, size, -1)[heads]
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


def _smaller_settings(model: Any, groups: Sequence[Group], heads: Kept, rows: Kept) -> dict[str, Any]:
    """The constructor's arguments of the smaller model, as `get_config` gives them."""
    configs = []
    for number, config in enumerate(model.encoder_configs.values()):
        sizes: dict[bool, list[tuple[int, int]]] = {False: [], True: []}
        for group, of_heads, of_rows in zip(groups, heads, rows, strict=True):
            if group.granularity == number:
                sizes[group.is_round].append((len(of_heads[0]), len(of_rows[0])))
        made = dataclasses.replace(config, layer_sizes=tuple(sizes[False]), round_sizes=tuple(sizes[True]))
        configs.append(dataclasses.asdict(made))
    settings = model.get_config()
    if "encoders" in settings:
        return settings | {"encoders": dict(zip(model.encoder_configs, configs, strict=True))}
    return settings | {"encoder": configs[0]}
