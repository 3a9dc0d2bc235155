import json
import subprocess
import sys
from pathlib import Path

import keras
import numpy as np
import pytest
import tensorflow as tf

from kmha.errors import InputError
from tests.training.tiny_runs import distance, make_batch, make_step, tiny_model, trainable
from training.config.config import TrainSection
from training.data.length_buckets import BatchPlan
from training.engine.train_step import check_enough_rows, make_strategy

ROOT = Path(__file__).parents[3]
UNEVEN = [0.5, 1.0, 2.5]


def run_worker(name: str = "replica_worker", **case) -> dict:
    """One case in a process of its own."""
    command = [sys.executable, "-W", "error", "-m", f"tests.training.{name}", json.dumps(case)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr[-3000:]
    return json.loads(done.stdout)


@pytest.mark.parametrize(
    "case",
    [
        pytest.param({"clip_norm": 0.05, "compare_unclipped": True}, id="clipping"),
        pytest.param(
            {"clip_norm": 0.05, "jit": True, "accumulation_steps": 3, "class_weights": UNEVEN},
            id="xla-accumulation",
            marks=pytest.mark.second,
        ),
        # Each alone takes half a minute, and is part of the case above.
        pytest.param(
            {"clip_norm": 0.05, "accumulation_steps": 3, "class_weights": UNEVEN},
            id="accumulation",
            marks=pytest.mark.slow,
        ),
        pytest.param(
            {"clip_norm": 0.05, "jit": True, "class_weights": UNEVEN}, id="xla", marks=pytest.mark.slow
        ),
    ],
)
def test_one_and_two_replicas_reach_the_same_weights(case):
    result = run_worker(**case)
    assert result["apart"] < 1e-5
    assert result["one"]["steps"] == result["two"]["steps"] == 20
    assert result["one"]["least_move"] > 1e-6
    assert result["one"]["sums"] == pytest.approx(result["two"]["sums"], rel=1e-5)
    if case.get("compare_unclipped"):
        assert result["moved_by_clipping"] > 1e-3


@pytest.mark.second
def test_float16_trains_on_two_replicas():
    result = run_worker(precision="float16", clip_norm=1.0)
    for run in (result["one"], result["two"]):
        # At first the scale is too large: every skipped step halves it.
        assert run["loss_scale"] == 2.0 ** (15 - (20 - run["steps"]))
        assert run["steps"] > 10 and run["least_move"] > 1e-6


@pytest.mark.slow
def test_lists_of_candidates_reach_the_same_weights_on_one_and_two_replicas():
    result = run_worker("task_replica_worker", task="match")
    assert result["apart"] < 1e-5 < 1e-2 < result["one"]["moved"]
    assert result["one"]["steps"] == result["two"]["steps"] > 6
    assert result["one"]["sums"] == pytest.approx(result["two"]["sums"], rel=1e-5)
    # Lists do not fill the batches evenly: training on the filler rows would change the result.
    assert result["one"]["fillers"] == 0 < result["two"]["fillers"]


@pytest.mark.second
@pytest.mark.parametrize("xla", [False, pytest.param(True, marks=pytest.mark.slow)])
def test_taggers_reach_the_same_weights_on_one_and_two_replicas(xla):
    """Some sentences are read in several windows."""
    result = run_worker("task_replica_worker", task="tag", xla=xla)
    assert result["apart"] < 1e-5 < 1e-2 < result["one"]["moved"]
    assert result["one"]["steps"] == result["two"]["steps"] > 6
    assert result["one"]["sums"] == pytest.approx(result["two"]["sums"], rel=1e-5)


@pytest.mark.second
@pytest.mark.parametrize("xla", [False, pytest.param(True, marks=pytest.mark.slow)])
def test_masked_language_models_reach_the_same_weights_on_one_and_two_replicas(xla):
    """The token table is input and output; replicas have different numbers of masked tokens."""
    result = run_worker("task_replica_worker", task="masked-lm", xla=xla)
    assert result["apart"] < 1e-5 < 1e-2 < result["one"]["moved"]
    assert result["one"]["steps"] == result["two"]["steps"] > 6
    assert result["one"]["sums"] == pytest.approx(result["two"]["sums"], rel=1e-5)
    assert xla or result["one"]["fillers"] == 0 < result["two"]["fillers"]


@pytest.mark.slow
def test_students_reach_the_same_weights_on_one_and_two_replicas():
    """Some sentences have no tags; hidden states and attention of the teacher are also targets."""
    result = run_worker("task_replica_worker", task="distilled")
    assert result["apart"] < 1e-5 < 1e-2 < result["one"]["moved"]
    assert result["one"]["steps"] == result["two"]["steps"] > 6
    assert result["one"]["sums"] == pytest.approx(result["two"]["sums"], rel=1e-5)


def weights_after(batches, **options) -> list[np.ndarray]:
    keras.utils.set_random_seed(3)
    model = tiny_model()
    step = make_step(model, **options)
    for batch in batches:
        step(batch)
    step.flush()
    return [variable.numpy() for variable in trainable(model)]


def joined(batches: list[dict]) -> dict:
    return tf.nest.map_structure(lambda *parts: np.concatenate(parts), *batches)


def test_accumulated_batches_equal_one_large_batch():
    rng = np.random.default_rng(0)
    batches = [make_batch(rng, 4, 4, 8, UNEVEN) for _ in range(6)]
    large = [joined(batches[:3]), joined(batches[3:])]
    one, several = weights_after(large), weights_after(batches, accumulation_steps=3)
    assert distance(one, several) < 1e-5
    assert distance(one, weights_after(large[:1])) > 1e-3


def test_gradients_equal_those_of_a_plain_tape():
    model, batch = tiny_model(), make_batch(np.random.default_rng(0), 5, 6, 9)
    step = make_step(model)
    found, total, weight = step._gradients_of(batch, tf.constant(1.0))
    with tf.GradientTape() as tape:
        losses = keras.ops.sparse_categorical_crossentropy(
            batch["targets"], model(batch["features"], training=True), from_logits=True
        )
        expected_total = tf.reduce_sum(losses * batch["weights"])
    expected = tape.gradient(expected_total, trainable(model))
    assert float(weight) == batch["weights"].sum()
    np.testing.assert_allclose(total, expected_total, rtol=1e-6)
    # Gradients that are multiplied by a table of initial zeros are zero at first.
    assert sum(float(tf.reduce_max(tf.abs(tf.convert_to_tensor(each)))) > 0 for each in expected) > 10
    for one, other in zip(found, expected, strict=True):
        np.testing.assert_allclose(tf.convert_to_tensor(one), tf.convert_to_tensor(other), 1e-4, 1e-4)


def test_rows_of_weight_zero_change_nothing():
    rng = np.random.default_rng(0)
    filled = make_batch(rng, 5, 8, 8)
    # The content of a filler row must not matter.
    filled["features"]["token_ids"][5:] = 7
    filled["features"]["padding_mask"][5:] = 1
    unpadded = tf.nest.map_structure(lambda value: value[:5], filled)
    assert distance(weights_after([filled] * 3), weights_after([unpadded] * 3)) < 1e-5


def test_batch_without_weight_changes_nothing():
    batch = make_batch(np.random.default_rng(0), 0, 4, 8)
    assert distance(weights_after([batch]), weights_after([])) == 0


@pytest.mark.parametrize("accumulation_steps", [1, 2])
def test_infinite_gradient_changes_nothing(accumulation_steps):
    batches = [make_batch(np.random.default_rng(seed), 4, 4, 8) for seed in range(2)]
    batches[1]["weights"][0] = np.inf
    keras.utils.set_random_seed(3)
    model = tiny_model()
    step = make_step(model, accumulation_steps=accumulation_steps)
    for _ in range(accumulation_steps):
        step(batches[0])
    before = [variable.numpy() for variable in trainable(model)]
    for _ in range(accumulation_steps):
        step(batches[1])
    assert step.optimizer.steps_done == 1
    assert distance(before, [variable.numpy() for variable in trainable(model)]) == 0
    # The accumulators were emptied: the next batches move the weights again.
    for _ in range(accumulation_steps):
        step(batches[0])
    assert step.optimizer.steps_done == 2
    assert distance(before, [variable.numpy() for variable in trainable(model)]) > 1e-4


def test_sums_are_those_of_the_batch():
    model = tiny_model()
    step = make_step(model)
    batch = make_batch(np.random.default_rng(0), 5, 6, 8, UNEVEN)
    logits = model(batch["features"])
    losses = keras.losses.sparse_categorical_crossentropy(batch["targets"], logits, from_logits=True)
    sums = step(batch)
    assert float(sums["loss"]) == pytest.approx(float(np.asarray(losses) @ batch["weights"]), rel=1e-5)
    assert float(sums["weight"]) == pytest.approx(float(batch["weights"].sum()))


def test_batches_of_every_size_share_one_trace():
    model = tiny_model()
    traces = []
    step = make_step(model)
    loss = step.loss
    step.loss = lambda targets, logits: traces.append(1) or loss(targets, logits)
    for rows, length in ((4, 8), (2, 8), (4, 12)):
        step(make_batch(np.random.default_rng(0), rows, rows, length))
    assert len(traces) == 1


def test_strategies():
    assert make_strategy("one").num_replicas_in_sync == 1
    if not tf.config.list_physical_devices("GPU"):
        assert make_strategy("auto").num_replicas_in_sync == 1


@pytest.mark.parametrize(
    ("sizes", "settings", "message"),
    [
        ([2], {}, "rows.csv: expected at least 3 training rows, one per replica, got 2"),
        ([2, 2], {"batch_rows": 2}, "--train.batch-rows: expected at least 3, one row per replica, got 2"),
        (
            [2, 2],
            {"batch_tokens": 40},
            "--train.batch-tokens: expected enough for 3 rows, one per replica, got 40, enough for 2",
        ),
        ([3, 1], {}, None),
    ],
)
def test_fewer_rows_than_replicas_are_refused(sizes, settings, message):
    plans = [BatchPlan(np.arange(size), 16, size) for size in sizes]
    if message is None:
        check_enough_rows(plans, TrainSection(**settings), 3, "rows.csv")
        return
    with pytest.raises(InputError) as caught:
        check_enough_rows(plans, TrainSection(**settings), 3, "rows.csv")
    assert str(caught.value) == message
