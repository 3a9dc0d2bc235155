import keras
import numpy as np
import pytest
import tensorflow as tf

from training.engine.optimizer import (
    AdamW,
    global_norm,
    merge_duplicate_rows,
    scale_gradient,
    warmup_then_decay,
)

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
