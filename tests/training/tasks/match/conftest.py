"""Rows of pairs that the tests of matching share."""

import numpy as np
import pytest

from tests.pair_rows import paraphrase_rows
from training.config.config import TextSection
from training.data.inputs import Inputs, make_inputs
from training.io.examples import Example, Subset, write_examples
from training.tasks.match.task import MatchTask

ROWS = 90
GRANULARITIES = ("char", "word")


@pytest.fixture(scope="module")
def inputs(tmp_path_factory) -> Inputs:
    """Pairs of texts of many lengths, tokenized in two ways; the last ones have an empty side."""
    pairs = [(a, b) for a, b, _ in paraphrase_rows(ROWS - 2, seed=3)]
    pairs = [(" ".join(a.split()[: 1 + n % 9]), b) for n, (a, b) in enumerate(pairs)]
    pairs += [("", pairs[0][1]), (pairs[1][0], "")]
    folder = tmp_path_factory.mktemp("overlap")
    examples = write_examples((Example(pair, ("1",), "a:1") for pair in pairs), folder / "rows", num_texts=2)
    text = TextSection(max_length=40, vocabulary_size=300, min_frequency=1)
    return make_inputs(
        text, {"train": Subset(examples, np.arange(ROWS))}, folder, MatchTask(granularities=GRANULARITIES)
    )
