import keras
import numpy as np
import pytest
import tensorflow as tf

from kmha.config import EncoderConfig
from kmha.errors import InputError
from kmha.models.classifier import TextClassifier
from training.config.config import FinetuneSection
from training.engine.optimizer import (
    AdamW,
    LearningRateSchedule,
    WeightAverage,
    freeze,
    global_norm,
    learning_rate_schedules,
    merge_duplicate_rows,
    scale_gradient,
    warmup_then_decay,
)
from training.engine.train_step import TrainingStep
from training.losses.classification import softmax_cross_entropy

YES = tf.constant(True)
SHAPES = {"kernel": (5, 4), "bias": (4,), "scale": (), "deep": (2, 3, 4)}


def variables(seed: int = 0) -> list[tf.Variable]:
    rng = np.random.default_rng(seed)
    return [tf.Variable(tf.constant(rng.normal(size=shape).astype(np.float32))) for shape in SHAPES.values()]


def gradients(step: int) -> list[tf.Tensor]:
    rng = np.random.default_rng([1, step])
    return [tf.constant(rng.normal(size=shape).astype(np.float32)) for shape in SHAPES.values()]


def constant_rate(value: float):
    return lambda step: tf.constant(value)


def move(optimizer: AdamW, gradients, proceed=YES) -> None:
    tf.function(lambda: optimizer.apply(tf.distribute.get_strategy(), gradients, proceed), autograph=False)()


def test_equals_keras_on_dense_gradients():
    ours, theirs = variables(), [keras.Variable(v.numpy()) for v in variables()]
    # Large enough that its place in the formula shows.
    optimizer = AdamW(ours, constant_rate(0.05), weight_decay=0.1, beta_2=0.99, epsilon=1e-2)
    reference = keras.optimizers.AdamW(0.05, weight_decay=0.1, beta_2=0.99, epsilon=1e-2)
    reference.build(theirs)
    vectors = [v for v in theirs if len(v.shape) < 2]
    reference.exclude_from_weight_decay(var_list=vectors)
    for step in range(5):
        move(optimizer, gradients(step))
        reference.apply(gradients(step), theirs)
    for a, b in zip(ours, theirs, strict=True):
        np.testing.assert_allclose(a.numpy(), keras.ops.convert_to_numpy(b), rtol=1e-5, atol=1e-6)
    assert optimizer.steps_done == 5


def test_tiny_weight_decay_is_not_rounded_away():
    rate, decay = 5e-5, 0.01
    kernel = tf.Variable(
        tf.constant(np.random.default_rng(0).uniform(0.5, 1, (1000, 500)).astype(np.float32))
    )
    before = kernel.numpy().astype(np.float64)
    move(AdamW([kernel], constant_rate(rate), decay), [tf.zeros(kernel.shape)])
    assert (before - kernel.numpy()).sum() / before.sum() == pytest.approx(rate * decay, rel=0.02)


def row_wise_reference(table, steps, rate, decay, beta_1, beta_2, epsilon):
    """Adam on rows, in float64: only the rows that a step names move, and only their averages."""
    table = table.astype(np.float64)
    mean, square = np.zeros_like(table), np.zeros_like(table)
    for number, (rows, values) in enumerate(steps, start=1):
        for row in np.unique(rows):
            gradient = values[rows == row].sum(axis=0)
            mean[row] = beta_1 * mean[row] + (1 - beta_1) * gradient
            square[row] = beta_2 * square[row] + (1 - beta_2) * gradient**2
            rise = rate * np.sqrt(1 - beta_2**number) / (1 - beta_1**number)
            table[row] -= rise * mean[row] / (np.sqrt(square[row]) + epsilon) + rate * decay * table[row]
    return table


