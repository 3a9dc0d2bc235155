import keras
import numpy as np
import pytest
import tensorflow as tf

from export.graph import (
    OUTPUTS,
    check_attention,
    eight_bit_forms,
    features_of,
    ids_function,
    ids_specs,
    input_names,
    output_name,
    sample_rows,
)
from export.onnx.write import quiet_logging
from kmha.errors import InputError
from kmha.layers.crf import CRF, decode
from kmha.text.words import Ragged
from tests.bundles import (
    EDGE_CASES,
    PAIRS,
    TAGGERS,
    TEXTS,
    make_bundle,
    make_linear_bundle,
    make_pair_bundle,
    one_label_bundle,
    pair_bundle,
    several_label_bundle,
    tagger_bundle,
)
from tests.export.tagger_bundles import EDGE_CASE_WORDS, WORDS
from tests.stages import with_stages

# Each in one window, even where every character is a token.
ROWS = [*WORDS[2:4], *EDGE_CASE_WORDS[:5]]
B, W, D, K = 3, 9, 8, 5
NAMES = ("tag_ids", "marginals", "path_probabilities")


@pytest.mark.parametrize("make", [one_label_bundle, several_label_bundle])
@pytest.mark.parametrize("length", [None, 24])
def test_token_ids_give_the_predictions_of_their_texts(make, length):
    bundle, texts = make(), [*TEXTS, *EDGE_CASES]
    function = ids_function(bundle, with_attention=True)
    features = bundle.preprocessor(tf.constant(texts), length)
    outputs = function.get_concrete_function(*ids_specs(bundle, None, length))(
        features["token_ids"], features["padding_mask"]
    )
    np.testing.assert_allclose(outputs["probabilities"], bundle.probabilities(texts), atol=1e-5)
    config, steps = bundle.model.encoder_config, features["token_ids"].shape[1]
    shape = (len(texts), config.num_layers, config.num_heads, steps, steps)
    assert outputs["attention"].shape == shape
    # Every position, padded or not, attends to real positions only; the weights sum to 1.
    seen = (outputs["attention"].numpy() * features["padding_mask"].numpy()[:, None, None, None, :]).sum(-1)
    np.testing.assert_allclose(seen, 1, atol=1e-5)


def test_attention_is_not_returned_by_default():
    function = ids_function(one_label_bundle()).get_concrete_function(*ids_specs(one_label_bundle(), 1, 8))
    assert set(function.structured_outputs) == {"probabilities"}


def features_of_words(bundle, rows, length=None):
    flat = [word.encode("utf-8", "replace") for row in rows for word in row]
    words = Ragged.from_row_lengths(tf.constant(flat, tf.string), [len(row) for row in rows])
    lengths = (None, None) if length is None else (length, length - 2)
    return bundle.preprocessor.pad(bundle.preprocessor.encode(words), lengths)


@pytest.mark.parametrize("kind", with_stages(TAGGERS, ["spelt"]))
@pytest.mark.parametrize("length", [None, 24])
def test_token_ids_give_the_predictions_of_their_sentences(kind, length):
    bundle = tagger_bundle(kind)
    names = input_names(bundle)
    assert output_name(bundle) == "probabilities"
    features = features_of_words(bundle, ROWS, length)
    specs = ids_specs(bundle, None, length)
    assert [spec.name for spec in specs] == names
    assert ("character_ids" in names) == bundle.preprocessor.characters
    function = ids_function(bundle, with_attention=True).get_concrete_function(*specs)
    outputs = function(*(features[name] for name in names))
    mask = features["word_mask"].numpy() > 0
    expected = bundle.tagger.tag(ROWS)
    assert set(outputs) == {*OUTPUTS, "attention"}
    np.testing.assert_allclose(outputs["probabilities"].numpy()[mask], expected.probabilities, atol=1e-5)
    np.testing.assert_array_equal(outputs["tag_ids"].numpy()[mask], expected.tag_ids)
    found = outputs["path_probabilities"].numpy()
    np.testing.assert_allclose(found[mask], expected.path_probabilities, atol=1e-5)
    assert not found[~mask].any() and not outputs["scores"].numpy()[~mask].any()
    steps = features["token_ids"].shape[1]
    layers = bundle.model.encoder_config.num_layers
    assert outputs["attention"].shape == (len(ROWS), layers, 2, steps, steps)


def test_scores_decode_to_the_tags_of_sentences():
    bundle = tagger_bundle()
    features = features_of_words(bundle, ROWS)
    outputs = ids_function(bundle)(*(features[name] for name in input_names(bundle)))
    assert set(outputs) == set(OUTPUTS)
    expected = bundle.model(features, training=False)
    np.testing.assert_allclose(outputs["scores"], expected, atol=1e-5)
    assert outputs["tag_ids"].dtype == tf.int32


def test_a_length_allows_as_many_words_as_tokens():
    shapes = {spec.name: spec.shape.as_list() for spec in ids_specs(tagger_bundle(), 1, 10)}
    assert shapes == {
        "token_ids": [1, 10],
        "padding_mask": [1, 10],
        "word_starts": [1, 8],
        "word_mask": [1, 8],
        "character_ids": [1, 8, 20],
    }


def test_without_encoder_blocks_there_is_no_attention():
    with pytest.raises(InputError, match="expected a run with encoder blocks"):
        check_attention(make_linear_bundle(with_encoder=False))


