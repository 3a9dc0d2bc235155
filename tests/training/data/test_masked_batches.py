import dataclasses
from collections import Counter

import numpy as np
import pytest
import tensorflow as tf

from kmha.errors import InputError
from kmha.text.preprocessor import Preprocessor
from kmha.text.vocabulary import SPECIAL_TOKENS, Vocabulary
from training.config.config import TrainSection
from training.data.masked_batches import MaskedSource
from training.data.packing import cut_pieces
from training.engine.loop import epoch_plans
from training.io.example_store import Example, write_examples
from training.io.types import Masking

SETTINGS = TrainSection(batch_tokens=64, batch_rows=4)
VOCABULARY = Vocabulary([*SPECIAL_TOKENS, *"abcdefghij"])


@pytest.fixture(scope="module")
def tokens(tmp_path_factory):
    """Thirty texts, some longer than a row, one without a token."""
    folder = tmp_path_factory.mktemp("texts")
    rng = np.random.default_rng(0)
    texts = [" ".join(rng.choice(list("abcdefghij"), rng.integers(1, 40))) for _ in range(29)] + ["\u200b"]
    examples = write_examples((Example((text,), (), "a") for text in texts), folder / "rows")
    return cut_pieces(examples, Preprocessor(VOCABULARY, max_length=16), folder / "tokens")[0]


def source_of(tokens, packed=True, rows=30, **options) -> MaskedSource:
    return MaskedSource(tokens, np.arange(rows), Masking(packed=packed), **options)


def whole_ids(batch) -> np.ndarray:
    """The token ids of a batch with the hidden ones put back."""
    ids, positions = batch["features"]["token_ids"].copy(), batch["features"]["mask_positions"]
    rows, slots = np.nonzero(batch["targets"] >= 0)
    ids[rows, positions[rows, slots]] = batch["targets"][rows, slots]
    return ids


@pytest.mark.parametrize("packed", [True, False])
@pytest.mark.parametrize("options", [{}, {"full_shapes": True}, {"divisor": 4}])
def test_each_token_stands_in_an_epoch_once(tokens, packed, options):
    source = source_of(tokens, packed, **options)
    seen = Counter()
    for plan in epoch_plans(source, source.buckets([], 2), SETTINGS, 3):
        batch = source.batch(plan)
        ids = whole_ids(batch)
        seen.update(ids[ids >= len(SPECIAL_TOKENS)].tolist())
        there = batch["features"]["padding_mask"] > 0
        assert (ids[~there] == 0).all()
        assert (there[: len(plan.rows), 0]).all() and not there[len(plan.rows) :].any()
        assert batch["weights"].tolist() == (batch["targets"] >= 0).sum(1).tolist()
        assert (batch["weights"][: len(plan.rows)] > 0).all()
    counts = source.token_counts()
    assert seen == {token: count for token, count in enumerate(counts.tolist()) if count}
    assert counts.sum() == tokens.pieces.lengths.sum()


def test_packed_rows_are_fewer_and_fuller(tokens):
    packed, alone = source_of(tokens), source_of(tokens, packed=False)
    assert len(packed.lengths) < len(alone.lengths) == len(tokens.pieces)
    assert packed.lengths.mean() > alone.lengths.mean()
    assert max(packed.lengths.max(), alone.lengths.max()) <= 16


def test_epochs_hide_other_tokens_and_a_resumed_one_the_same(tokens):
    source = source_of(tokens)
    lengths = source.buckets([], 2)
    batches = {
        (epoch, seed): [
            source.batch(plan)
            for plan in epoch_plans(source, lengths, dataclasses.replace(SETTINGS, seed=seed), epoch)
        ]
        for epoch, seed in ((0, 0), (1, 0), (0, 1))
    }
    again = [source.batch(plan) for plan in epoch_plans(source_of(tokens), lengths, SETTINGS, 0)]
    tf.nest.map_structure(np.testing.assert_array_equal, batches[0, 0], again)
    hidden = [
        Counter(row.tobytes() for batch in each for row in batch["features"]["token_ids"])
        for each in batches.values()
    ]
    assert all(len(each & hidden[0]) < 0.5 * len(hidden[0]) for each in hidden[1:])
    assert len({len(each) for each in batches.values()}) == 1


@pytest.mark.parametrize("packed", [True, False])
def test_tf_data_gives_what_batch_gives(tokens, packed):
    source = source_of(tokens, packed, divisor=2)
    plans = epoch_plans(source, source.buckets([], 3), SETTINGS, 0)
    for plan, batch in zip(plans, source.dataset(plans), strict=True):
        tf.nest.map_structure(
            lambda a, b: np.testing.assert_array_equal(a.numpy(), b), batch, source.batch(plan)
        )


def test_what_is_judged_is_hidden_alike_however_it_is_batched(tokens):
    source = source_of(tokens)

    def found(lengths, batch_tokens, rows):
        answers = {}
        for plan in source.plans(lengths, batch_tokens, rows, rng=None):
            for row, targets in zip(plan.rows.tolist(), source.batch(plan)["targets"].tolist(), strict=True):
                answers[row] = [token for token in targets if token >= 0]
        return answers

    assert found([16], 64, 4) == found([8, 16], 999, 7)


def test_texts_without_a_token_are_refused(tokens):
    with pytest.raises(InputError, match="expected a text with a token, got none"):
        MaskedSource(tokens, np.array([29]), Masking())


def test_n_grams_are_learnt_from_texts_as_they_stand(tokens):
    source = source_of(tokens)
    rows = [row[row > 0].tolist() for batch in source.different_ids() for row in batch]
    assert len(rows) == len(tokens.pieces)
    assert all(row[0] == 2 and row[-1] == 3 and not set(row[1:-1]) & set(range(5)) for row in rows)
    assert source.text_lengths.tolist() == [len(row) for row in rows]
