import keras
import numpy as np
import pytest
from keras import ops

from kmha.layers.local_context import LocalContext


@pytest.mark.parametrize("width", [1, 3, 5])
def test_the_convolution_uses_adjacent_positions_and_no_padding(width):
    keras.utils.set_random_seed(0)
    layer = LocalContext(width)
    layer.build((None, None, 4))
    x = np.random.default_rng(0).normal(size=(1, 6, 4)).astype("float32")
    mask = np.array([[1, 1, 1, 1, 0, 0]], "int32")
    found = ops.convert_to_numpy(layer(x, mask))
    changed = x.copy()
    changed[0, 4:] = 100
    np.testing.assert_allclose(ops.convert_to_numpy(layer(changed, mask))[0, :4], found[0, :4], atol=1e-6)
    np.testing.assert_allclose(ops.convert_to_numpy(layer(x[:, :4], mask[:, :4]))[0], found[0, :4], atol=1e-6)
    changed = x.copy()
    changed[0, 0] += 1
    moved = np.abs(ops.convert_to_numpy(layer(changed, mask)) - found).max(axis=2)[0] > 1e-6
    assert moved[: 1 + width // 2].all() and not moved[1 + width // 2 :].any()


@pytest.mark.parametrize("width", [0, 2])
def test_an_even_width_is_rejected(width):
    with pytest.raises(ValueError, match=f"an odd number of at least 1, got {width}"):
        LocalContext(width)
