import keras
import numpy as np
import pytest
import tensorflow as tf

from tests.training.tiny_runs import distance, make_batch, make_step, tiny_model, trainable
from training.losses.classification import softmax_cross_entropy
from training.runtime.mixed_precision import POLICIES, LossScale, all_finite

ONE = tf.distribute.get_strategy()


@pytest.fixture
def policy(request):
    before = keras.config.dtype_policy()
    keras.config.set_dtype_policy(POLICIES[request.param])
    yield request.param
    keras.config.set_dtype_policy(before)


def values(variables) -> list[np.ndarray]:
    return [variable.numpy() for variable in variables]


def test_all_finite():
    assert all_finite(tf.constant([1.0, 2.0]))
    assert not all_finite(tf.constant([1.0, np.inf]))
    assert not all_finite(tf.constant(np.nan))


def test_loss_scale_halves_at_once_and_doubles_after_a_while():
    scale = LossScale(initial=8.0, growth_steps=3)
    seen = []
    for finite in (False, True, True, True, True, False, True, True, True):
        scale.adjust(ONE, tf.constant(finite))
        seen.append(float(scale.value()))
    assert seen == [4, 4, 4, 8, 8, 4, 4, 4, 8]


def test_loss_scale_stays_between_its_bounds():
    low, high = LossScale(initial=1.0), LossScale(initial=2.0**24, growth_steps=1)
    low.adjust(ONE, tf.constant(False))
    high.adjust(ONE, tf.constant(True))
    assert (float(low.value()), float(high.value())) == (1.0, 2.0**24)


@pytest.mark.parametrize("policy", ["bfloat16", "float16"], indirect=True)
def test_tables_keep_sparse_gradients_and_float32_weights(policy):
    model = tiny_model()
    batch = make_batch(np.random.default_rng(0), 4, 4, 8)
    with tf.GradientTape() as tape:
        loss = tf.reduce_sum(softmax_cross_entropy(batch["targets"], model(batch["features"], training=True)))
    gradients = tape.gradient(loss, trainable(model))
    sliced = {v.path for v, g in zip(model.trainable_variables, gradients, strict=True) if is_sliced(g)}
    tables = {v.path for v in model.trainable_variables if v.path.endswith("embeddings")}
    assert sliced and sliced == {path for path in tables if "position" not in path}
    assert all(v.dtype == tf.float32 for v in trainable(model))


def is_sliced(gradient) -> bool:
    return isinstance(gradient, tf.IndexedSlices)


@pytest.mark.parametrize(
    ("policy", "jit_compile"), [("bfloat16", False), ("float16", True)], indirect=["policy"]
)
def test_small_set_is_overfitted(policy, jit_compile):
    model = tiny_model()
    step = make_step(
        model, jit_compile=jit_compile, loss_scale=LossScale(2.0**8) if policy == "float16" else None
    )
    batch = make_batch(np.random.default_rng(0), 8, 8, 8)
    losses = [float(step(batch)["loss"]) / 8 for _ in range(30)]
    assert losses[-1] < losses[0] / 4


@pytest.mark.parametrize("policy", ["float16"], indirect=True)
def test_an_overflow_skips_the_step_and_halves_the_scale(policy):
    model = tiny_model()
    scale = LossScale(initial=2.0**23)
    step = make_step(model, loss_scale=scale)
    batch = make_batch(np.random.default_rng(0), 8, 8, 8)
    before = values(trainable(model))
    step(batch)
    assert distance(before, values(trainable(model))) == 0
    assert step.optimizer.steps_done == 0
    assert all(not mean.numpy().any() for mean in step.optimizer.means)
    assert float(scale.value()) == 2.0**22
    scale.factor.assign(2.0**6)
    step(batch)
    assert distance(before, values(trainable(model))) > 1e-4
    assert step.optimizer.steps_done == 1
    assert float(scale.value()) == 2.0**6


@pytest.mark.parametrize("policy", ["float16"], indirect=True)
def test_the_scale_does_not_change_the_step(policy):
    batch = make_batch(np.random.default_rng(0), 8, 8, 8)
    results = []
    for factor in (2.0**4, 2.0**8):
        keras.utils.set_random_seed(1)
        model = tiny_model()
        make_step(model, loss_scale=LossScale(factor))(batch)
        results.append(values(trainable(model)))
    # Adam divides by the size of a gradient, so rounded ones of size zero may still differ.
    assert np.mean([np.abs(a - b).mean() for a, b in zip(*results, strict=True)]) < 1e-4
