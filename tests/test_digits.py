"""The script on images runs, learns, and tells both figures."""

import numpy as np

from examples.digits import main, patches
from tests.command_runs import call


def test_patches_are_squares_row_by_row():
    image = np.arange(64, dtype=np.float32).reshape(1, 8, 8)
    found = patches(image)
    assert found.shape == (1, 16, 4)
    assert found[0, 0].tolist() == [0, 1, 8, 9]
    assert found[0, 5].tolist() == [18, 19, 26, 27]


def test_it_learns_and_tells_both_figures():
    told = call(main, "3").json
    assert told["training_rows"] == 1347 and told["test_rows"] == 450
    # One in ten by chance; three epochs of forty are enough to be far from it.
    assert told["attention"]["accuracy"] > 0.6
    assert told["linear"]["accuracy"] > 0.9
