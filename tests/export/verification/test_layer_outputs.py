import numpy as np
import pytest
import tensorflow as tf

from export.verification.layer_outputs import layer_outputs, padded, sequences
from tests.bundles import TEXTS, make_bundle, one_label_bundle

ENCODERS = [
    {"num_layers": 2},
    {"norm": "post", "positions": "sinusoidal"},
    {"positions": "rotary", "num_segments": 2, "ngram_buckets": 0},
]


@pytest.mark.parametrize("encoder", ENCODERS)
def test_the_layers_are_those_that_the_model_computes(encoder):
    bundle = make_bundle(**encoder)
    ids = sequences(bundle, [text.encode() for text in TEXTS])
    features = padded(bundle, ids, 24)
    mask, layers = features["padding_mask"], layer_outputs(bundle, features)
    np.testing.assert_allclose(layers["probabilities"], bundle.probabilities(TEXTS), atol=1e-6)
    # The last block's output leads to the pooled vector, so the blocks are chained as in the model.
    last = layers[f"block_{bundle.model.encoder_config.num_layers - 1}"]
    mean = (last * mask[..., None]).sum(1) / mask.sum(1, keepdims=True)
    np.testing.assert_allclose(layers["pooling"], mean, atol=1e-5)
    names = ["tokenizer", "embedding"]
    for index in range(bundle.model.encoder_config.num_layers):
        names += [f"block_{index} attention weights", f"block_{index}"]
    assert list(layers) == [*names, "pooling", "logits", "probabilities"]


def test_sequences_are_those_of_the_preprocessor_and_cut_keep_the_end():
    bundle = one_label_bundle()
    texts = [text.encode() for text in TEXTS]
    ids = sequences(bundle, texts)
    features = bundle.preprocessor(tf.constant(texts))
    found = padded(bundle, ids)
    assert list(found) == ["token_ids", "padding_mask"]
    for name, value in found.items():
        np.testing.assert_array_equal(value, features[name])
    cut = [row[0] for row in sequences(bundle, texts, 6)]
    assert max(map(len, cut)) == 6
    for short, (whole,) in zip(cut, ids, strict=True):
        assert short == whole if len(whole) <= 6 else [*whole[:5], whole[-1]]
