"""docs/how-to/serving.md and examples/serving_client.py: their requests fit the signatures."""

import base64
import concurrent.futures
import json
import re
from collections.abc import Iterator

import numpy as np
import pytest
import tensorflow as tf

from export.savedmodel.__main__ import SavedModelConfig
from export.savedmodel.write import (
    BATCHING,
    COMPOSE,
    MODELS,
    MONITORING,
    WARMUP_REQUESTS,
    XLA_FLAG,
    serialized_example,
)
from tests.bundles import TEXTS, one_label_bundle
from tests.command_runs import ROOT, call
from training.cli.parser import parse

PAGE = (ROOT / "docs" / "how-to" / "serving.md").read_text("utf-8")
CALLS = re.findall(r"curl -d '(.*?)' http://localhost:8501/v1/models/news:(\w+)", PAGE)


@pytest.fixture(scope="module")
def loaded(served):
    return tf.saved_model.load(str(served["one label"]))


def decoded(value) -> object:
    """JSON values as the server's REST handler reads them: {"b64": …} is bytes."""
    if isinstance(value, list):
        return [decoded(part) for part in value]
    if isinstance(value, dict):
        return base64.b64decode(value["b64"], validate=True)
    return value.encode() if isinstance(value, str) else value


def inputs_of(request: dict, method: str, names: list[str]) -> dict:
    """Returns the inputs of a signature from the JSON of a request."""
    if method == "classify":
        assert set(request) == {"signature_name", "examples"}
        texts = [decoded(example["text"]) for example in request["examples"]]
        return {"inputs": [serialized_example(text) for text in texts]}  # pyright: ignore
    assert set(request) - {"signature_name"} in ({"instances"}, {"inputs"})
    if "inputs" in request:
        return {name: decoded(values) for name, values in request["inputs"].items()}
    rows = request["instances"]
    if len(names) == 1:
        return {names[0]: decoded(rows)}
    return {name: [decoded(row[name]) for row in rows] for name in rows[0]}


@pytest.mark.parametrize(("body", "method"), CALLS)
def test_the_json_of_the_page_is_valid_input(loaded, body, method):
    request = json.loads(body)
    name = request.get("signature_name", "serving_default")
    assert method == ("classify" if name == "classify" else "predict")
    specs = loaded.signatures[name].structured_input_signature[1]
    inputs = inputs_of(request, method, list(specs))
    assert set(inputs) == set(specs)
    outputs = loaded.signatures[name](
        **{key: tf.constant(values, specs[key].dtype) for key, values in inputs.items()}
    )
    (output,) = {"scores", "probabilities", "vectors"} & set(outputs)
    scores = outputs[output].numpy()
    assert len(scores) == len(next(iter(inputs.values()))) and np.isfinite(scores).all()


def test_the_page_calls_every_signature_and_has_all_names(loaded):
    called = {json.loads(body).get("signature_name", "serving_default") for body, _ in CALLS}
    assert called == set(loaded.signatures) - {"predict_ids_xla"}
    names = {name for s in loaded.signatures.values() for name in s.structured_outputs} - {"inputs"}
    for word in [*loaded.signatures, *names, "given", BATCHING, COMPOSE, MODELS, MONITORING, XLA_FLAG]:
        assert f"`{word}`" in PAGE, word
    assert str(WARMUP_REQUESTS) in PAGE


def test_the_command_of_the_page_is_valid():
    (line,) = re.findall(r"^python -m export\.savedmodel (.*?)(?: +#.*)?$", PAGE, re.MULTILINE)
    assert parse(SavedModelConfig, line.split(), "savedmodel").out.name == "news"


@pytest.fixture(scope="module")
def address(served) -> Iterator[str]:
    """Address of a server of the same gRPC service that passes requests to the SavedModel."""
    import grpc
    from tensorflow_serving.apis import prediction_service_pb2_grpc

    from clients.programs.grpc_server import Service

    server = grpc.server(concurrent.futures.ThreadPoolExecutor(1))
    service = Service(str(served["one label"]), "news")
    prediction_service_pb2_grpc.add_PredictionServiceServicer_to_server(service, server)
    port = server.add_insecure_port("localhost:0")
    server.start()
    yield f"localhost:{port}"
    server.stop(None)


def test_the_client_gets_the_predictions_of_the_bundle(address):
    from examples import serving_client

    outcome = call(serving_client.main, address, "news", *TEXTS)
    assert outcome.status == 0
    responses = {
        response.pop("signature"): response for response in map(json.loads, outcome.out.splitlines())
    }
    bundle = one_label_bundle()
    expected = bundle.probabilities(TEXTS)
    for name in ("predict_text", "explain"):
        np.testing.assert_allclose(responses[name]["probabilities"], expected, atol=1e-5)
    found = [[scores[label] for label in bundle.labels] for scores in responses["classify"]["results"]]
    np.testing.assert_allclose(found, expected, atol=1e-5)
    assert responses["explain"]["tokens"][0][:2] == ["[CLS]", "the"]


def test_the_client_sends_ids_too(address, ids_of_texts):
    import grpc
    from tensorflow_serving.apis import prediction_service_pb2_grpc

    from examples import serving_client

    bundle = one_label_bundle()
    with grpc.insecure_channel(address) as channel:
        stub = prediction_service_pb2_grpc.PredictionServiceStub(channel)
        outputs = serving_client.predict(stub, "news", "predict_ids", ids_of_texts(bundle))
    np.testing.assert_allclose(outputs["probabilities"], bundle.probabilities(TEXTS), atol=1e-5)


def test_the_client_prints_its_usage():
    from examples import serving_client

    outcome = call(serving_client.main, "localhost:8500")
    assert outcome.status == 2 and outcome.err.startswith("usage:")
