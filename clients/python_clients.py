"""Clients in Python: MediaPipe Tasks, NVIDIA Triton over HTTP, and the gRPC stubs of tensorflow-serving-api.

Triton comes from the package nvidia-pytriton. The gRPC stubs run through examples/serving_client.py against
clients/programs/grpc_server.py, which is not TensorFlow Serving: this checks signatures and messages, not
that server.
"""

import contextlib
import http.client
import importlib.metadata
import importlib.util
import json
import socket
import struct
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np

from clients.comparison import (
    NAME,
    ClientResult,
    ClientUnavailableError,
    ExportedRun,
    compare,
    failure,
    not_run,
)
from clients.processes import (
    ServerError,
    child_environment,
    error_line,
    free_port,
    load_program,
    python_environment,
    running_server,
)

ROOT = Path(__file__).resolve().parents[1]
PROGRAMS = ROOT / "clients" / "programs"
MEDIAPIPE_VERSION = "1.2.2"
# MediaPipe's own tokenizer normalizes accents and full-width punctuation differently.
MIN_AGREEMENT = 0.99
MEDIAPIPE_SECONDS = 600
QUIET = {"TF_CPP_MIN_LOG_LEVEL": "3"}
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


def check_metadata(bundle) -> None:
    """Raises ClientUnavailableError for a bundle that MediaPipe has no tokenizer for."""
    from export.tflite.metadata import has_metadata

    if not has_metadata(bundle, 1, False):
        kind = bundle.preprocessor.tokenization
        raise ClientUnavailableError(f"MediaPipe has no tokenizer for a model of {kind} tokens")


def exact_rows(texts: Sequence[str]) -> list[bool]:
    """For each text, whether MediaPipe's tokenizer makes exactly the run's tokens: plain ASCII."""
    return [text.isascii() for text in texts]


def mediapipe_result(exported: ExportedRun) -> ClientResult:
    """Runs MediaPipe in its own environment."""
    name, inputs = f"MediaPipe Tasks in Python {MEDIAPIPE_VERSION}", "raw text"
    try:
        check_metadata(exported.bundle)
        python = python_environment(
            exported.folder / "environments" / "mediapipe", [f"mediapipe=={MEDIAPIPE_VERSION}"]
        )
    except ClientUnavailableError as error:
        return not_run(name, str(error))
    request = {"model": str(exported.tflite), "texts": exported.texts, "labels": exported.bundle.labels}
    command = [python, str(PROGRAMS / "mediapipe_texts.py")]
    options = {"capture_output": True, "text": True, "env": child_environment(), "timeout": MEDIAPIPE_SECONDS}
    process = subprocess.run(command, input=json.dumps(request, allow_nan=False), **options)
    if process.returncode:
        return failure(name, inputs, len(exported.texts), error_line(process.stderr))
    response = json.loads(process.stdout)
    found = np.array(response["probabilities"], np.float32)
    exact, thresholds, seconds = exact_rows(exported.texts), exported.bundle.thresholds, response["seconds"]
    return compare(name, inputs, exported.expected, found, thresholds, MIN_AGREEMENT, exact, seconds)


def triton_result(exported: ExportedRun) -> ClientResult:
    """Queries a Triton server that serves the SavedModel."""
    name, inputs = f"Triton (nvidia-pytriton {TRITON_VERSION}), HTTP", "raw text"
    environment = exported.folder / "environments" / "triton"
    try:
        with (
            running_triton(environment, exported.savedmodel.parent) as (_, port),
            triton_connection(port) as connection,
        ):
            _query_triton(connection, exported.texts[:1])
            began = time.perf_counter()
            batches = _batches(exported.texts, TRITON_BATCH)
            rows = [row for batch in batches for row in _query_triton(connection, batch)]
            seconds = time.perf_counter() - began
    except ClientUnavailableError as error:
        return not_run(name, str(error))
    except (ServerError, OSError, http.client.HTTPException) as error:
        return failure(name, inputs, len(exported.texts), error)
    found = np.array(rows, np.float32)
    return compare(name, inputs, exported.expected, found, exported.bundle.thresholds, seconds=seconds)


@contextlib.contextmanager
def running_triton(environment: Path, folder: Path) -> Iterator[tuple[subprocess.Popen, int]]:
    """Serves a folder of versions with Triton during the block; gives the server's process and its HTTP port.

    `environment` is the folder of Triton's virtual environment, created if missing. Raises ClientUnavailableError
    if it cannot be created, ServerError if the server does not start.
    """
    python = python_environment(environment, TRITON_PACKAGES, TRITON_PYTHON, without_pip=True)
    ports = [free_port() for _ in range(3)]
    program = [python, str(PROGRAMS / "triton_server.py"), str(folder), NAME, *map(str, ports)]
    with running_server(program, lambda: _triton_is_ready(ports[0]), TRITON_START_SECONDS, **QUIET) as server:
        yield server, ports[0]


def triton_connection(
    port: int, seconds: float = TRITON_RESPONSE_SECONDS
) -> contextlib.closing[http.client.HTTPConnection]:
    """A persistent connection to a server of this machine, for one thread; `seconds` is the longest response time."""
    return contextlib.closing(http.client.HTTPConnection("127.0.0.1", port, timeout=seconds))


def request_triton(
    connection: http.client.HTTPConnection,
    method: str,
    path: str,
    body: str | bytes | None = None,
    headers: dict[str, str] | None = None,
) -> tuple[int, bytes]:
    """Status and body of the response to a request about the served model."""
    connection.request(method, f"/v2/models/{NAME}/{path}", body, headers or {})
    response = connection.getresponse()
    return response.status, response.read()


def triton_request(texts: Sequence[str], outputs: Sequence[str] = ("probabilities",)) -> dict:
    """The JSON body of a request for texts, in the protocol of Triton and KServe."""
    tensor = {"name": "text", "shape": [len(texts), 1], "datatype": "BYTES", "data": list(texts)}
    return {"inputs": [tensor], "outputs": [{"name": name} for name in outputs]}


def triton_binary_request(texts: Sequence[bytes], outputs: Sequence[str]) -> tuple[bytes, dict[str, str]]:
    """Body and headers of a request for texts that need not be UTF-8, in the protocol's binary format."""
    data = b"".join(struct.pack("<I", len(text)) + text for text in texts)
    request = triton_request([""] * len(texts), outputs)
    del request["inputs"][0]["data"]
    request["inputs"][0]["parameters"] = {"binary_data_size": len(data)}
    header = json.dumps(request, allow_nan=False).encode()
    return header + data, {"Inference-Header-Content-Length": str(len(header))}


def triton_rows(response: dict, output: str = "probabilities") -> list[list[float]]:
    """An output in the JSON body of a response, one list for each text."""
    (tensor,) = [tensor for tensor in response["outputs"] if tensor["name"] == output]
    return np.reshape(tensor["data"], tensor["shape"]).tolist()


def _query_triton(connection: http.client.HTTPConnection, texts: Sequence[str]) -> list[list[float]]:
    request = json.dumps(triton_request(texts), allow_nan=False)
    status, body = request_triton(connection, "POST", "infer", request)
    if status != http.client.OK:
        raise ServerError(f"HTTP {status}: {body.decode(errors='replace')[:300]}")
    return triton_rows(json.loads(body))


def _triton_is_ready(port: int) -> bool:
    try:
        with triton_connection(port, 5) as connection:
            return request_triton(connection, "GET", "ready")[0] == http.client.OK
    except (OSError, http.client.HTTPException):
        return False


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
        with running_server(program, lambda: _accepts(port), GRPC_START_SECONDS, **QUIET):
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
