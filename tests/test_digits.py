"""The image example trains and prints both accuracies."""

import numpy as np
import pytest

from examples.digits import main, split_into_patches
from tests.command_runs import call


def test_patches_are_squares_row_by_row():
    image = np.arange(64, dtype=np.float32).reshape(1, 8, 8)
    found = split_into_patches(image)
    assert found.shape == (1, 16, 4)
    assert found[0, 0].tolist() == [0, 1, 8, 9]
    assert found[0, 5].tolist() == [18, 19, 26, 27]


@pytest.mark.second
def test_both_models_are_better_than_chance():
    result = call(main, "3").json
    assert result["training_rows"] == 1347 and result["test_rows"] == 450
    # Chance is 0.1; three of the forty epochs are enough for 0.6.
    assert result["attention"]["accuracy"] > 0.6
    assert result["linear"]["accuracy"] > 0.9
