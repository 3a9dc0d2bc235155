"""Graphs that are traced once, as traced, and shared by the blocks of an encoder, compute the same."""

import dataclasses

import keras
import numpy as np
import pytest
import tensorflow as tf

from kmha.models.classifier import TextClassifier
from tests.training.tiny_runs import CONFIG, LABELS, make_batch, make_step
from training.engine.optimizer import encoder_blocks
from training.runtime import traced
from training.runtime.traced import blocks_traced_once, trace_once, without_graph_optimizer


@pytest.mark.parametrize("before", [None, False, True])
def test_graph_optimizer_is_left_out_within_the_block_only(before):
    options, name = tf.config.optimizer, "disable_meta_optimizer"
    if before is not None:
        options.set_experimental_options({name: before})
    try:
        with pytest.raises(ZeroDivisionError), without_graph_optimizer():
            assert options.get_experimental_options()[name]
            raise ZeroDivisionError
        assert options.get_experimental_options()[name] == bool(before)
    finally:
        options.set_experimental_options({name: False})


def _trained(shared: bool, **changes) -> tuple[list[np.ndarray], np.ndarray]:
    """All variables after three steps with dropout, and outputs after them."""
    keras.utils.set_random_seed(1)
    settings = {"num_layers": 3, "dropout": 0.2, "attention_dropout": 0.2, **changes}
    model = TextClassifier(dataclasses.replace(CONFIG, **settings), LABELS)
    model.build()
    random = np.random.default_rng(0)
    batches = [make_batch(random, 6, 6, length) for length in (9, 12, 5)]
    predict = trace_once(lambda features: model(features, training=False))
    step = make_step(model)
    with blocks_traced_once(encoder_blocks(model) if shared else []):
        for batch in batches:
            step(batch)
        outputs = predict(batches[0]["features"])
    return [variable.numpy() for variable in model.variables], outputs.numpy()


def _check_that_sharing_changes_nothing(graphs, **changes) -> None:
    expected, outputs = _trained(shared=False, **changes)
    assert not graphs
    found, shared_outputs = _trained(shared=True, **changes)
    for one, other in zip([*expected, outputs], [*found, shared_outputs], strict=True):
        np.testing.assert_allclose(other, one, rtol=0, atol=1e-6)


@pytest.fixture
def graphs(monkeypatch):
    """The blocks that were traced with values for their weights, and in training or not."""
    found, stateless = [], traced._stateless

    def record(block, options):
        call = stateless(block, options)

        def traced_call(*arguments):
            found.append((block.name, options["training"]))
            return call(*arguments)

        return traced_call

    monkeypatch.setattr(traced, "_stateless", record)
    return found


@pytest.mark.parametrize("policy", ["float32", "mixed_bfloat16"])
def test_blocks_of_a_configuration_have_one_graph_and_their_own_weights_and_dropout(graphs, policy):
    keras.config.set_dtype_policy(policy)
    try:
        _check_that_sharing_changes_nothing(graphs)
    finally:
        keras.config.set_dtype_policy("float32")
    assert graphs == [("block_0", True), ("block_0", False)]


def test_blocks_of_different_sizes_have_different_graphs(graphs):
    sizes = ((2, 32), (1, 16), (2, 32))
    _check_that_sharing_changes_nothing(graphs, layer_sizes=sizes, head_dim=8)
    assert [name for name, training in graphs if training] == ["block_0", "block_1"]


def test_eager_calls_and_attention_weights_share_no_graph(graphs):
    model = TextClassifier(dataclasses.replace(CONFIG, num_layers=2), LABELS)
    model.build()
    features = make_batch(np.random.default_rng(0), 3, 3, 8)["features"]
    expected = model(features)
    _, weights = model(features, return_attention_weights=True)
    with blocks_traced_once(encoder_blocks(model)):
        np.testing.assert_array_equal(model(features), expected)
        attention = trace_once(lambda values: model(values, return_attention_weights=True)[1])(features)
    assert not graphs
    for one, other in zip(weights, attention, strict=True):
        np.testing.assert_allclose(other, one, rtol=0, atol=1e-6)
