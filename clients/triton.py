"""NVIDIA's Triton server, as the package nvidia-pytriton carries it, asked over HTTP."""

import http.client
import json
import time
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from clients.children import ServerError, free_port, started
from clients.environments import python_environment
from clients.material import NAME, ReportData
from clients.outcome import NotRunError, Outcome, compared, not_run

VERSION = "0.7.0"
PACKAGES = (f"nvidia-pytriton=={VERSION}", "tensorflow==2.21.0", "tensorflow-text==2.21.1")
# Triton's Python backend links the libpython of Debian; another build of Python has none beside it.
PYTHON = "/usr/bin/python3.11"
PROGRAM = Path(__file__).resolve().parent / "programs" / "triton_server.py"
START_SECONDS, ANSWER_SECONDS = 240, 120
BATCH = 8


def outcome(material: ReportData) -> Outcome:
    """The outcome of a Triton server that serves the SavedModel."""
    name, given = f"Triton (nvidia-pytriton {VERSION}), HTTP", "raw text"
    try:
        python = python_environment(material.environments / "triton", PACKAGES, PYTHON, without_pip=True)
    except NotRunError as error:
        return not_run(name, str(error))
    ports = [free_port() for _ in range(3)]
    command = [python, str(PROGRAM), str(material.savedmodel), NAME, *map(str, ports)]
    try:
        with started(command, lambda: _is_ready(ports[0]), START_SECONDS, TF_CPP_MIN_LOG_LEVEL="3"):
            _asked(ports[0], material.texts[:1])
            began = time.perf_counter()
            batches = [material.texts[i : i + BATCH] for i in range(0, len(material.texts), BATCH)]
            rows = [row for batch in batches for row in _asked(ports[0], batch)]
            seconds = time.perf_counter() - began
    except (ServerError, OSError, http.client.HTTPException) as error:
        return Outcome(name, given, len(material.texts), problem=f"failed: {error}")
    found = np.array(rows, np.float32)
    return compared(name, given, material.expected, found, material.bundle.thresholds, seconds=seconds)


def request(texts: Sequence[str]) -> dict:
    """The JSON body that asks for texts, in the protocol that Triton and KServe share."""
    tensor = {"name": "text", "shape": [len(texts), 1], "datatype": "BYTES", "data": list(texts)}
    return {"inputs": [tensor], "outputs": [{"name": "probabilities"}]}


def rows_of(response: dict) -> list[list[float]]:
    """The probabilities in the JSON body of an answer, a list for each text."""
    (tensor,) = [tensor for tensor in response["outputs"] if tensor["name"] == "probabilities"]
    rows, columns = tensor["shape"]
    data = tensor["data"]
    return [data[row * columns : (row + 1) * columns] for row in range(rows)]


def _asked(port: int, texts: Sequence[str]) -> list[list[float]]:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=ANSWER_SECONDS)
    try:
        connection.request("POST", f"/v2/models/{NAME}/infer", json.dumps(request(texts)))
        response = connection.getresponse()
        body = response.read()
        if response.status != http.client.OK:
            raise ServerError(f"HTTP {response.status}: {body.decode(errors='replace')[:300]}")
        return rows_of(json.loads(body))
    finally:
        connection.close()


def _is_ready(port: int) -> bool:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=5)
    try:
        connection.request("GET", f"/v2/models/{NAME}/ready")
        return connection.getresponse().status == http.client.OK
    except (OSError, http.client.HTTPException):
        return False
    finally:
        connection.close()
