import keras
import numpy as np
import pytest

from kmha.config import EncoderConfig
from training.comparison.architectures import CNN, WIDTHS, BiLSTM
from training.comparison.candidates import NAMES, Shape, build

CONFIG = EncoderConfig(30, 8, 1, 2, intermediate_dim=12, max_length=16, ngram_buckets=31, ngram_dim=4)
NETWORKS = [name for name in NAMES if name != "linear"]


def features(lengths, padded: int, seed: int = 0) -> dict:
    """Texts of some lengths, with random padding ids."""
    rng = np.random.default_rng(seed)
    ids = rng.integers(5, 30, (len(lengths), padded)).astype("int32")
    mask = (np.arange(padded) < np.array(lengths)[:, None]).astype("int32")
    return {"token_ids": ids, "segment_ids": np.zeros_like(ids), "padding_mask": mask}


def truncate(given: dict, row: int, length: int) -> dict:
    return {name: values[row : row + 1, :length] for name, values in given.items()}


@pytest.fixture(scope="module")
def models():
    shape = Shape(CONFIG, 3, "mean", 0.1)
    found = {name: build(name, shape, 8) for name in NETWORKS}
    rng = np.random.default_rng(1)
    for model in found.values():
        for weights in model.trainable_variables:
            weights.assign(0.5 * rng.normal(size=weights.shape))
    return found


@pytest.mark.parametrize("name", NETWORKS)
def test_padding_and_other_rows_do_not_change_outputs(models, name):
    lengths = [1, 2, 4, 9, 0]
    given = features(lengths, 12)
    together = np.asarray(models[name](given, training=False))
    assert together.shape == (5, 3) and np.isfinite(together).all()
    for row, length in enumerate(lengths[:4]):
        alone = np.asarray(models[name](truncate(given, row, length), training=False))
        np.testing.assert_allclose(together[row], alone[0], atol=1e-5)
    assert np.ptp(together[:4], axis=0).max() > 1e-3


@pytest.mark.parametrize("name", NETWORKS)
def test_models_with_positions_depend_on_order(name):
    import dataclasses

    shape = Shape(dataclasses.replace(CONFIG, ngram_buckets=0), 3, "mean", 0.1)
    model = build(name, shape, 8)
    for weights in model.trainable_variables:
        weights.assign(np.random.default_rng(1).normal(size=weights.shape))
    given = features([9], 9)
    turned = {**given, "token_ids": given["token_ids"][:, ::-1].copy()}
    there, back = (np.asarray(model(each, training=False)) for each in (given, turned))
    same = np.allclose(there, back, atol=1e-4)
    assert same == (name in ("no-positions", "averages"))


def test_cnn_matches_a_numpy_loop():
    """Windows from each real token, zeros after the text, ReLU, max-pooling."""
    rng = np.random.default_rng(0)
    inputs = rng.normal(size=(2, 7, 5)).astype("float32")
    mask = (np.arange(7) < np.array([[7], [2]])).astype("int32")
    layer = CNN(4)
    layer.build(inputs.shape)
    found = np.asarray(layer(inputs, padding_mask=mask))
    for row, length in enumerate((7, 2)):
        text = np.vstack([inputs[row, :length], np.zeros((5, 5), "float32")])
        expected = []
        for filters, width in zip(layer.filters, WIDTHS, strict=True):
            kernel, bias = (np.asarray(each) for each in filters.get_weights())
            windows = np.stack([text[start : start + width] for start in range(length)])
            outputs = np.einsum("twd,wdf->tf", windows, kernel) + bias
            expected.append(np.maximum(outputs, 0).max(axis=0))
        np.testing.assert_allclose(found[row], np.concatenate(expected), atol=1e-5)


def test_bilstm_ignores_padding():
    """The backward LSTM equals a forward LSTM on the reversed text."""
    rng = np.random.default_rng(0)
    inputs = rng.normal(size=(1, 6, 5)).astype("float32")
    layer = BiLSTM(3)
    layer.build(inputs.shape)
    found = np.asarray(layer(inputs, padding_mask=np.array([[1, 1, 1, 1, 0, 0]], "int32")))[0]
    text = inputs[:, :4]
    there, back = layer.directions.forward_layer, layer.directions.backward_layer
    one_way = keras.layers.LSTM(3, return_sequences=True)
    for lstm, read, expected in ((there, text, found[:3]), (back, text[:, ::-1], found[3:])):
        one_way(read)
        one_way.set_weights(lstm.get_weights())
        np.testing.assert_allclose(np.asarray(one_way(read))[0].max(axis=0), expected, atol=1e-5)
