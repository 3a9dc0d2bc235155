"""The contrastive stage: batches in parts of similar lengths."""

from types import SimpleNamespace

import numpy as np
import pytest
import tensorflow as tf

from kmha.config import EncoderConfig
from kmha.errors import InputError
from kmha.features import PADDING_MASK, SEGMENT_IDS, TOKEN_IDS
from kmha.models.classifier import TextClassifier
from training.config.config import ResolvedConfig
from training.data.length_buckets import BatchPlan
from training.fewshot import contrastive
from training.fewshot.contrastive import ContrastiveStage, saved_tokens
from training.runtime.memory_estimate import estimate_bytes
from training.runtime.resource_usage import count_trainable_weights
from training.tasks.classify import ClassifyTask


def _stage(lengths, rows=1_000, labels=2):
    config = EncoderConfig(
        vocabulary_size=50, hidden_dim=16, num_layers=1, num_heads=2, dropout=0.0, attention_dropout=0.0
    )
    model = TextClassifier(config, labels, dropout=0.0)
    model.build()
    lengths = np.array(lengths)

    def batch(plan):
        return {"features": {}, "targets": np.zeros(len(plan.rows)), "weights": class_weights[plan.rows]}

    source = SimpleNamespace(
        lengths=lengths,
        windows=None,
        targets=np.arange(len(lengths)) % labels,
        batch_plan=lambda rows: BatchPlan(rows, int(lengths[rows].max()), len(rows), None),
        batch=batch,
    )
    class_weights = np.linspace(0.5, 500.0, len(lengths), dtype=np.float32)
    return ContrastiveStage(ClassifyTask(), model, source, rows, ResolvedConfig()), model  # pyright: ignore


@pytest.mark.parametrize("parts", [2, 4])
@pytest.mark.parametrize("lengths", [[3, 3, 8, 20, 70, 90, 100], [5, 80]])
def test_parts_of_a_batch_have_the_vectors_of_the_whole_batch(lengths, parts):
    stage, model = _stage(lengths)
    stage._parts = parts
    random, longest = np.random.default_rng(0), max(lengths)
    mask = (np.arange(longest) < np.array(lengths)[:, None]).astype(np.int32)
    ids = random.integers(4, 50, mask.shape).astype(np.int32) * mask
    features = {TOKEN_IDS: ids, SEGMENT_IDS: np.zeros_like(ids), PADDING_MASK: mask}
    features = {name: tf.constant(values) for name, values in features.items()}
    widths = []
    monitored = stage._encode

    def outputs(part):
        widths.append(int(part[TOKEN_IDS].shape[1]))
        return monitored(part)

    stage._encode = outputs
    found = stage._outputs(features).numpy()
    np.testing.assert_allclose(found, model.pooled_vectors(features, training=True), atol=1e-5)
    assert len(widths) == parts and widths[0] < widths[-1] == longest


@pytest.mark.parametrize(
    ("lengths", "rows", "shards", "parts"),
    [
        ([3, 20, 30], 8, 1, 1),
        ([3, 20, 30], 8, 2, 2),
        ([3, 20, 30], 500, 2, 4),
        ([30, 30], 500, 1, 1),
        ([30, 300], 8, 1, 4),
    ],
)
def test_batches_have_parts_where_that_saves_more_than_it_costs(lengths, rows, shards, parts, monkeypatch):
    monkeypatch.setattr(contrastive, "num_shards", lambda: shards)
    stage, _ = _stage(lengths, rows)
    assert stage._parts == parts


@pytest.mark.parametrize(
    ("labels", "rows", "steps"), [(2, 2, 10), (6, 48, 60), (2, 128, 160), (2, 10_000, 600), (49, 490, 300)]
)
def test_number_of_batches(labels, rows, steps):
    stage, _ = _stage([10], rows, labels)
    assert stage.num_steps(rows) == steps


def test_long_texts_make_more_and_smaller_batches():
    stage, _ = _stage([10, 2_048])
    assert (stage._batch_rows, stage.num_steps(64)) == (4, 20 * 64 // 4)
    stage._start(10, 1.0)
    assert float(stage._peak) == pytest.approx(contrastive.LEARNING_RATE * 4)


@pytest.mark.parametrize(
    ("labeled", "rows", "steps", "factor"),
    [
        (4, 3, 5, 1.0),
        (7, 5, 5, 1.2),
        (15, 10, 5, 2.4),
        (99, 66, 20, 4.0),
        (192, 128, 80, 2.0),
        (1_200, 600, 375, 1.6),
        (10_000, 5_000, 600, 1.0),
    ],
)
def test_the_learning_rate_of_a_fold_grows_as_its_steps_shrink(labeled, rows, steps, factor):
    stage, _ = _stage([10], labeled)
    assert stage.fold_steps(rows) == steps
    assert stage.fold_rate_factor(rows) == pytest.approx(factor)


def test_a_training_starts_from_the_initial_weights_or_from_given_ones():
    stage, model = _stage([10])
    first = [each.numpy() for each in model.trainable_weights]
    others = [value + 1 for value in first]
    stage._start(10, 1.0, weights=others)
    np.testing.assert_array_equal(model.trainable_weights[0].numpy(), others[0])
    # The steps that are done have made the present weights.
    stage._start(10, 1.0, done=4)
    np.testing.assert_array_equal(model.trainable_weights[0].numpy(), others[0])
    stage._start(10, 1.0)
    np.testing.assert_array_equal(model.trainable_weights[0].numpy(), first[0])


def test_class_weights_do_not_weigh_the_contrastive_loss():
    stage, _ = _stage([10] * 40)
    weights = []

    def step(batch):
        weights.append(batch["weights"])
        return {"loss": 1.0, "weight": 1.0}

    stage.step = step  # pyright: ignore
    assert list(stage.train(np.arange(40), 3)) == [1.0] * 3
    assert [each.tolist() for each in weights] == [[1.0] * 16] * 3


def test_half_the_passes_have_half_the_batches_at_twice_the_learning_rate():
    stage, _ = _stage([10], 128)
    assert stage.fold_steps(128) == stage.num_steps(128) // 2
    rates = []
    for factor in (1.0, 2.0):
        stage._start(80, factor)
        rates.append([float(stage._learning_rate(tf.constant(step))) for step in (0, 7, 40, 79)])
    np.testing.assert_allclose(rates[1], 2 * np.array(rates[0]), rtol=1e-6)
    assert max(rates[0]) == rates[0][1] > rates[0][2] > rates[0][3] > 0


def test_parts_save_tokens():
    # Each of the four rows is a part: 4 · 20 tokens less 60 on average, or none if all four are short.
    assert saved_tokens(np.array([10, 20]), 4) == pytest.approx(17.5, rel=0.1)
    assert saved_tokens(np.array([7]), 5) == 0


def test_a_batch_larger_than_memory_is_refused_by_what_is_not_allocated_yet(monkeypatch):
    stage, model = _stage([5, 80])
    weights, rows = count_trainable_weights(model), stage._batch_rows
    needed = estimate_bytes([model.encoder_config], weights, rows, 80, copies=2)
    assert needed < estimate_bytes([model.encoder_config], weights, rows, 80)
    monkeypatch.setattr(contrastive, "available_bytes", lambda: needed)
    stage.check_memory()
    monkeypatch.setattr(contrastive, "available_bytes", lambda: needed - 1)
    with pytest.raises(InputError, match=f"--text.max-length: .* a batch of {rows} rows of 80 tokens"):
        stage.check_memory()