def test_slices_update_only_their_rows():
    rng = np.random.default_rng(0)
    start = rng.normal(size=(8, 3)).astype(np.float32)
    steps = [
        (np.array(rows), rng.normal(size=(len(rows), 3)).astype(np.float32))
        for rows in ([1, 1, 4], [4, 2], [1, 6, 6, 6], [2])
    ]
    table = tf.Variable(tf.constant(start))
    optimizer = AdamW([table], constant_rate(0.1), 0.2, beta_1=0.8, beta_2=0.9, epsilon=1e-3)
    for rows, values in steps:
        move(
            optimizer,
            [
                merge_duplicate_rows(
                    tf.IndexedSlices(tf.constant(values), tf.constant(rows), tf.constant(start.shape))
                )
            ],
        )
    expected = row_wise_reference(start, steps, 0.1, 0.2, 0.8, 0.9, 1e-3)
    np.testing.assert_allclose(table.numpy(), expected, rtol=1e-4, atol=1e-5)
    untouched = [0, 3, 5, 7]
    np.testing.assert_array_equal(table.numpy()[untouched], start[untouched])


def test_slices_of_every_row_equal_a_dense_gradient():
    start = np.random.default_rng(0).normal(size=(6, 3)).astype(np.float32)
    sliced, dense = tf.Variable(tf.constant(start)), tf.Variable(tf.constant(start))
    first, second = AdamW([sliced], constant_rate(0.1)), AdamW([dense], constant_rate(0.1))
    for step in range(4):
        values = tf.constant(np.random.default_rng(step).normal(size=(6, 3)).astype(np.float32))
        move(first, [tf.IndexedSlices(tf.gather(values, [5, 4, 3, 2, 1, 0]), tf.range(5, -1, -1))])
        move(second, [values])
    np.testing.assert_allclose(sliced.numpy(), dense.numpy(), rtol=1e-4, atol=1e-5)


def test_weight_decay_skips_vectors_and_scalars():
    moved = variables()
    before = [v.numpy() for v in moved]
    optimizer = AdamW(moved, constant_rate(0.1), weight_decay=0.5)
    move(optimizer, [tf.zeros_like(v) for v in moved])
    for value, old in zip(moved, before, strict=True):
        factor = 0.95 if old.ndim > 1 else 1.0
        np.testing.assert_allclose(value.numpy(), old * factor, rtol=1e-6)


def test_skipped_step_changes_nothing():
    moved = variables()
    optimizer = AdamW(moved, constant_rate(0.1))
    move(optimizer, gradients(0))
    state = [v.numpy() for v in (*moved, *optimizer.means, *optimizer.squares, optimizer.iterations)]
    move(optimizer, [g * np.nan for g in gradients(1)], tf.constant(False))
    after = [v.numpy() for v in (*moved, *optimizer.means, *optimizer.squares, optimizer.iterations)]
    for a, b in zip(state, after, strict=True):
        np.testing.assert_array_equal(a, b)


@pytest.mark.parametrize(
    ("decay", "expected"),
    [
        # 10 steps, 4 of them rising to 8; the fall passes 1/7, 2/7 … of the way in the 6 steps that are left.
        ("linear", [2, 4, 6, 8, 8 * 6 / 7, 8 * 5 / 7, 8 * 4 / 7, 8 * 3 / 7, 8 * 2 / 7, 8 * 1 / 7, 0]),
        ("constant", [2, 4, 6, 8, 8, 8, 8, 8, 8, 8, 8]),
    ],
)
def test_learning_rate_by_hand(decay, expected):
    rate = warmup_then_decay(8.0, 10, 4, decay)
    np.testing.assert_allclose([float(rate(tf.constant(step))) for step in range(11)], expected, atol=1e-5)


def test_cosine_decay_is_half_in_the_middle():
    # 8 steps, none of them rising: 4 of 8 + 1 parts of the way … the middle of 7 steps is the 4th.
    rate = warmup_then_decay(1.0, 7, 0, "cosine")
    values = [float(rate(tf.constant(step, tf.int64))) for step in range(8)]
    assert values[3] == pytest.approx(0.5, abs=1e-6)
    assert values[0] == pytest.approx(0.5 + 0.5 * np.cos(np.pi / 8), abs=1e-6)
    assert values[7] == pytest.approx(0, abs=1e-6)
    assert values == sorted(values, reverse=True)


def test_learning_rate_without_decay_or_warmup():
    assert float(warmup_then_decay(1.0, 3, 3)(tf.constant(2))) == 1.0
    assert float(warmup_then_decay(1.0, 1, 0)(tf.constant(0))) == 0.5


