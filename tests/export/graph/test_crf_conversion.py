"""A CRF inside a larger graph, on devices: the same tags and probabilities as Keras gives."""

import keras
import numpy as np
import pytest
import tensorflow as tf

from export.onnx.write import quiet_logging
from kmha.layers.crf import CRF
from kmha.layers.crf_decoding import decode

B, W, D, K = 3, 9, 8, 5
NAMES = ("tag_ids", "marginals", "path_probabilities")


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
        self.kept = [weight.value for layer in (self.dense, self.crf) for weight in layer.weights]

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


@pytest.mark.parametrize("sizes", [(B, W), (None, None)], ids=["fixed", "any size"])
def test_tflite_gives_the_same(sizes, tmp_path):
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


@pytest.mark.parametrize("opset", [17, 18])
def test_onnx_gives_the_same(opset):
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
        answers = session.run(None, {"inputs": inputs, "word_mask": word_mask})
        _compare(dict(zip(names, answers, strict=True)), inputs, word_mask)
