"""TensorFlow graphs that take less time to trace and to start."""

import contextlib
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import keras
import tensorflow as tf

from kmha.layers.encoder_block import EncoderBlock
from kmha.models.encoder import blocks_called_by


def trace_once(function: Callable[[Any], Any]) -> Callable[[Any], Any]:
    """The function of one structure of tensors as a graph that is traced once, for batches of every size.

    XLA inside the function still compiles for each size. The function must not need AutoGraph.
    """
    graph = None

    def any_size(value: Any) -> tf.TensorSpec:
        value = tf.convert_to_tensor(value)
        return tf.TensorSpec([None] * value.shape.rank, value.dtype)

    def call(tensors: Any) -> Any:
        nonlocal graph
        if graph is None:
            signature = [tf.nest.map_structure(any_size, tensors)]
            graph = tf.function(function, input_signature=signature, autograph=False)
        return graph(tensors)

    return call


@contextlib.contextmanager
def without_graph_optimizer() -> Iterator[None]:
    """Leaves out TensorFlow's graph optimizer: steps are as fast without it, and the first one takes less time."""
    option = "disable_meta_optimizer"
    before = tf.config.optimizer.get_experimental_options().get(option, False)
    tf.config.optimizer.set_experimental_options({option: True})
    try:
        yield
    finally:
        tf.config.optimizer.set_experimental_options({option: before})


@contextlib.contextmanager
def blocks_traced_once(blocks: Iterable[EncoderBlock]) -> Iterator[None]:
    """Graphs that are traced inside have one graph for all blocks of a configuration, which gets their weights.

    With six blocks, the first training step takes about two thirds of the time.
    """
    # Here, since in a layer of 16 bits the values are rounded.
    values = {block: [variable.value for variable in block.variables] for block in blocks}
    graphs: dict[str, Any] = {}

    def call(block: EncoderBlock, x: Any, attention_mask: Any, **options: Any) -> Any:
        if tf.executing_eagerly() or options["return_attention_weights"] or block not in values:
            return block(x, attention_mask=attention_mask, **options)
        config = block.get_config()
        key = repr([{name: config[name] for name in config if name != "name"}, options])
        if key not in graphs:
            graphs[key] = tf.function(_stateless(block, options), autograph=False)
        x, seeds = graphs[key](values[block], x, attention_mask)
        for variable, seed in zip(_dropout_seeds(block), seeds, strict=True) if options["training"] else ():
            variable.assign(seed)
        return x

    with blocks_called_by(call):
        yield


def _dropout_seeds(block: EncoderBlock) -> list[Any]:
    """The variables that a call changes."""
    return [variable for variable in block.variables if "seed_generator" in variable.path]


def _stateless(block: EncoderBlock, options: dict[str, Any]) -> Callable[..., tuple[Any, list[Any]]]:
    """From the values of a block's variables, input and mask to output and next seeds of dropout."""

    def call(values: Any, x: Any, attention_mask: Any) -> tuple[Any, list[Any]]:
        mapping = list(zip(block.variables, values, strict=True))
        with keras.StatelessScope(state_mapping=mapping) as scope:
            x = block(x, attention_mask=attention_mask, **options)
            return x, [scope.get_current_value(variable) for variable in _dropout_seeds(block)]

    return call