def test_merging_sums_duplicates_and_drops_zeros():
    slices = tf.IndexedSlices(
        tf.constant([[1.0, 2.0], [0.0, 0.0], [3.0, 4.0], [5.0, 6.0], [-5.0, -6.0]]),
        tf.constant([7, 1, 7, 2, 2]),
        tf.constant([9, 2]),
    )
    merged = merge_duplicate_rows(slices)
    np.testing.assert_array_equal(merged.indices, [7])
    np.testing.assert_array_equal(merged.values, [[4.0, 6.0]])
    np.testing.assert_array_equal(merged.dense_shape, [9, 2])


def test_merged_slices_equal_the_dense_gradient():
    rng = np.random.default_rng(0)
    rows, values = rng.integers(0, 12, 40), rng.normal(size=(40, 3)).astype(np.float32)
    slices = tf.IndexedSlices(tf.constant(values), tf.constant(rows), tf.constant([12, 3]))
    dense = np.zeros((12, 3))
    np.add.at(dense, rows, values)
    merged = merge_duplicate_rows(slices)
    assert len(set(merged.indices.numpy().tolist())) == len(merged.indices)
    np.testing.assert_allclose(tf.convert_to_tensor(merged), dense, atol=1e-5)


def test_merging_retains_infinite_values():
    slices = tf.IndexedSlices(tf.constant([[np.nan], [0.0]]), tf.constant([1, 2]), tf.constant([3, 1]))
    np.testing.assert_array_equal(merge_duplicate_rows(slices).indices, [1])


def test_global_norm_against_numpy():
    dense, rows = np.arange(6.0, dtype=np.float32).reshape(2, 3), np.ones((2, 2), np.float32)
    slices = tf.IndexedSlices(tf.constant(rows), tf.constant([5, 1]), tf.constant([9, 2]))
    norm = global_norm([tf.constant(dense), slices, tf.constant(-2.0)])
    assert float(norm) == pytest.approx(np.sqrt((dense**2).sum() + 4 + 4))
    assert norm.dtype == tf.float32


def test_scaled_slices_stay_slices():
    slices = tf.IndexedSlices(tf.ones((2, 2)), tf.constant([5, 1]), tf.constant([9, 2]))
    half = scale_gradient(slices, tf.constant(0.5))
    assert isinstance(half, tf.IndexedSlices)
    np.testing.assert_array_equal(half.values, np.full((2, 2), 0.5))
    np.testing.assert_array_equal(scale_gradient(tf.constant([4.0]), tf.constant(0.5)), [2.0])


def test_row_factor_multiplies_the_learning_rate_of_rows():
    slices = tf.IndexedSlices(tf.ones((2, 4)), tf.constant([3, 1]), tf.constant([5, 4]))
    moved = {}
    for row_factor in (1.0, 4.0):
        tables = tf.Variable(tf.zeros((5, 4))), tf.Variable(tf.zeros((5, 4)))
        optimizer = AdamW(tables, constant_rate(0.01), weight_decay=0.0, row_factor=row_factor)
        for _ in range(3):
            move(optimizer, [slices, tf.ones((5, 4))])
        moved[row_factor] = [table.numpy() for table in tables]
    np.testing.assert_allclose(moved[4.0][0], 4 * moved[1.0][0], rtol=1e-6)
    np.testing.assert_array_equal(moved[4.0][1], moved[1.0][1])
    assert (moved[1.0][0][[1, 3]] != 0).all()


SIZES = {"hidden_dim": 8, "num_heads": 2, "intermediate_dim": 12, "max_length": 6, "dropout": 0.0}


def classifier(norm="post"):
    encoder = EncoderConfig(9, num_layers=3, norm=norm, **SIZES)  # pyright: ignore
    model = TextClassifier(encoder, 2, dropout=0.0)
    model.build()
    return model


def schedules_by_part(model, **section):
    schedules = learning_rate_schedules(model, FinetuneSection(**section), steps=100)
    named = {}
    for variable, schedule in zip(model.trainable_variables, schedules, strict=True):
        parts = variable.path.split("/")
        part = next((p for p in parts if p.startswith("block_") or p in ("embedding", "norm")), parts[-2])
        named.setdefault(part, set()).add(schedule)
    return {part: found.pop() for part, found in named.items() if len(found) == 1 or pytest.fail(part)}


