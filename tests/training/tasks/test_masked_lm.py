import random
import types

import numpy as np
import pytest
import tensorflow as tf

from kmha.config import EncoderConfig
from kmha.errors import InputError
from tests.training.tiny_runs import trainable
from training.config.config import TextSection
from training.data.inputs import make_inputs
from training.engine.optimizer import AdamW, warmup_then_decay
from training.engine.train_step import TrainingStep
from training.io.examples import Columns, Example, Masking, Subset, write_examples
from training.io.tables import Row
from training.metrics.masked_lm import unigram_probabilities
from training.tasks.masked_lm import MaskedLmTask

WORDS = "red new old big cat dog cow hen house yard field roof".split()
STEPS = 800
TASK = MaskedLmTask(packed=False, share=0.2)


@pytest.fixture(scope="module")
def inputs(tmp_path_factory):
    """Sixteen random texts without any pattern."""
    rng = random.Random(0)
    texts = [" ".join(rng.sample(WORDS, 6)) for _ in range(16)]
    folder = tmp_path_factory.mktemp("texts")
    examples = write_examples((Example((text,), (), "a") for text in texts), folder / "rows")
    parts = {"train": Subset(examples, np.arange(16))}
    return make_inputs(TextSection("word", min_frequency=1, max_length=16), parts, folder, TASK)


def new_model(inputs, source):
    size = len(inputs.preprocessor.vocabulary)
    config = EncoderConfig(
        size, 32, 2, 4, intermediate_dim=64, max_length=16, dropout=0.0, attention_dropout=0.0
    )
    model = TASK.build_model({"": config}, [])
    TASK.initialize(model, source)
    return model


def scores_of(model, source, part) -> dict:
    outputs = (
        (plan, model(source.batch(plan)["features"], training=False))
        for plan in source.plans([8], 999, 99, rng=None)
    )
    return TASK.scores(part, [], TASK.postprocessor(model)(source, outputs), {})


@pytest.mark.second
def test_sixteen_texts_are_memorized(inputs):
    part = inputs.part("train")
    source = inputs.source("train", TASK.training_set(part, [], 0))
    model = new_model(inputs, source)
    before = scores_of(model, source, part)
    optimizer = AdamW(trainable(model), warmup_then_decay(5e-3, STEPS, STEPS // 20))
    step = TrainingStep(
        model,
        TASK.row_losses,
        optimizer,
        tf.distribute.get_strategy(),
        forward=lambda features: TASK.forward(model, features),
    )
    rng = np.random.default_rng(0)
    plans = [plan for _ in range(STEPS) for plan in source.plans([8], 999, 99, rng)]
    for batch in source.dataset(plans):
        step(batch)
    after = scores_of(model, source, part)
    assert before["masked_tokens"] == after["masked_tokens"] >= 16
    assert before["masked_accuracy"] < 0.4 and after["masked_accuracy"] > 0.9
    assert after["loss"] < 0.5 < before["loss"]


def test_initial_model_equals_the_baseline(inputs):
    """The initial model predicts the token frequencies, except for its small random weights."""
    part = inputs.part("train")
    source = inputs.source("train", TASK.training_set(part, [], 0))
    model = new_model(inputs, source)
    found = unigram_probabilities(source.token_counts())
    np.testing.assert_allclose(np.exp(model.bias.numpy()), found, rtol=1e-5)
    fitted = TASK.baseline(part, part, part, [], 0)
    description, baseline = fitted.description, fitted.scores
    assert description == "frequencies of 96 training tokens"
    scores = scores_of(model, source, part)
    assert (scores["rows"], scores["masked_tokens"]) == (16, baseline["masked_tokens"])
    assert scores["loss"] == pytest.approx(baseline["loss"], abs=0.3)


def test_loss_weights_tokens_not_rows(inputs):
    source = inputs.source("train", TASK.training_set(inputs.part("train"), [], 0))
    (plan,) = source.plans([8], 999, 99, rng=None)
    batch = source.batch(plan)
    model = new_model(inputs, source)
    logits = model(batch["features"], training=False)
    losses = np.asarray(TASK.row_losses(batch["targets"], logits))
    scores = scores_of(model, source, inputs.part("train"))
    assert losses @ batch["weights"] / batch["weights"].sum() == pytest.approx(scores["loss"], rel=1e-5)


def test_empty_texts_are_skipped():
    columns = Columns("text")
    assert TASK.parse_row(Row({"text": " \t"}, "a:1"), columns) == ()
    (example,) = TASK.parse_row(Row({"text": " b "}, "a:2"), columns)
    assert (example.texts, example.labels) == ((" b ",), ())


def from_details(details: dict) -> MaskedLmTask:
    return MaskedLmTask.from_bundle(types.SimpleNamespace(details=details))


def test_bundle_restores_the_settings():
    task = MaskedLmTask(share=0.3, whole_word=True, packed=False)
    assert from_details(task.details_for_bundle) == task
    assert task.masking == Masking(0.3, True, False)
    assert from_details({}) == MaskedLmTask()
    for wrong in ({"share": "a"}, {"share": 0}, {"depth": 1}, 5):
        with pytest.raises(InputError, match="masking: expected share, whole_word and packed"):
            from_details({"masking": wrong})
