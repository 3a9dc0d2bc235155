import dataclasses

import numpy as np
import pytest

from training.config import EncoderSection, FitConfig, TrainSection
from training.usual import usual_epochs, usual_token_dropout, with_usual

SHORT, LONG = np.full(5, 12), np.array([4, 90, 60])


@pytest.mark.parametrize(
    ("batches", "epochs"), [(1, 20), (60, 20), (61, 20), (100, 12), (399, 4), (10_000, 3)]
)
def test_small_sets_are_seen_more_often(batches, epochs):
    assert usual_epochs(batches) == epochs


def test_tokens_of_short_texts_are_dropped_less():
    assert 0 < usual_token_dropout(SHORT) < usual_token_dropout(LONG) < 1


def test_what_was_left_open_is_filled_in():
    filled = with_usual(FitConfig(), SHORT, 100)
    assert filled.train.epochs == usual_epochs(100)
    assert filled.encoder.token_dropout == usual_token_dropout(SHORT)
    assert with_usual(filled, LONG, 5) == filled


def test_what_was_given_stays_even_where_it_is_nothing():
    given = FitConfig(train=TrainSection(epochs=7), encoder=EncoderSection(token_dropout=0.0))
    assert with_usual(given, LONG, 100) == given
    assert dataclasses.replace(given, train=TrainSection()) != given