def test_lower_blocks_have_lower_learning_rates():
    schedules = schedules_by_part(classifier(), layer_decay=0.5, head_factor=10.0)
    expected = {
        "block_2": 1.0,
        "block_1": 0.5,
        "block_0": 0.25,
        "embedding": 0.125,
        "norm": 0.125,
        "head": 10.0,
    }
    assert schedules == {part: LearningRateSchedule(factor) for part, factor in expected.items()}


def test_final_norm_of_a_pre_norm_model_has_the_learning_rate_of_the_head():
    schedules = schedules_by_part(classifier("pre"), layer_decay=0.5)
    assert (
        schedules["embedding"] == LearningRateSchedule(0.125)
        and schedules["pooled_norm"] == LearningRateSchedule()
    )


def with_ngrams():
    encoder = EncoderConfig(9, num_layers=3, ngram_buckets=11, ngram_dim=4, **SIZES)
    model = TextClassifier(encoder, 2, dropout=0.0)
    model.build()
    return model


@pytest.mark.parametrize("new", [True, False])
def test_new_ngrams_have_the_learning_rate_of_the_head(new):
    model = with_ngrams()
    schedules = learning_rate_schedules(
        model, FinetuneSection(layer_decay=0.5, head_factor=10.0, head_fraction=0.1), 100, new_ngrams=new
    )
    found = {
        schedule
        for variable, schedule in zip(model.trainable_variables, schedules, strict=True)
        if "ngrams" in variable.path
    }
    assert found == {LearningRateSchedule(10.0) if new else LearningRateSchedule(0.125, 10)}


@pytest.mark.parametrize("new", [True, False])
def test_new_ngrams_are_not_frozen(new):
    model = with_ngrams()
    freeze(model, 1, new_ngrams=new)
    trained = {variable.path.split("/")[-2] for variable in model.encoder.embedding.trainable_variables}
    assert trained == ({"table_2", "table_3", "projection"} if new else set())


def test_default_settings_change_nothing():
    assert set(schedules_by_part(classifier()).values()) == {LearningRateSchedule()}


def test_gradual_unfreezing_starts_at_the_head():
    schedules = schedules_by_part(classifier(), head_fraction=0.1, unfreeze_fraction=0.3)
    first_steps = {part: schedule.first_step for part, schedule in schedules.items()}
    assert first_steps == {
        "head": 0, "block_2": 10, "block_1": 20, "block_0": 30, "embedding": 40, "norm": 40
    }  # fmt: skip


def trained(model, section, steps):
    """Weights before and after some steps on one batch, by path."""
    variables = [variable.value for variable in model.trainable_variables]
    schedules = learning_rate_schedules(model, section, steps)
    optimizer = AdamW(variables, lambda step: tf.constant(0.01), weight_decay=0.1, schedules=schedules)
    step = TrainingStep(model, softmax_cross_entropy, optimizer, tf.distribute.get_strategy())
    ids = np.array([[2, 5, 6, 3], [2, 7, 8, 3]], np.int32)
    features = {"token_ids": ids, "segment_ids": np.zeros_like(ids), "padding_mask": np.ones_like(ids)}
    batch = {"features": features, "targets": np.array([0, 1]), "weights": np.ones(2, np.float32)}
    before = {variable.path: variable.numpy() for variable in model.weights}
    for _ in range(steps):
        step(batch)
    return before, {variable.path: variable.numpy() for variable in model.weights}


def moved(before, after):
    paths = [path for path in before if "seed" not in path and not np.array_equal(before[path], after[path])]
    return {
        part
        for path in paths
        for part in path.split("/")
        if part.startswith("block_") or part in ("embedding", "head")
    }


def test_frozen_blocks_do_not_change():
    model = classifier()
    freeze(model, 2)
    assert moved(*trained(model, FinetuneSection(frozen_layers=2), 2)) == {"block_2", "head"}


def test_more_frozen_layers_than_blocks_are_refused():
    with pytest.raises(
        InputError, match="--finetune.frozen-layers: expected at most 3, the layers of the encoder, got 4"
    ):
        freeze(classifier(), 4)


