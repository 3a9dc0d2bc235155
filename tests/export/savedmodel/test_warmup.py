import dataclasses

import numpy as np
import pytest
import tensorflow as tf
from tensorflow_serving.apis import prediction_log_pb2

from export.savedmodel.warmup import (
    BATCH_SIZES,
    WARMUP_REQUESTS,
    classify_log,
    predict_log,
    serialized_example,
)
from export.savedmodel.write import write_savedmodel
from kmha.inference.retrieval import TextVectors
from tests.bundles import one_label_bundle
from tests.export.conftest import BUNDLES

MOST_RECORDS = 1000  # More than that, and TensorFlow Serving refuses the model.


def logs(folder) -> list:
    records = tf.data.TFRecordDataset(str(folder / WARMUP_REQUESTS)).as_numpy_iterator()
    return [prediction_log_pb2.PredictionLog.FromString(record) for record in records]


def inputs_of(log) -> tuple[str, dict[str, np.ndarray]]:
    """The signature of a request, and its inputs."""
    if log.WhichOneof("log_type") == "classify_log":
        request = log.classify_log.request
        examples = [example.SerializeToString() for example in request.input.example_list.examples]
        return request.model_spec.signature_name, {"inputs": np.array(examples, object)}
    request = log.predict_log.request
    return request.model_spec.signature_name, {n: tf.make_ndarray(t) for n, t in request.inputs.items()}


@pytest.mark.parametrize("kind", BUNDLES)
def test_every_request_runs_in_its_signature(served, kind):
    folder, found = served[kind], [inputs_of(log) for log in logs(served[kind])]
    assert 0 < len(found) <= MOST_RECORDS
    loaded = tf.saved_model.load(str(folder))
    assert {name for name, _ in found} == set(loaded.signatures)
    texts = [text.encode() for text in BUNDLES[kind]().sample]
    for name, inputs in found:
        # Compiling for every shape would take a minute.
        if name == "predict_ids_xla" and inputs["token_ids"].shape != (1, 16):
            continue
        answer = loaded.signatures[name](**{key: tf.constant(value) for key, value in inputs.items()})
        sizes = {len(values) for values in [*inputs.values(), *(v.numpy() for v in answer.values())]}
        assert len(sizes) == 1
        if "text" in inputs:
            assert set(inputs["text"]) <= set(texts)
            given = inputs["text"].tolist()
            if name == "embed":
                expected = TextVectors(BUNDLES[kind]())(given)
                np.testing.assert_allclose(answer["vectors"], expected, atol=1e-5)
                continue
            expected = BUNDLES[kind]().probabilities(given)
            np.testing.assert_allclose(answer["probabilities"], expected, atol=1e-5)


def test_there_are_several_batch_sizes_and_all_compiled_shapes(served):
    found = [inputs_of(log) for log in logs(served["one label"])]
    shapes: dict[str, set] = {}
    for name, inputs in found:
        shapes.setdefault(name, set()).add(next(iter(inputs.values())).shape)
    for name in (
        "serving_default",
        "predict_text",
        "predict_ids",
        "classify",
        "explain",
        "embed",
        "embed_ids",
    ):
        assert {shape[0] for shape in shapes[name]} == set(BATCH_SIZES)
    assert shapes["predict_ids_xla"] == {(n, t) for n in (1, 2, 4, 8, 16, 32, 64) for t in (16, 24)}


@pytest.mark.parametrize("size", [0, 1, 127, 128, 20_000])
def test_the_bytes_are_those_of_the_real_messages(size):
    texts = [b"x" * size, b"\xff\0", "港".encode()]
    expected = prediction_log_pb2.PredictionLog()
    request = expected.predict_log.request
    request.model_spec.signature_name = "predict_text"
    request.inputs["text"].CopyFrom(tf.make_tensor_proto(texts))
    assert (
        prediction_log_pb2.PredictionLog.FromString(predict_log("predict_text", {"text": texts})) == expected
    )

    expected = prediction_log_pb2.PredictionLog()
    request = expected.classify_log.request
    request.model_spec.signature_name = "classify"
    for text in texts:
        example = request.input.example_list.examples.add()
        example.features.feature["text"].bytes_list.value.append(text)
    found = classify_log("classify", [serialized_example(text) for text in texts])
    assert prediction_log_pb2.PredictionLog.FromString(found) == expected


def test_without_sample_texts_there_are_no_requests(tmp_path, capsys):
    bundle = dataclasses.replace(one_label_bundle(), sample=[])
    folder = write_savedmodel(bundle, tmp_path / "served")
    assert not (folder / WARMUP_REQUESTS).exists()
    assert "no warm-up requests" in capsys.readouterr().err


def test_long_texts_are_truncated_to_what_is_read(tmp_path):
    bundle = dataclasses.replace(one_label_bundle(), sample=["bread " * 100_000])
    folder = write_savedmodel(bundle, tmp_path / "served")
    assert (folder / WARMUP_REQUESTS).stat().st_size < 1_000_000
