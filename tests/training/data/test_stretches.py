import numpy as np
import pytest

from tests.command_runs import news_rows
from training.config.config import TextSection
from training.data.large_data import Large
from training.data.streamed import Stretches
from training.data.text_batches import tokenize_examples
from training.data.tokenizer_training import make_preprocessor
from training.io.example_store import Example, write_examples
from training.io.types import Subset
from training.tasks.classify import ClassifyTask

ROWS = 50


@pytest.fixture(scope="module")
def cut(tmp_path_factory):
    """A part of some rows of a set, its preprocessor, and all its tokens."""
    folder = tmp_path_factory.mktemp("stretches")
    examples = write_examples((Example((t,), (y,), "") for t, y in news_rows(ROWS, seed=0)), folder / "rows")
    part = Subset(examples, np.arange(0, ROWS, 2))
    preprocessor = make_preprocessor(TextSection("word", max_length=8), {"train": part}, ClassifyTask())
    return part, preprocessor, tokenize_examples(examples, preprocessor, folder / "all")


def test_every_epoch_has_every_row_once_in_another_order(cut, tmp_path):
    part, preprocessor, _ = cut
    stretches = Stretches(part, preprocessor, Large(rows=16, seed=0), tmp_path)
    assert stretches.per_epoch == 4  # of at most 8 rows
    epochs = [[stretches.rows(4 * epoch + each).tolist() for each in range(4)] for epoch in range(2)]
    for rows in epochs:
        assert sorted(sum(rows, [])) == part.rows.tolist()
        assert {len(each) for each in rows} == {6, 7}
    assert epochs[0] != epochs[1]
    again = Stretches(part, preprocessor, Large(rows=16, seed=0), tmp_path)
    assert again.rows(5).tolist() == epochs[1][1]
    assert Stretches(part, preprocessor, Large(rows=16, seed=1), tmp_path).rows(5).tolist() != epochs[1][1]


def test_a_stretch_has_the_tokens_of_its_rows_and_leaves_no_file(cut, tmp_path):
    part, preprocessor, (whole, counts) = cut
    stretches = Stretches(part, preprocessor, Large(rows=16, seed=0), tmp_path)
    met = 0
    for number, then in ((0, None), (0, 1), (1, 2), (2, 3), (3, None)):
        rows, ragged_store, found = stretches.take(number, then)
        for mine, theirs in zip(ragged_store.gather(np.arange(len(rows))), whole.gather(rows), strict=True):
            assert np.array_equal(mine, theirs)
        met += found.tokens if then or number else 0
    stretches.close()
    assert met == whole.lengths[part.rows].sum() < counts.tokens
    assert list(tmp_path.iterdir()) == []


def test_what_goes_wrong_beside_is_raised_where_it_is_wanted(cut, tmp_path):
    part, preprocessor, _ = cut
    stretches = Stretches(part, preprocessor, Large(rows=16, seed=0), tmp_path / "missing")
    with pytest.raises(FileNotFoundError):
        stretches.take(0)
    stretches.close()