def test_only_the_head_changes_during_head_steps():
    before, after = trained(classifier(), FinetuneSection(head_fraction=0.9), 1)
    assert moved(before, after) == {"head"}


def test_factor_multiplies_the_learning_rate():
    weights = [tf.Variable(tf.constant([1.0, 2.0])) for _ in range(2)]
    schedules = [LearningRateSchedule(), LearningRateSchedule(0.25)]
    optimizer = AdamW(weights, lambda step: tf.constant(0.1), weight_decay=0.0, schedules=schedules)
    optimizer.apply(tf.distribute.get_strategy(), [tf.constant([1.0, -1.0])] * 2, tf.constant(True))
    full, slow = (np.array([1.0, 2.0]) - weight.numpy() for weight in weights)
    np.testing.assert_allclose(slow, full / 4, rtol=1e-5)


ONE = tf.distribute.get_strategy()


def variable(value) -> tf.Variable:
    return tf.Variable(tf.constant(value))


def follow(average: WeightAverage, weight: tf.Variable, values) -> None:
    for step, value in enumerate(values, start=1):
        weight.assign(value)
        average.after_step(step)


@pytest.mark.parametrize("decay", [0.5, 0.999])
def test_average_against_numpy(decay):
    weight = variable([1.0, -2.0])
    average = WeightAverage([weight], ONE, decay, every=1)
    values = np.random.default_rng(0).normal(size=(30, 2)).astype(np.float32)
    follow(average, weight, values)
    expected = np.array([1.0, -2.0])
    for step, value in enumerate(values, start=1):
        retained = min(decay, (1 + step) / (10 + step))
        expected = retained * expected + (1 - retained) * value
    np.testing.assert_allclose(average.averages[0].numpy(), expected, rtol=1e-5)


def test_longer_interval_decays_as_much():
    still = variable([1.0])
    average = WeightAverage([still], ONE, decay=0.9, every=4)
    # The weight moves once and stays: both ways then leave 0.9 of the distance a step.
    for step in range(1000, 1012):
        still.assign([0.0])
        average.after_step(step + 1)
    assert float(average.averages[0][0]) == pytest.approx(0.9**12, rel=1e-5)


def test_update_interval_grows_with_the_steps():
    average = WeightAverage([variable([1.0])], ONE, every=8)
    intervals = {step: average.update_interval(step) for step in range(1, 200)}
    assert [intervals[step] for step in (1, 15, 16, 31, 32, 63, 64, 199)] == [1, 1, 2, 2, 4, 4, 8, 8]
    # The average then covers at least a ninth of the steps: no single update dominates it.
    assert all(gap <= max(1, step / 8) for step, gap in intervals.items())


def test_average_of_a_short_fit_is_near_the_last_weights():
    weight = variable([0.0])
    average = WeightAverage([weight], ONE)
    follow(average, weight, [[1.0]] * 48)
    assert 0.99 < float(average.averages[0][0]) <= 1.0


def test_swapping_twice_restores_the_weights():
    weights = [variable([1.0, 2.0]), variable([[3.0]])]
    average = WeightAverage(weights, ONE, 0.5, every=1)
    follow(average, weights[0], [[5.0, 6.0]])
    live, averaged = [w.numpy() for w in weights], [a.numpy() for a in average.averages]
    average.swap()
    for weight, old in zip(weights, averaged, strict=True):
        np.testing.assert_array_equal(weight.numpy(), old)
    for mean, old in zip(average.averages, live, strict=True):
        np.testing.assert_array_equal(mean.numpy(), old)
    average.swap()
    for weight, old in zip(weights, live, strict=True):
        np.testing.assert_array_equal(weight.numpy(), old)


def test_average_starts_at_a_copy_of_the_weights():
    weight = variable([4.0])
    average = WeightAverage([weight], ONE)
    weight.assign([5.0])
    assert float(average.averages[0][0]) == 4.0


def test_average_of_a_short_fit_leaves_the_initial_weights():
    weight = variable([1.0])
    average = WeightAverage([weight], ONE, 0.999)
    follow(average, weight, [[0.0]] * 2)
    assert float(average.averages[0][0]) < 0.1
