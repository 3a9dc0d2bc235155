import numpy as np
import pytest
import tensorflow as tf

from kmha.config import EncoderConfig
from kmha.errors import InputError
from kmha.models.classifier import TextClassifier
from training.config.config import FinetuneSection
from training.engine.layerwise_lr import freeze, learning_rate_schedules
from training.engine.optimizer import AdamW, LearningRateSchedule
from training.engine.train_step import TrainingStep
from training.losses.classification import softmax_cross_entropy

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
