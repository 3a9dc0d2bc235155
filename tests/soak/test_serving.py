"""Triton under concurrent clients, malformed requests and a new version every minute."""

import collections
import concurrent.futures
import contextlib
import dataclasses
import json
import os
import random
import subprocess
import sys
import threading
import time
from pathlib import Path

import numpy as np
import pytest

from clients.comparison import FLOAT_TOLERANCE, ClientUnavailableError
from clients.python_clients import (
    request_triton,
    running_triton,
    triton_binary_request,
    triton_connection,
    triton_request,
    triton_rows,
)
from tests.bundles import EDGE_CASES, TEXTS, make_bundle, one_label_bundle
from tests.command_runs import ROOT, clean_environment
from tests.soak.fits import print_figure, resident_mb

SECONDS = float(os.environ.get("SOAK_SERVING_SECONDS", "3600"))
VERSION_SECONDS, LOAD_SECONDS, MEMORY_SECONDS = 60.0, 300.0, 2.0
CLIENTS, MAX_ROWS, MAX_WORDS = 16, 8, 400
EDGE_SHARE, LONG_SHARE, MALFORMED_SHARE = 0.15, 0.005, 0.05
# Memory is compared with that of this version: the first ones fill the allocators.
WARM_VERSIONS, GROWTH_MB = 4, 60.0
OUTPUTS = ("probabilities", "version")
# Shared with `make clients`.
ENVIRONMENT = ROOT / "build" / "clients" / "environments" / "triton"

SHORT_EDGE_CASES = [text for text in EDGE_CASES if len(text) < 10_000]
LONG_EDGE_CASES = [text for text in EDGE_CASES if len(text) >= 10_000]


def malformed(**changes) -> str:
    """A request for one text, with changes of its tensor."""
    request = triton_request(["bread"])
    request["inputs"][0].update(changes)
    return json.dumps(request)


# Body, and Triton's status and a part of its error message.
MALFORMED = (
    (malformed()[:-9], 500, "failed to parse the request JSON"),
    ("null", 500, "Unable to parse 'inputs'"),
    (malformed(data=["\ud800"]), 500, "surrogate pair in string is invalid"),
    (malformed(data=[1]), 500, "non-string as string"),
    (malformed(datatype="FP32", data=[1.5]), 400, "expects 'BYTES'"),
    (malformed(shape=[1]), 400, "unexpected shape for input 'text'"),
    (malformed(shape=[1, 2], data=["bread", "salt"]), 400, "unexpected shape for input 'text'"),
    (malformed(data=["bread", "salt"]), 400, "unexpected number of string elements"),
    (malformed(name="txt"), 400, "unexpected inference input 'txt'"),
    (json.dumps(triton_request(["bread"], ["logits"])), 400, "unexpected inference output 'logits'"),
    (json.dumps(triton_request(["bread"] * 65)), 400, "batch-size must be <= 64"),
)


class Versions:
    """Versions of the served model, exported in turn from two runs with the same labels and other weights."""

    def __init__(self, folder: Path):
        self.folder, self.runs = folder / "served", (folder / "even", folder / "odd")
        self.started = 0  # the newest version whose export has started
        self.newest_received = 0  # the newest version of which a response has arrived
        self._lock = threading.Lock()
        bundles = (one_label_bundle(), make_bundle(tokenization="word"))
        for bundle, run in zip(bundles, self.runs, strict=True):
            bundle.save(run)
        generator, words = random.Random(1), " ".join(TEXTS).split()
        counts = [generator.randint(1, MAX_WORDS) ** generator.choice((0.5, 1)) for _ in range(400)]
        self.texts = [" ".join(generator.choices(words, k=int(count))).encode() for count in counts]
        self.expected = [
            dict(zip(texts, bundle.probabilities(texts), strict=True))
            for bundle in bundles
            for texts in [[*self.texts, *EDGE_CASES]]
        ]
        even, odd = (np.array(list(expected.values())) for expected in self.expected)
        assert (np.abs(even - odd).max(axis=1) > 100 * FLOAT_TOLERANCE).all()

    def export(self) -> None:
        """Writes the next version."""
        self.started += 1
        command = [
            sys.executable,
            "-m",
            "export.savedmodel",
            str(self.runs[self.started % 2]),
            str(self.folder),
        ]
        result = subprocess.run(command, env=clean_environment(), capture_output=True, text=True)
        assert result.returncode == 0, result.stderr
        assert Path(result.stdout.strip()).name == str(self.started)

    def check(self, texts: list[bytes], rows, version: int, oldest: int) -> float:
        """The largest difference from the version's predictions; `oldest` was served before the request."""
        assert oldest <= version <= self.started, (
            f"expected version {oldest} to {self.started}, got {version}"
        )
        difference = float(
            np.abs([self.expected[version % 2][text] for text in texts] - np.array(rows)).max()
        )
        assert difference <= FLOAT_TOLERANCE, (version, difference, texts)
        with self._lock:
            self.newest_received = max(self.newest_received, version)
        return difference


