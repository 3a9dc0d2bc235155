"""Clients of model servers: NVIDIA Triton over HTTP, and the gRPC stubs of tensorflow-serving-api.

Triton comes from the package nvidia-pytriton. The gRPC stubs run through examples/serving_client.py against
clients/programs/grpc_server.py, which is not TensorFlow Serving: this checks signatures and messages, not
that server.
"""

import http.client
import importlib.metadata
import importlib.util
import json
import socket
import sys
import time
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from clients.comparison import ClientResult, ClientUnavailableError, compare, failure, not_run
from clients.exported_run import NAME, ExportedRun
from clients.processes import ServerError, free_port, python_environment, running_server
from clients.programs import load_program

ROOT = Path(__file__).resolve().parents[1]
PROGRAMS = ROOT / "clients" / "programs"
TRITON_VERSION = "0.7.0"
TRITON_PACKAGES = (f"nvidia-pytriton=={TRITON_VERSION}", "tensorflow==2.21.0", "tensorflow-text==2.21.1")
# Triton's Python backend links Debian's libpython, which other builds of Python do not have.
TRITON_PYTHON = "/usr/bin/python3.11"
TRITON_START_SECONDS, TRITON_RESPONSE_SECONDS = 240, 120
TRITON_BATCH = 8
GRPC_PACKAGE = "tensorflow-serving-api"
GRPC_START_SECONDS = 120
# gRPC clients accept messages of 4 MB; an explanation grows with the square of the text's length.
GRPC_BATCH, EXPLAIN_BATCH = 50, 1


def triton_result(exported: ExportedRun) -> ClientResult:
    """Queries a Triton server that serves the SavedModel."""
    name, inputs = f"Triton (nvidia-pytriton {TRITON_VERSION}), HTTP", "raw text"
    try:
        environment = exported.environments / "triton"
        python = python_environment(environment, TRITON_PACKAGES, TRITON_PYTHON, without_pip=True)
    except ClientUnavailableError as error:
        return not_run(name, str(error))
    ports = [free_port() for _ in range(3)]
    program = [python, str(PROGRAMS / "triton_server.py"), str(exported.savedmodel), NAME, *map(str, ports)]

    def is_ready() -> bool:
        return _triton_is_ready(ports[0])

    try:
        with running_server(program, is_ready, TRITON_START_SECONDS, TF_CPP_MIN_LOG_LEVEL="3"):
            _query_triton(ports[0], exported.texts[:1])
            began = time.perf_counter()
            rows = [
                row
                for batch in _batches(exported.texts, TRITON_BATCH)
                for row in _query_triton(ports[0], batch)
            ]
            seconds = time.perf_counter() - began
    except (ServerError, OSError, http.client.HTTPException) as error:
        return failure(name, inputs, len(exported.texts), error)
    found = np.array(rows, np.float32)
    return compare(name, inputs, exported.expected, found, exported.bundle.thresholds, seconds=seconds)


def triton_request(texts: Sequence[str]) -> dict:
    """The JSON body of a request for texts, in the protocol of Triton and KServe."""
    tensor = {"name": "text", "shape": [len(texts), 1], "datatype": "BYTES", "data": list(texts)}
    return {"inputs": [tensor], "outputs": [{"name": "probabilities"}]}


def triton_rows(response: dict) -> list[list[float]]:
    """The probabilities in the JSON body of a response, one list for each text."""
    (tensor,) = [tensor for tensor in response["outputs"] if tensor["name"] == "probabilities"]
    return np.reshape(tensor["data"], tensor["shape"]).tolist()


def _query_triton(port: int, texts: Sequence[str]) -> list[list[float]]:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=TRITON_RESPONSE_SECONDS)
    try:
        connection.request("POST", f"/v2/models/{NAME}/infer", json.dumps(triton_request(texts)))
        response = connection.getresponse()
        body = response.read()
        if response.status != http.client.OK:
            raise ServerError(f"HTTP {response.status}: {body.decode(errors='replace')[:300]}")
        return triton_rows(json.loads(body))
    finally:
        connection.close()


def _triton_is_ready(port: int) -> bool:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=5)
    try:
        connection.request("GET", f"/v2/models/{NAME}/ready")
        return connection.getresponse().status == http.client.OK
    except (OSError, http.client.HTTPException):
        return False
    finally:
        connection.close()


def grpc_result(exported: ExportedRun) -> ClientResult:
    """The worst result of Predict calls (two signatures) and Classify calls."""
    if importlib.util.find_spec("tensorflow_serving") is None:
        reason = f"the package {GRPC_PACKAGE} is not installed; pip install 'kmha[serving]'"
        return not_run(GRPC_PACKAGE, reason)
    import grpc

    version = importlib.metadata.version(GRPC_PACKAGE)
    name, inputs = f"{GRPC_PACKAGE} {version} stubs, gRPC (our own server)", "raw text"
    port = free_port()
    program = [sys.executable, str(PROGRAMS / "grpc_server.py"), str(exported.savedmodel), NAME, str(port)]
    try:
        with running_server(program, lambda: _accepts(port), GRPC_START_SECONDS, TF_CPP_MIN_LOG_LEVEL="3"):
            began = time.perf_counter()
            found = _query_grpc(f"127.0.0.1:{port}", exported.texts, exported.bundle.labels)
            seconds = (time.perf_counter() - began) / len(found)
    except (ServerError, OSError, grpc.RpcError) as error:
        return failure(name, inputs, len(exported.texts), error)
    thresholds = exported.bundle.thresholds
    results = [
        compare(name, inputs, exported.expected, np.array(rows, np.float32), thresholds, seconds=seconds)
        for rows in found
    ]
    return max(results, key=lambda result: (bool(result.problem), result.difference))


def _query_grpc(address: str, texts: Sequence[str], labels: Sequence[str]) -> list[list[list[float]]]:
    """Probabilities [texts][labels] of each kind of call."""
    import grpc
    from tensorflow_serving.apis import prediction_service_pb2_grpc

    client = load_program(ROOT / "examples" / "serving_client.py")
    encoded = [text.encode() for text in texts]
    predicted, explained, classified = [], [], []
    with grpc.insecure_channel(address) as channel:
        stub = prediction_service_pb2_grpc.PredictionServiceStub(channel)
        for batch in _batches(encoded, GRPC_BATCH):
            outputs = client.predict(stub, NAME, "predict_text", {"text": batch})
            names = [[name.decode() for name in row] for row in outputs["labels"]]
            predicted += reorder(names, outputs["probabilities"].tolist(), labels)
            scores = client.classify(stub, NAME, batch)
            classified += [[row[label] for label in labels] for row in scores]
        for batch in _batches(encoded, EXPLAIN_BATCH):
            explained += client.predict(stub, NAME, "explain", {"text": batch})["probabilities"].tolist()
    return [predicted, classified, explained]


def reorder(
    names: Sequence[Sequence[str]], values: Sequence[Sequence[float]], labels: Sequence[str]
) -> list[list[float]]:
    """Values [R][C] with their names [R][C], in the order of the labels [C]."""
    rows = (dict(zip(*row, strict=True)) for row in zip(names, values, strict=True))
    return [[row[label] for label in labels] for row in rows]


def _batches(texts: Sequence, rows: int) -> list[Sequence]:
    return [texts[first : first + rows] for first in range(0, len(texts), rows)]


def _accepts(port: int) -> bool:
    try:
        socket.create_connection(("127.0.0.1", port), 1).close()
        return True
    except OSError:
        return False
