"""The encoder: padding, batch, segments, order, weights."""

import dataclasses
import functools

import keras
import numpy as np
import pytest
from keras import ops

from kmha.bundle.bundle import parts_of
from kmha.config import EncoderConfig
from kmha.layers.initial_values import zeros_at_first
from kmha.models.encoder import TransformerEncoder, traced
from tests.bundles import TEXTS, make_bundle, make_pair_bundle
from tests.kmha.models.tiny_features import CONFIGS, MAX_LENGTH, V, features, random_features
from tests.layer_checks import fill_weights, gradients, to_numpy

every_config = pytest.mark.parametrize("name", CONFIGS)


@functools.cache
def _encoder(name):
    encoder = TransformerEncoder(CONFIGS[name])
    encoder.build({"token_ids": (None, None)})
    fill_weights(encoder)
    return encoder


@every_config
def test_padding_gives_exact_zeros_and_a_row_of_padding_is_finite(name):
    given = random_features()
    output, weights = _encoder(name)(given, return_attention_weights=True)
    output = to_numpy(output)
    assert np.isfinite(output).all()
    assert (output[given["padding_mask"] == 0] == 0).all()
    assert (output[given["padding_mask"] == 1] != 0).all(axis=-1).all()
    assert len(weights) == CONFIGS[name].num_layers
    for block in map(to_numpy, weights):
        assert block.shape == (3, 2, 6, 6)
        assert (np.moveaxis(block, -1, 1)[given["padding_mask"] == 0] == 0).all()
        np.testing.assert_allclose(block[:2].sum(axis=-1), 1, atol=1e-6)
        assert (block[2] == 0).all()


@every_config
def test_returning_weights_changes_no_bit_of_the_output(name):
    given = random_features()
    plain = to_numpy(_encoder(name)(given))
    np.testing.assert_array_equal(to_numpy(_encoder(name)(given, return_attention_weights=True)[0]), plain)


def test_segments_influence_the_output_of_models_with_segments():
    ids = [[2, 7, 8, 3]]
    one, two = (features(ids, segment_ids=s) for s in ([[0, 0, 0, 0]], [[0, 0, 1, 1]]))
    assert (
        np.abs(to_numpy(_encoder("BERT's form")(one)) - to_numpy(_encoder("BERT's form")(two))).max() > 1e-2
    )
    np.testing.assert_array_equal(to_numpy(_encoder("rotary")(one)), to_numpy(_encoder("rotary")(two)))


@every_config
def test_order_influences_the_output(name):
    one, two = (to_numpy(_encoder(name)(features([row])))[0] for row in ([5, 6, 7, 8], [8, 6, 7, 5]))
    assert np.abs(one[1] - two[1]).max() > 1e-4


def test_gradients_do_not_come_from_padding():
    encoder = _encoder("from scratch")
    given = features([[5, 6, 7], [8]], 4)
    table = to_numpy(encoder.embedding.tokens.embeddings)

    assert encoder.embedding.position is not None
    position = encoder.embedding.position

    def loss(rows):
        x = position(rows)
        for block in encoder.blocks:
            x = block(x, attention_mask=given["padding_mask"])
        assert encoder.norm is not None
        return ops.sum((encoder.norm(x) * given["padding_mask"][..., None]) ** 2)

    (gradient,) = gradients(loss, table[given["token_ids"]])
    assert (gradient[given["padding_mask"] == 0] == 0).all()
    assert (gradient[given["padding_mask"] == 1] != 0).any(axis=-1).all()


def test_token_dropout_acts_in_training_only():
    encoder = _encoder("from scratch")
    seen = []
    for _ in range(2):
        seen.append(to_numpy(encoder(random_features())))
    np.testing.assert_array_equal(*seen)
    assert np.abs(to_numpy(encoder(random_features(), training=True)) - seen[0]).max() > 1e-3
    assert encoder.token_dropout.first_id == 5 and encoder.token_dropout.replacement == 1


