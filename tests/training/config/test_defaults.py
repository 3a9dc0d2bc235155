import dataclasses

import numpy as np
import pytest

from training.config.config import EncoderSection, FitConfig, OptimizerSection, ResolvedConfig, TrainSection
from training.config.defaults import (
    default_epochs,
    default_token_dropout,
    resolve_config,
    resolve_data_defaults,
)
from training.tasks.classify import ClassifyTask
from training.tasks.match.task import MatchTask
from training.tasks.tag.task import TagTask

ONE, SEVERAL = ClassifyTask(), ClassifyTask(multi_label=True)
SHORT, LONG = np.full(5, 12), np.array([4, 90, 60])


@pytest.mark.parametrize(
    ("batches", "epochs"), [(1, 20), (60, 20), (61, 20), (100, 12), (399, 4), (10_000, 3)]
)
def test_small_data_gets_more_epochs(batches, epochs):
    assert default_epochs(batches) == epochs


def test_short_texts_get_less_token_dropout():
    assert 0 < default_token_dropout(SHORT) < default_token_dropout(LONG) < 1


def test_unset_settings_are_filled_in():
    filled = resolve_data_defaults(ResolvedConfig(), ONE, SHORT, 100)
    assert filled.train.epochs == default_epochs(100)
    assert filled.encoder.token_dropout == default_token_dropout(SHORT)
    assert (filled.optimizer.embedding_rate, filled.optimizer.learning_rate) == (1, 1e-3)
    assert resolve_data_defaults(filled, SEVERAL, LONG, 5) == filled


def test_multi_label_tasks_get_a_higher_embedding_rate():
    assert (resolve_data_defaults(ResolvedConfig(), SEVERAL, SHORT, 100).optimizer.embedding_rate or 0) > 1


def test_explicit_settings_are_retained_zeros_included():
    given = ResolvedConfig(
        train=TrainSection(epochs=7),
        encoder=EncoderSection(dropout=0.0, token_dropout=0.0),
        optimizer=OptimizerSection(embedding_rate=0.5, learning_rate=0.002),
    )
    assert resolve_data_defaults(given, SEVERAL, LONG, 100, pairs=10) == given
    assert resolve_data_defaults(given, SEVERAL, LONG, 100) == given


def test_few_pairs_get_a_lower_learning_rate():
    rates = [
        resolve_data_defaults(ResolvedConfig(), ONE, LONG, 5, pairs).optimizer.learning_rate or 0
        for pairs in (0, 4999, 5000)
    ]
    assert rates[1] < rates[0] == rates[2]


def test_taggers_get_rotary_positions_cased_texts_and_less_dropout():
    config = resolve_config(FitConfig(task="tag"))
    assert (config.encoder.positions, config.text.lower_case) == ("rotary", False)
    others = resolve_config(FitConfig())
    assert (others.encoder.positions, others.text.lower_case) == ("learned", True)
    spelt, single = (
        resolve_data_defaults(config, TagTask(characters=characters), SHORT, 100).encoder
        for characters in (True, False)
    )
    classified = resolve_data_defaults(others, ONE, SHORT, 100).encoder
    assert (single.dropout or 1) < (spelt.dropout or 1) <= (classified.dropout or 0)
    assert (single.token_dropout or 1) < (spelt.token_dropout or 1) < (classified.token_dropout or 0)


@pytest.mark.parametrize(("batches", "epochs"), [(10, 6), (125, 4), (275, 2), (5000, 2)])
def test_pairs_from_a_checkpoint_get_fewer_epochs_than_texts(batches, epochs):
    config = ResolvedConfig(task="match", encoder=EncoderSection(pretrained="some"))
    pairs = resolve_data_defaults(config, MatchTask(), LONG, batches, pairs=99).train.epochs
    texts = resolve_data_defaults(
        dataclasses.replace(config, task="classify"), ONE, LONG, batches
    ).train.epochs
    assert pairs == epochs <= texts
