"""The benchmark with fake workers that reply or crash as a test requires."""

import json
import sys

import pytest

from export.benchmark.__main__ import main
from export.benchmark.measure import RUN_NAME
from kmha.errors import InputError
from tests.command_runs import call, write_csv
from tests.export.benchmark.child_processes import children

QUICK = ["--seconds=0.1", "--rows=5", "--batch-sizes", "4"]


@pytest.fixture
def files(tmp_path):
    """Empty artifacts, which no fake worker reads."""
    paths = tmp_path / "a.tflite", tmp_path / "a.onnx"
    for path in paths:
        path.touch()
    return paths


# A worker process without a model; the first argument sets when it crashes.
FAKE_WORKER = """
import json, os, signal, sys
facts = {"import_seconds": 1.0, "load_seconds": 1.0, "import_bytes": 1000, "takes_texts": True,
    "lengths": None, "batched": True, "run": {"sample": json.loads(sys.argv[2]), "length": 4, "encoder": {},
    "window": 0, "labels": 2}}
if sys.argv[1] == "at once": sys.exit("no memory left")
print(json.dumps(facts), flush=True)
for line in sys.stdin:
    request = json.loads(line)
    if request["do"] == sys.argv[1]: os.kill(os.getpid(), signal.SIGKILL)
    replies = {
        "encode": {"token_ids": [[1, 2, 3, 4]], "padding_mask": [[1, 1, 1, 1]]},
        "warm_up": {"first_seconds": 0.1, "least_seconds": 0.1},
        "round": {"seconds": [0.1] * request.get("calls", 1), "cpu_seconds": 0.1},
        "set_rows": {"texts": len(request.get("texts", []))},
    }
    print(json.dumps(replies.get(request["do"], {})), flush=True)
"""


@pytest.fixture
def fake_workers(monkeypatch):
    """Starts fake workers; returns when each kind crashes (to be filled in), and the requests sent to them."""
    from export.benchmark import measure
    from training.io.json_subprocess import WorkerProcess

    crashes, requests = {"sample": ["a text"]}, []

    class Recorder(WorkerProcess):
        def request(self, **request):
            requests.append(request)
            return super().request(**request)

    def start(kind, *_):
        command = [
            sys.executable,
            "-S",
            "-c",
            FAKE_WORKER,
            crashes.get(kind, ""),
            json.dumps(crashes["sample"]),
        ]
        return Recorder(command)

    monkeypatch.setattr(measure, "start_worker", start)
    return crashes, requests


MESSAGES = {
    "at once": "its process ended with status 1, saying: no memory left",
    "set_rows": "its process was killed by signal 9, saying nothing",
    "warm_up": "its process was killed by signal 9, saying nothing",
    "round": "its process was killed by signal 9, saying nothing",
    "memory": "its process was killed by signal 9, saying nothing",
}


@pytest.mark.parametrize("when", MESSAGES)
def test_a_crash_is_reported_in_one_line_and_the_others_are_measured(runs, files, fake_workers, when):
    fake_workers[0]["tflite"] = when
    outcome = call(main, runs["one label"], *files, *QUICK)
    assert outcome.status == 1
    errors = [line for line in outcome.err.splitlines() if "error" in line]
    assert errors == [f"error: {files[0]}: {MESSAGES[when]}"]
    run, crashed, alive = outcome.json["models"]
    assert crashed["failed"] == MESSAGES[when]
    assert (crashed["texts"] is None) == (when != "memory")
    assert run["ids"] and alive["ids"]["ratios"]["the run"] == pytest.approx(1)
    assert children() == []


@pytest.mark.parametrize("when", ["at once", "encode", "set_rows", "round"])
def test_a_crash_of_the_run_ends_the_benchmark(runs, files, fake_workers, when):
    fake_workers[0]["bundle"] = when
    outcome = call(main, runs["one label"], *files, *QUICK)
    assert outcome.status == 1
    (line,) = [line for line in outcome.err.splitlines() if "error" in line]
    assert line.startswith(f"error: {RUN_NAME}: its process")
    assert children() == []


def test_a_run_without_texts_needs_a_file(runs, fake_workers):
    fake_workers[0]["sample"] = []
    outcome = call(main, runs["one label"], *QUICK)
    assert outcome.status == 2
    assert outcome.err.splitlines()[-1].startswith("error: --texts: expected a file of texts")
    assert children() == []


def test_texts_are_read_from_the_column_of_the_training(runs, fake_workers, tmp_path):
    texts = ["bread", "", "harbour 渡轮"]
    data = write_csv(tmp_path / "texts.csv", [(text, "x") for text in texts])
    outcome = call(main, runs["several labels"], f"--texts={data}", *QUICK, "--batch-sizes", "1")
    assert outcome.status == 0, outcome.err
    assert (outcome.json["texts"], outcome.json["texts_from"]) == (3, str(data))
    assert outcome.json["batch_rounds"] == 0
    assert [request["texts"] for request in fake_workers[1] if request["do"] == "set_rows"] == [texts]
    assert set(outcome.json["models"][0]["ids"]["ratios"]) == {"the run"}


def test_peers_get_the_sizes_of_the_run_and_missing_ones_are_named(runs, fake_workers, monkeypatch):
    from export.benchmark import measure

    start, given = measure.start_worker, {}

    def without_torch(kind, path, threads, sizes=None):
        given[kind] = sizes
        if kind == "torch":
            raise InputError("torch: expected the package torch, got none")
        return start(kind, path, threads, sizes)

    monkeypatch.setattr(measure, "start_worker", without_torch)
    outcome = call(main, runs["one label"], "--peers", *QUICK)
    assert outcome.status == 0
    assert [model["kind"] for model in outcome.json["models"]] == ["bundle", "keras_hub"]
    assert outcome.json["skipped"] == {"torch": "torch: expected the package torch, got none"}
    sizes = {"window": 0, "labels": 2}
    assert given == {"bundle": None, "keras_hub": sizes, "torch": sizes}
    assert "not measured: torch: expected the package torch, got none" in outcome.err.splitlines()
