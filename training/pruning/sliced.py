"""A model without some of its heads and feed-forward rows: its weights are cut, nothing is masked."""

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any

import keras
import numpy as np

from training.pruning.blocks import Block, Group

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
