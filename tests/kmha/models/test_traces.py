import numpy as np

from kmha.bundle.files import parts_of
from kmha.models.traces import traced
from tests.bundles import TEXTS, make_bundle, make_pair_bundle


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
