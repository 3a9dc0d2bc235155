import dataclasses

import numpy as np
import pytest

from training.config.config import EncoderSection, FitConfig, OptimizerSection, TrainSection
from training.config.defaults import (
    default_epochs,
    default_token_dropout,
    resolve_defaults,
    resolve_task_defaults,
)
from training.tasks.classify.task import ClassifyTask
from training.tasks.match.task import MatchTask
from training.tasks.tag.task import TagTask

ONE, SEVERAL = ClassifyTask(), ClassifyTask(multi_label=True)
SHORT, LONG = np.full(5, 12), np.array([4, 90, 60])


@pytest.mark.parametrize(
    ("batches", "epochs"), [(1, 20), (60, 20), (61, 20), (100, 12), (399, 4), (10_000, 3)]
)
def test_small_sets_are_seen_more_often(batches, epochs):
    assert default_epochs(batches) == epochs


def test_tokens_of_short_texts_are_dropped_less():
    assert 0 < default_token_dropout(SHORT) < default_token_dropout(LONG) < 1


def test_what_was_left_open_is_filled_in():
    filled = resolve_defaults(FitConfig(), ONE, SHORT, 100)
    assert filled.train.epochs == default_epochs(100)
    assert filled.encoder.token_dropout == default_token_dropout(SHORT)
    assert (filled.optimizer.embedding_rate, filled.optimizer.learning_rate) == (1, 1e-3)
    assert resolve_defaults(filled, SEVERAL, LONG, 5) == filled


def test_tables_learn_faster_where_labels_may_be_rare():
    assert (resolve_defaults(FitConfig(), SEVERAL, SHORT, 100).optimizer.embedding_rate or 0) > 1


def test_what_was_given_stays_even_where_it_is_nothing():
    given = FitConfig(
        train=TrainSection(epochs=7),
        encoder=EncoderSection(dropout=0.0, token_dropout=0.0),
        optimizer=OptimizerSection(embedding_rate=0.5, learning_rate=0.002),
    )
    assert resolve_defaults(given, SEVERAL, LONG, 100, pairs=10) == given
    assert resolve_defaults(given, SEVERAL, LONG, 100) == given


def test_few_pairs_are_learnt_slowly():
    rates = [
        resolve_defaults(FitConfig(), ONE, LONG, 5, pairs).optimizer.learning_rate or 0
        for pairs in (0, 4999, 5000)
    ]
    assert rates[1] < rates[0] == rates[2]


def test_tags_are_read_in_order_and_with_their_case_and_little_of_them_is_dropped():
    config = resolve_task_defaults(FitConfig(task="tag"))
    assert (config.encoder.positions, config.text.lower_case) == ("rotary", False)
    others = resolve_task_defaults(FitConfig())
    assert (others.encoder.positions, others.text.lower_case) == ("learned", True)
    spelt, single = (
        resolve_defaults(config, TagTask(characters=characters), SHORT, 100).encoder
        for characters in (True, False)
    )
    classified = resolve_defaults(others, ONE, SHORT, 100).encoder
    assert (single.dropout or 1) < (spelt.dropout or 1) <= (classified.dropout or 0)
    assert (single.token_dropout or 1) < (spelt.token_dropout or 1) < (classified.token_dropout or 0)


@pytest.mark.parametrize(("batches", "epochs"), [(10, 6), (125, 4), (275, 2), (5000, 2)])
def test_pairs_from_a_checkpoint_are_seen_less_often_than_texts(batches, epochs):
    config = FitConfig(task="match", encoder=EncoderSection(pretrained="some"))
    pairs = resolve_defaults(config, MatchTask(), LONG, batches, pairs=99).train.epochs
    texts = resolve_defaults(dataclasses.replace(config, task="classify"), ONE, LONG, batches).train.epochs
    assert pairs == epochs <= texts
