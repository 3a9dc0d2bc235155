"""The gRPC stubs of tensorflow-serving-api, through the client in examples/, against a server of the same service.

The server is clients/programs/grpc_server.py, not TensorFlow Serving: this holds the signatures and messages to the
published service, and says nothing about the server itself.
"""

import importlib.metadata
import importlib.util
import json
import socket
import subprocess
import sys
from pathlib import Path

import numpy as np

from clients.children import ServerError, free_port, started
from clients.environments import clean_environment, reason
from clients.material import NAME, Material
from clients.outcome import Outcome, compared, not_run

PACKAGE = "tensorflow-serving-api"
ROOT = Path(__file__).resolve().parents[1]
CLIENT = ROOT / "examples" / "serving_client.py"
PROGRAM = ROOT / "clients" / "programs" / "grpc_server.py"
START_SECONDS, ANSWER_SECONDS = 120, 300
# A call of the client carries few texts; its program is started anew for each.
BATCH = 100


def outcome(material: Material) -> Outcome:
    """The outcome of the client's Predict and Classify calls; both must agree."""
    if importlib.util.find_spec("tensorflow_serving") is None:
        return not_run(PACKAGE, f"the package {PACKAGE} is not installed; pip install 'kmha[serving]'")
    version = importlib.metadata.version(PACKAGE)
    name, given = f"{PACKAGE} {version} stubs, gRPC (our own server)", "raw text"
    port = free_port()
    command = [sys.executable, str(PROGRAM), str(material.savedmodel), NAME, str(port)]
    rows: list[list[list[float]]] = [[], []]
    try:
        with started(command, lambda: _listens(port), START_SECONDS, TF_CPP_MIN_LOG_LEVEL="3"):
            for first in range(0, len(material.texts), BATCH):
                said = _client(port, material.texts[first : first + BATCH])
                for found, part in zip(rows, both(said, material.bundle.labels), strict=True):
                    found += part
    except (ServerError, OSError, subprocess.TimeoutExpired) as error:
        return Outcome(name, given, len(material.texts), problem=f"failed: {error}")
    thresholds = material.bundle.thresholds
    outcomes = [
        compared(name, given, material.wanted, np.array(found, np.float32), thresholds) for found in rows
    ]
    return max(outcomes, key=lambda one: (bool(one.problem), one.difference))


def both(output: str, labels: list[str]) -> tuple[list[list[float]], list[list[float]]]:
    """Probabilities [texts][labels] that the client printed of its Predict and of its Classify call.

    Args:
        output: JSON lines.
        labels: The order that is wanted.
    """
    answers = {answer["signature"]: answer for answer in map(json.loads, output.splitlines())}
    names = answers["predict_text"]["labels"]
    predicted = [
        [dict(zip(row_names, row, strict=True))[label] for label in labels]
        for row_names, row in zip(names, answers["predict_text"]["probabilities"], strict=True)
    ]
    classified = [[row[label] for label in labels] for row in answers["classify"]["results"]]
    return predicted, classified


def _client(port: int, texts: list[str]) -> str:
    # A NUL cannot be an argument of a program.
    words = [text.replace("\0", " ") for text in texts]
    result = subprocess.run(
        [sys.executable, str(CLIENT), f"127.0.0.1:{port}", NAME, *words],
        capture_output=True,
        text=True,
        env=clean_environment(),
        timeout=ANSWER_SECONDS,
    )
    if result.returncode:
        raise ServerError(reason(result.stderr))
    return result.stdout


def _listens(port: int) -> bool:
    try:
        socket.create_connection(("127.0.0.1", port), 1).close()
        return True
    except OSError:
        return False