def test_token_dropout_is_inactive_with_explicit_positions():
    config = dataclasses.replace(_encoder("from scratch").config, dropout=0.0, token_dropout=0.9)
    encoder = TransformerEncoder(config)
    ids = random_features()["token_ids"]
    positions = np.broadcast_to(np.arange(ids.shape[1], dtype="int32"), ids.shape)
    given = encoder.embed(ids, position_ids=positions, training=True)
    np.testing.assert_allclose(to_numpy(given), to_numpy(encoder.embed(ids)), atol=1e-6)
    assert np.abs(to_numpy(encoder.embed(ids, training=True)) - to_numpy(given)).max() > 1e-3


@pytest.mark.parametrize("name", ["BERT's form", "sinusoidal"])
def test_texts_longer_than_the_maximum_are_rejected(name):
    with pytest.raises(ValueError, match=f"at most max_length {MAX_LENGTH}, got {MAX_LENGTH + 1}"):
        _encoder(name)(features([[V - 1] * (MAX_LENGTH + 1)]))


def test_blocks_start_from_different_random_numbers():
    encoder = TransformerEncoder(CONFIGS["BERT's form"])
    encoder.build({"token_ids": (None, None)})
    first, second = (to_numpy(block.attention.query_key_value_kernel).ravel() for block in encoder.blocks)
    assert abs(np.corrcoef(first, second)[0, 1]) < 0.5


def test_a_symbolic_call_gives_the_weights_too():
    encoder = TransformerEncoder(CONFIGS["from scratch"])
    symbols = {
        name: keras.Input((6,), dtype="int32") for name in ("token_ids", "segment_ids", "padding_mask")
    }
    output, weights = encoder(symbols, return_attention_weights=True)
    assert output.shape == (None, 6, encoder.config.hidden_dim) and len(weights) == encoder.config.num_layers


def test_states_and_weights_of_every_block_are_recorded():
    bundle = make_bundle(num_layers=3)
    features = bundle.preprocessor(list(TEXTS))
    encoder = bundle.model.encoder
    with traced(weights=True) as traces:
        logits = bundle.model(features)
    _, weights = bundle.model(features, return_attention_weights=True)
    (trace,) = traces
    assert trace.encoder is encoder and len(trace.states) == 4
    np.testing.assert_array_equal(trace.states[0], encoder.embed(features["token_ids"]))
    np.testing.assert_array_equal(trace.mask, features["padding_mask"])
    for seen, returned in zip(trace.weights, weights, strict=True):
        np.testing.assert_array_equal(seen, returned)
    # Each state is the output of one block for the previous state.
    x = encoder.blocks[1](trace.states[1], attention_mask=trace.mask)
    np.testing.assert_allclose(trace.states[2], x, atol=1e-5)
    np.testing.assert_array_equal(bundle.model(features), logits)


def test_traces_of_a_pair_are_in_order_and_end_with_the_context():
    bundle = make_pair_bundle(("char", "wordpiece"), share_weights=False)
    features = bundle.preprocessor(["old bread"], ["seven ferries left"])
    with traced() as traces:
        bundle.model(features)
        with traced() as inner:
            bundle.model(features)
    bundle.model(features)
    encoders = [encoder for index in range(2) for encoder in bundle.model.encoders_of(index)]
    assert [trace.encoder for trace in traces] == [trace.encoder for trace in inner] == encoders
    assert len(parts_of(bundle.preprocessor)) == 2


@pytest.mark.parametrize("norm", ["pre", "post"])
def test_encoders_get_zeros_at_first_only_on_request(norm):
    config = EncoderConfig(
        vocabulary_size=30, hidden_dim=8, num_layers=1, num_heads=2, positions="learned", norm=norm
    )

    def deviations():
        encoder = TransformerEncoder(config)
        encoder.build({"token_ids": (None, None)})
        return {weight.path: to_numpy(weight).std() for weight in encoder.weights if len(weight.shape) == 2}

    with zeros_at_first():
        assert not any(deviations().values())
    found = deviations()
    assert len(found) == 6 and min(found.values()) > 0.01
