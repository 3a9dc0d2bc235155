"""The gRPC stubs of tensorflow-serving-api, through the client in examples/, against a server of the same service.

The server is clients/programs/grpc_server.py, not TensorFlow Serving: this holds the signatures and messages to the
published service, and says nothing about the server itself.
"""

import importlib.metadata
import importlib.util
import socket
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np

from clients.children import ServerError, free_port, started
from clients.material import NAME, ReportData
from clients.outcome import Outcome, compared, not_run
from clients.programs import loaded_program

PACKAGE = "tensorflow-serving-api"
ROOT = Path(__file__).resolve().parents[1]
CLIENT = ROOT / "examples" / "serving_client.py"
PROGRAM = ROOT / "clients" / "programs" / "grpc_server.py"
START_SECONDS = 120
# gRPC's clients take answers of 4 MB, and an explanation grows with the square of the text's length.
BATCH, EXPLAINED_AT_ONCE = 50, 1


def outcome(material: ReportData) -> Outcome:
    """The outcome of Predict calls of two signatures and of Classify calls; all must agree."""
    if importlib.util.find_spec("tensorflow_serving") is None:
        return not_run(PACKAGE, f"the package {PACKAGE} is not installed; pip install 'kmha[serving]'")
    import grpc

    version = importlib.metadata.version(PACKAGE)
    name, given = f"{PACKAGE} {version} stubs, gRPC (our own server)", "raw text"
    port = free_port()
    command = [sys.executable, str(PROGRAM), str(material.savedmodel), NAME, str(port)]
    try:
        with started(command, lambda: _listens(port), START_SECONDS, TF_CPP_MIN_LOG_LEVEL="3"):
            began = time.perf_counter()
            found = _asked(f"127.0.0.1:{port}", material.texts, material.bundle.labels)
            seconds = (time.perf_counter() - began) / len(found)
    except (ServerError, OSError, grpc.RpcError) as error:
        return Outcome(name, given, len(material.texts), problem=f"failed: {' '.join(str(error).split())}")
    thresholds = material.bundle.thresholds
    outcomes = [
        compared(name, given, material.expected, np.array(rows, np.float32), thresholds, seconds=seconds)
        for rows in found
    ]
    return max(outcomes, key=lambda one: (bool(one.problem), one.difference))


def _asked(address: str, texts: Sequence[str], labels: Sequence[str]) -> list[list[list[float]]]:
    """Probabilities [texts][labels] by each kind of call."""
    import grpc
    from tensorflow_serving.apis import prediction_service_pb2_grpc

    client = loaded_program(CLIENT)
    encoded = [text.encode() for text in texts]
    predicted, explained, classified = [], [], []
    with grpc.insecure_channel(address) as channel:
        stub = prediction_service_pb2_grpc.PredictionServiceStub(channel)
        for batch in _batches(encoded, BATCH):
            answers = client.predict(stub, NAME, "predict_text", {"text": batch})
            names = [[name.decode() for name in row] for row in answers["labels"]]
            predicted += in_order(names, answers["probabilities"].tolist(), labels)
            scores = client.classify(stub, NAME, batch)
            classified += [[row[label] for label in labels] for row in scores]
        for batch in _batches(encoded, EXPLAINED_AT_ONCE):
            explained += client.predict(stub, NAME, "explain", {"text": batch})["probabilities"].tolist()
    return [predicted, classified, explained]


def in_order(
    names: Sequence[Sequence[str]], values: Sequence[Sequence[float]], labels: Sequence[str]
) -> list[list[float]]:
    """Values [R][C] that stand beside names [R][C], in the order of the labels [C]."""
    rows = (dict(zip(*row, strict=True)) for row in zip(names, values, strict=True))
    return [[row[label] for label in labels] for row in rows]


def _batches(texts: Sequence[bytes], rows: int) -> Iterator[Sequence[bytes]]:
    return (texts[first : first + rows] for first in range(0, len(texts), rows))


def _listens(port: int) -> bool:
    try:
        socket.create_connection(("127.0.0.1", port), 1).close()
        return True
    except OSError:
        return False