@dataclasses.dataclass
class Received:
    """Results of one client."""

    latencies: list[float] = dataclasses.field(default_factory=list)
    errors: int = 0
    difference: float = 0.0
    versions: set[int] = dataclasses.field(default_factory=set)


def run_client(port: int, versions: Versions, seed: int, stop: threading.Event) -> Received:
    """Sends requests and checks every response."""
    generator, received = random.Random(seed), Received()
    with triton_connection(port) as connection:
        while not stop.is_set():
            if generator.random() < MALFORMED_SHARE:
                body, expected, message = generator.choice(MALFORMED)
                status, response = request_triton(connection, "POST", "infer", body)
                assert status == expected and message in response.decode(), (body[:200], status, response)
                received.errors += 1
            texts = [choose_text(generator, versions) for _ in range(generator.randint(1, MAX_ROWS))]
            body, headers = encode(generator, texts)
            oldest, began = versions.newest_received, time.perf_counter()
            status, response = request_triton(connection, "POST", "infer", body, headers)
            received.latencies.append(time.perf_counter() - began)
            assert status == 200, (status, response[:500], [text[:100] for text in texts])
            values = json.loads(response)
            (version,) = {int(number) for (number,) in triton_rows(values, "version")}
            difference = versions.check(texts, triton_rows(values), version, oldest)
            received.difference = max(received.difference, difference)
            received.versions.add(version)
    return received


def choose_text(generator: random.Random, versions: Versions) -> bytes:
    """A text of random length, seldom an edge case."""
    draw = generator.random()
    if draw < LONG_SHARE:
        return generator.choice(LONG_EDGE_CASES)
    return generator.choice(SHORT_EDGE_CASES if draw < EDGE_SHARE else versions.texts)


def encode(generator: random.Random, texts: list[bytes]) -> tuple[bytes | str, dict[str, str]]:
    """JSON or binary; texts that are not UTF-8 in binary."""
    if generator.random() < 0.5:
        try:
            return json.dumps(triton_request([text.decode() for text in texts], OUTPUTS)), {}
        except UnicodeDecodeError:
            pass
    return triton_binary_request(texts, OUTPUTS)


def tree_mb(pid: int) -> float:
    """Resident memory of a process and all that it has started."""
    tasks = (Path("/proc") / str(pid) / "task").iterdir()
    children = [int(child) for task in tasks for child in (task / "children").read_text().split()]
    return resident_mb(pid) + sum(tree_mb(child) for child in children)


@pytest.fixture
def served(tmp_path):
    """Versions, of which the first is served; the server's process and HTTP port."""
    versions = Versions(tmp_path)
    versions.export()
    with contextlib.ExitStack() as stack:
        try:
            process, port = stack.enter_context(running_triton(ENVIRONMENT, versions.folder))
        except ClientUnavailableError as error:
            pytest.skip(f"no environment for Triton: {error}")
        yield versions, process.pid, port


@pytest.mark.soak
def test_no_wrong_prediction_while_versions_are_replaced(served):
    versions, pid, port = served
    stop, memory = threading.Event(), collections.defaultdict(list)
    with concurrent.futures.ThreadPoolExecutor(CLIENTS) as pool:
        began = exported = time.monotonic()
        jobs = [pool.submit(run_client, port, versions, seed, stop) for seed in range(CLIENTS)]
        try:
            while (now := time.monotonic()) < began + SECONDS or (
                # The last version is served, too.
                versions.newest_received < versions.started and now < began + SECONDS + LOAD_SECONDS
            ):
                if concurrent.futures.wait(jobs, MEMORY_SECONDS, concurrent.futures.FIRST_EXCEPTION).done:
                    break
                memory[versions.newest_received].append(tree_mb(pid))
                if exported + VERSION_SECONDS <= now < began + SECONDS:
                    exported = now
                    versions.export()
            memory[versions.newest_received].append(tree_mb(pid))
        finally:
            stop.set()
        clients = [job.result() for job in jobs]
    seconds = time.monotonic() - began
    latencies = np.array([latency for client in clients for latency in client.latencies])
    p50, p99 = 1000 * np.quantile(latencies, (0.5, 0.99))
    errors = sum(client.errors for client in clients)
    requests = len(latencies) + errors
    difference = max(client.difference for client in clients)
    first, last = min(WARM_VERSIONS, versions.newest_received), versions.newest_received
    before, after = (float(np.median(memory[version])) for version in (first, last))
    print_figure(
        f"{requests:,} requests in {seconds:.0f} s, {requests / seconds:.0f} a second; p50 {p50:.0f} ms,"
        f" p99 {p99:.0f} ms; largest difference {difference:.1e}; {errors:,} malformed requests, as expected;"
        f" {last - 1} versions swapped; memory {before:.0f} MB at version {first}, {after:.0f} MB at version {last}"
    )
    assert set().union(*(client.versions for client in clients)) == set(range(1, versions.started + 1))
    assert after - before < GROWTH_MB