class Tagger(tf.Module):
    """Scores words by a linear layer and decodes them."""

    def __init__(self):
        super().__init__()
        self.dense = keras.layers.Dense(K)
        self.dense.build((None, None, D))
        self.crf = CRF(K, allowed=(1 - np.eye(K, k=2, dtype=int)).tolist(), allowed_start=[1, 1, 1, 0, 1])
        self.crf.build()
        rng = np.random.default_rng(0)
        for layer in (self.dense, self.crf):
            layer.set_weights([2 * rng.normal(size=weight.shape) for weight in layer.weights])
        self.retained = [weight.value for layer in (self.dense, self.crf) for weight in layer.weights]

    def __call__(self, inputs, word_mask):
        found = decode(self.crf(self.dense(inputs), word_mask))
        return {name: tf.identity(getattr(found, name), name) for name in NAMES}


def _specs(rows, width):
    return [
        tf.TensorSpec((rows, width, D), tf.float32, "inputs"),
        tf.TensorSpec((rows, width), tf.int32, "word_mask"),
    ]


def _sentences(lengths, width):
    inputs = np.random.default_rng(1).normal(size=(len(lengths), width, D)).astype("float32")
    return inputs, (np.arange(width) < np.array(lengths)[:, None]).astype("int32")


def _compare(found, inputs, word_mask):
    expected = Tagger()(inputs, word_mask)
    np.testing.assert_array_equal(found["tag_ids"], expected["tag_ids"])
    for name in NAMES[1:]:
        np.testing.assert_allclose(found[name], expected[name], atol=1e-5, err_msg=name)


@pytest.mark.parametrize(
    "sizes",
    [(B, W), pytest.param((None, None), marks=pytest.mark.second)],
    ids=["fixed", "any size"],
)
def test_tflite_decodes_the_same_tags(sizes, tmp_path):
    from ai_edge_litert.interpreter import Interpreter

    from export.tflite.write import check_ops

    tagger = Tagger()
    signature = tf.function(tagger.__call__, input_signature=_specs(*sizes), autograph=False)
    tf.saved_model.save(tagger, str(tmp_path), signatures=signature)
    converter = tf.lite.TFLiteConverter.from_saved_model(str(tmp_path))
    converter.target_spec.supported_ops = [tf.lite.OpsSet.TFLITE_BUILTINS]
    content = converter.convert()
    check_ops(content)
    runner = Interpreter(model_content=content).get_signature_runner()
    given = [_sentences([9, 4, 0], W)]
    if sizes == (None, None):
        given += [_sentences([1], 1), _sentences([3, 2], 4)]
    for inputs, word_mask in given:
        _compare(runner(inputs=inputs, word_mask=word_mask), inputs, word_mask)


@pytest.mark.parametrize("opset", with_stages([17, 18], [17]))
def test_onnx_decodes_the_same_tags(opset):
    import onnxruntime
    import tf2onnx

    with quiet_logging():
        model, _ = tf2onnx.convert.from_function(
            tf.function(Tagger().__call__, autograph=False), _specs(None, None), opset=opset
        )
    # No weight became an input of its own.
    assert [given.name for given in model.graph.input] == ["inputs", "word_mask"]
    session = onnxruntime.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    names = [output.name for output in session.get_outputs()]
    assert set(names) == set(NAMES)
    for inputs, word_mask in (_sentences([9, 4, 0], W), _sentences([1], 1), _sentences([3, 2], 4)):
        outputs = session.run(None, {"inputs": inputs, "word_mask": word_mask})
        _compare(dict(zip(names, outputs, strict=True)), inputs, word_mask)


@pytest.mark.parametrize("make", [make_bundle, make_pair_bundle])
def test_a_bundle_without_a_sample_uses_plain_rows(make):
    bundle = make()
    assert sample_rows(bundle, 3) == bundle.sample[:3]
    bundle.sample = []
    rows = sample_rows(bundle)
    assert len(rows) > 2 and np.isfinite(bundle.probabilities(rows)).all()


def test_features_are_those_of_the_preprocessor():
    for bundle, rows in ((one_label_bundle(), TEXTS), (pair_bundle(), PAIRS)):
        columns = [rows] if isinstance(rows[0], str) else list(zip(*rows, strict=True))
        expected = bundle.preprocessor(*map(list, columns))
        found = features_of(bundle, rows)
        assert list(found) == list(expected)
        for name, values in expected.items():
            np.testing.assert_array_equal(found[name], values)


def test_truncation_keeps_both_special_tokens():
    whole, truncated = features_of(pair_bundle(), PAIRS), features_of(pair_bundle(), PAIRS, 6)
    for side in "ab":
        ids = truncated[f"token_ids_{side}"]
        assert ids.shape == (len(PAIRS), 6)
        np.testing.assert_array_equal(ids[:, :5], whole[f"token_ids_{side}"][:, :5])
        assert set(ids[:, 5]) == {3}


def test_forms_in_8_bits_of_the_sample():
    """A text of more tokens than the model reads is truncated."""
    bundle = make_bundle()
    bundle.sample = []
    without = set(eight_bit_forms(bundle)[0])
    bundle.sample = ["", "old bread " * 100]
    block = bundle.model.encoder.blocks[0]
    kernels = block.attention.query_key_value_kernel, block.attention.output_kernel
    forms, variables = eight_bit_forms(bundle)
    assert set(forms) > without
    assert {id(each) for each in kernels} < set(forms)
    assert len(variables) >= len(forms)
