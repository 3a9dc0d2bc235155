"""Hidden states and sentence embeddings equal the reference values of tests/golden/make_pretrained.py."""

import numpy as np
import pytest
import tensorflow as tf

from kmha.pretrained.sources import find_checkpoint
from kmha.text.preprocessor import Preprocessor
from tests.kmha.pretrained.folders import GOLDEN, TINY, features, filled, hidden_states

COMPILED = {
    "eager": lambda function: function,
    "graph": tf.function,
    "xla": lambda function: tf.function(function, jit_compile=True),
}
every_way = pytest.mark.parametrize("way", COMPILED)


@pytest.mark.second
@every_way
def test_minilm_has_the_hidden_states_of_the_reference(minilm_encoder, minilm_golden, way):
    run = COMPILED[way](lambda **given: tf.stack(hidden_states(minilm_encoder, **given)))
    found = run(**features(minilm_golden)).numpy()[minilm_golden["blocks"]]
    rows = np.arange(found.shape[1])[:, None]
    taken = found[:, rows, minilm_golden["places"], :: int(minilm_golden["every"])]
    np.testing.assert_allclose(taken, minilm_golden["states"], atol=1e-5, rtol=0)
    # The tolerance above is valid for values of this size only.
    assert 0.1 < np.abs(minilm_golden["states"]).mean() < 1


@pytest.mark.parametrize(
    ("way", "padding"), [("eager", 0), ("graph", 9), pytest.param("xla", 9, marks=pytest.mark.second)]
)
def test_minilm_has_the_sentence_embeddings_of_the_reference(minilm_encoder, minilm_golden, way, padding):
    given = {name: np.pad(value, ((0, 0), (0, padding))) for name, value in features(minilm_golden).items()}
    states = COMPILED[way](minilm_encoder.call)(given).numpy()
    means = states.sum(1) / given["padding_mask"].sum(1)[:, None]
    cosines = (means * minilm_golden["vectors"]).sum(1) / np.linalg.norm(means, axis=1)
    assert cosines.min() >= 0.99999
    between = minilm_golden["vectors"] @ minilm_golden["vectors"].T
    assert np.abs(between - np.eye(len(between))).max() < 0.9


def test_minilm_tokenizes_as_the_reference(minilm, minilm_golden):
    preprocessor = Preprocessor(minilm.vocabulary, minilm.tokenization, minilm.lower_case, 64)
    for row, sentence in enumerate(minilm_golden["sentences"]):
        ids = preprocessor(tf.constant([str(sentence)]))["token_ids"][0].numpy()
        expected = minilm_golden["token_ids"][row]
        np.testing.assert_array_equal(ids, expected[: minilm_golden["padding_mask"][row].sum()])


def test_minilm_has_the_values_of_its_config(minilm):
    config = minilm.config
    assert (config.num_layers, config.hidden_dim, config.num_heads, config.intermediate_dim) == (
        6,
        384,
        12,
        1536,
    )
    assert (config.max_length, config.num_segments, config.vocabulary_size) == (512, 2, 30522)
    assert (config.norm, config.norm_epsilon, config.activation) == ("post", 1e-12, "gelu")
    assert (config.unknown_id, minilm.lower_case, minilm.tokenization) == (100, True, "wordpiece")
    assert minilm.origin == "minilm"


@pytest.mark.parametrize("way", ["graph", "xla"])
@pytest.mark.parametrize("name", TINY)
def test_small_checkpoints_have_the_hidden_states_of_the_reference(name, way):
    """In float32, float16 in two files, and bfloat16; with additional heads, and other activations and epsilons."""
    encoder = filled(find_checkpoint(str(GOLDEN / name)))
    with np.load(GOLDEN / name / "states.npz", allow_pickle=False) as golden:
        given = features(golden)
        found = COMPILED[way](lambda **each: tf.stack(hidden_states(encoder, **each)))(**given).numpy()
        real = given["padding_mask"][..., None]
        np.testing.assert_allclose(found * real, golden["states"] * real, atol=1e-5, rtol=0)
        assert golden["states"].std() > 0.5


def test_small_checkpoints_are_read_as_they_are():
    bert, distilbert, electra = (find_checkpoint(str(GOLDEN / name)) for name in TINY)
    assert [each.config.activation for each in (bert, distilbert, electra)] == ["relu", "gelu", "gelu_tanh"]
    assert [each.config.num_segments for each in (bert, distilbert, electra)] == [2, 0, 2]
    assert bert.config.norm_epsilon == 1e-3
    assert bert.vocabulary.tokens == distilbert.vocabulary.tokens == electra.vocabulary.tokens
    assert distilbert.lower_case and not (GOLDEN / "distilbert" / "vocab.txt").exists()
    assert all(weight.dtype == np.float32 for weight in electra.read_weights().values())
