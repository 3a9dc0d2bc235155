"""The contrastive stage: batches of long texts."""

from types import SimpleNamespace

import numpy as np
import pytest
import tensorflow as tf

from kmha.config import EncoderConfig
from kmha.features import PADDING_MASK, SEGMENT_IDS, TOKEN_IDS
from kmha.models.classifier import TextClassifier
from training.config.config import ResolvedConfig
from training.fewshot.contrastive import ContrastiveStage
from training.tasks.classify import ClassifyTask


def _stage(lengths):
    config = EncoderConfig(
        vocabulary_size=50, hidden_dim=16, num_layers=1, num_heads=2, dropout=0.0, attention_dropout=0.0
    )
    model = TextClassifier(config, 2, dropout=0.0)
    model.build()
    source = SimpleNamespace(lengths=np.array(lengths), windows=None)
    return ContrastiveStage(ClassifyTask(), model, source, ResolvedConfig()), model  # pyright: ignore


@pytest.mark.parametrize("lengths", [[3, 3, 8, 20, 70, 90, 100], [5, 80]])
def test_parts_of_a_batch_of_long_texts_have_the_vectors_of_the_whole_batch(lengths):
    stage, model = _stage(lengths)
    random, longest = np.random.default_rng(0), max(lengths)
    mask = (np.arange(longest) < np.array(lengths)[:, None]).astype(np.int32)
    ids = random.integers(4, 50, mask.shape).astype(np.int32) * mask
    features = {TOKEN_IDS: ids, SEGMENT_IDS: np.zeros_like(ids), PADDING_MASK: mask}
    features = {name: tf.constant(values) for name, values in features.items()}
    widths = []
    monitored = stage._task.contrastive_outputs

    def outputs(model, part):
        widths.append(int(part[TOKEN_IDS].shape[1]))
        return monitored(model, part)

    stage._task = SimpleNamespace(contrastive_outputs=outputs)  # pyright: ignore
    found = stage._outputs(features).numpy()
    np.testing.assert_allclose(found, model.pooled_vectors(features, training=True), atol=1e-5)
    assert len(widths) == 4 and widths[0] < widths[-1] == longest


def test_short_texts_are_encoded_at_once():
    stage, _ = _stage([3, 20, 30])
    assert not stage._is_long
