"""The benchmark with stand-ins for its workers: processes that say, and die, as they are told to."""

import json
import sys

import pytest

from export.benchmark.__main__ import main
from export.benchmark.match import RUN_NAME
from kmha.errors import InputError
from tests.command_runs import call, write_csv
from tests.export.benchmark.processes_of_ours import children

QUICK = ["--seconds=0.1", "--rows=5", "--batch-sizes", "4"]


@pytest.fixture
def files(tmp_path):
    """Names of artifacts, which nobody will read."""
    paths = tmp_path / "a.tflite", tmp_path / "a.onnx"
    for path in paths:
        path.touch()
    return paths


# A process that speaks as a worker does, without a model; it gets how it shall die as its argument.
STAND_IN = """
import json, os, signal, sys
facts = {"import_seconds": 1.0, "load_seconds": 1.0, "import_bytes": 1000, "takes_texts": True,
    "lengths": None, "batched": True, "run": {"sample": json.loads(sys.argv[2]), "length": 4, "encoder": {},
    "window": 0, "labels": 2}}
if sys.argv[1] == "at once": sys.exit("no memory left")
print(json.dumps(facts), flush=True)
for line in sys.stdin:
    request = json.loads(line)
    if request["do"] == sys.argv[1]: os.kill(os.getpid(), signal.SIGKILL)
    answers = {
        "encode": {"token_ids": [[1, 2, 3, 4]], "padding_mask": [[1, 1, 1, 1]]},
        "warm": {"first_seconds": 0.1, "least_seconds": 0.1},
        "round": {"seconds": [0.1] * request.get("calls", 1), "cpu_seconds": 0.1},
        "give": {"texts": len(request.get("texts", []))},
    }
    print(json.dumps(answers.get(request["do"], {})), flush=True)
"""


@pytest.fixture
def stand_ins(monkeypatch):
    """Lets stand-ins play; returns how each is to die by its kind, and the requests that each kind was given."""
    from export.benchmark import match
    from training.io.json_subprocess import WorkerProcess

    deaths, asked = {"sample": ["a text"]}, []

    class Listened(WorkerProcess):
        def ask(self, **request):
            asked.append(request)
            return super().ask(**request)

    def start(kind, *_):
        command = [sys.executable, "-S", "-c", STAND_IN, deaths.get(kind, ""), json.dumps(deaths["sample"])]
        return Listened(command)

    monkeypatch.setattr(match, "start_worker", start)
    return deaths, asked


DEATHS = {
    "at once": "its process ended with status 1, saying: no memory left",
    "give": "its process was killed by signal 9, saying nothing",
    "warm": "its process was killed by signal 9, saying nothing",
    "round": "its process was killed by signal 9, saying nothing",
    "memory": "its process was killed by signal 9, saying nothing",
}


@pytest.mark.parametrize("when", DEATHS)
def test_a_model_that_dies_is_told_in_one_line_and_the_others_are_measured(runs, files, stand_ins, when):
    stand_ins[0]["tflite"] = when
    outcome = call(main, runs["one label"], *files, *QUICK)
    assert outcome.status == 1
    errors = [line for line in outcome.err.splitlines() if "error" in line]
    assert errors == [f"error: {files[0]}: {DEATHS[when]}"]
    run, dead, alive = outcome.json["models"]
    assert dead["failed"] == DEATHS[when]
    assert (dead["texts"] is None) == (when != "memory")
    assert run["ids"] and alive["ids"]["ratios"]["the run"] == pytest.approx(1)
    assert children() == []


@pytest.mark.parametrize("when", ["at once", "encode", "give", "round"])
def test_without_the_run_the_benchmark_fails_in_one_line(runs, files, stand_ins, when):
    stand_ins[0]["bundle"] = when
    outcome = call(main, runs["one label"], *files, *QUICK)
    assert outcome.status == 1
    (line,) = [line for line in outcome.err.splitlines() if "error" in line]
    assert line.startswith(f"error: {RUN_NAME}: its process")
    assert children() == []


def test_a_run_without_texts_asks_for_a_file(runs, stand_ins):
    stand_ins[0]["sample"] = []
    outcome = call(main, runs["one label"], *QUICK)
    assert outcome.status == 2
    assert outcome.err.splitlines()[-1].startswith("error: --texts: expected a file of texts")
    assert children() == []


def test_texts_of_a_file_are_answered_from_the_column_of_the_training(runs, stand_ins, tmp_path):
    texts = ["bread", "", "harbour 渡轮"]
    data = write_csv(tmp_path / "texts.csv", [(text, "x") for text in texts])
    outcome = call(main, runs["several labels"], f"--texts={data}", *QUICK, "--batch-sizes", "1")
    assert outcome.status == 0, outcome.err
    assert (outcome.json["texts"], outcome.json["texts_from"]) == (3, str(data))
    assert outcome.json["batch_rounds"] == 0
    assert [request["texts"] for request in stand_ins[1] if request["do"] == "give"] == [texts]
    assert set(outcome.json["models"][0]["ids"]["ratios"]) == {"the run"}


def test_peers_get_the_sizes_of_the_run_and_missing_ones_are_named(runs, stand_ins, monkeypatch):
    from export.benchmark import match

    start, given = match.start_worker, {}

    def without_torch(kind, path, threads, sizes=None):
        given[kind] = sizes
        if kind == "torch":
            raise InputError("torch: expected the package torch, got none")
        return start(kind, path, threads, sizes)

    monkeypatch.setattr(match, "start_worker", without_torch)
    outcome = call(main, runs["one label"], "--peers", *QUICK)
    assert outcome.status == 0
    assert [model["kind"] for model in outcome.json["models"]] == ["bundle", "keras_hub"]
    assert outcome.json["skipped"] == {"torch": "torch: expected the package torch, got none"}
    sizes = {"window": 0, "labels": 2}
    assert given == {"bundle": None, "keras_hub": sizes, "torch": sizes}
    assert "left out: torch: expected the package torch, got none" in outcome.err.splitlines()
