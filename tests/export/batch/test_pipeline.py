"""The command on Beam itself; skipped where Beam is not installed, run by `make test-beam`."""

import contextlib
import gzip
import importlib.util
import json
import os
import signal
import subprocess
import sys
import time

import pytest

from export.batch.__main__ import main
from tests.bundles import TEXTS, one_label_bundle, several_label_bundle
from tests.command_runs import ROOT, call, clean_environment

pytestmark = [
    pytest.mark.skipif(
        importlib.util.find_spec("apache_beam") is None,
        reason="needs Apache Beam, which has an environment of its own: make test-beam",
    ),
    # Warnings of Beam: optional cloud clients are not installed, and it forks workers in a process with threads.
    # It also leaves files and event loops to the garbage collector.
    pytest.mark.filterwarnings("ignore"),
]
BUNDLES = {"one": one_label_bundle, "several": several_label_bundle}


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    """Run folders by kind."""
    folder = tmp_path_factory.mktemp("runs")
    for kind, make in BUNDLES.items():
        make().save(folder / kind)
    return folder


def rows(count: int, start: int = 0) -> list[dict]:
    return [
        {"id": number, "text": f"{TEXTS[number % len(TEXTS)]} {number}"}
        for number in range(start, start + count)
    ]


def jsonl(records) -> bytes:
    return "".join(json.dumps(record, ensure_ascii=False) + "\n" for record in records).encode()


def predictions_for(folder, name="out") -> list[dict]:
    shards = sorted(folder.glob(f"{name}-*.jsonl"))
    return sorted(
        (json.loads(line) for shard in shards for line in shard.read_text("utf-8").splitlines()),
        key=lambda prediction: prediction["id"],
    )


def letters(folder, name="out") -> list[dict]:
    shards = sorted(folder.glob(f"{name}.errors-*.jsonl"))
    return [json.loads(line) for shard in shards for line in shard.read_text("utf-8").splitlines()]


def check_predictions(kind: str, given: list[dict], found: list[dict]) -> None:
    assert [prediction["id"] for prediction in found] == [row["id"] for row in given]
    for row, prediction, expected in zip(
        given, found, BUNDLES[kind]().predict([row["text"] for row in given]), strict=True
    ):
        assert list(prediction) == ["id", "text", *expected]
        assert prediction["text"] == row["text"]
        assert prediction["probabilities"] == pytest.approx(expected["probabilities"], abs=1e-5)
        for name in ("label", "labels"):
            assert prediction.get(name) == expected.get(name)


@pytest.mark.parametrize("kind", BUNDLES)
def test_every_row_is_predicted_as_by_training_predict(runs, tmp_path, kind):
    (tmp_path / "in-1.jsonl").write_bytes(b"\xef\xbb\xbf" + jsonl(rows(300)))
    (tmp_path / "in-2.jsonl.gz").write_bytes(gzip.compress(b"\n" + jsonl(rows(200, 300)).rstrip(b"\n")))
    (tmp_path / "in-3.jsonl").touch()
    outcome = call(
        main,
        runs / kind,
        f"--input={tmp_path}/in-*",
        f"--output={tmp_path}/out",
        "--shards=3",
        "--batch-rows=64",
    )
    assert outcome.status == 0, outcome.err
    assert outcome.out.split() == [f"{tmp_path}/out-0000{number}-of-00003.jsonl" for number in range(3)]
    assert "3 input files" in outcome.err and "500 predictions" in outcome.err and "0 bad rows" in outcome.err
    check_predictions(kind, rows(500), predictions_for(tmp_path))
    assert sorted(path.name[:4] for path in tmp_path.iterdir()) == ["in-1", "in-2", "in-3", *["out-"] * 3]


def test_bad_rows_are_written_to_their_own_file(runs, tmp_path):
    good, bad = jsonl(rows(1)), b'{"id": 7, "text": "caf\xe9"}\n'
    data = good + b"no json\n" + jsonl(rows(1, 1)) + bad
    for name, packed in (("in-1.jsonl", data), ("in-2.jsonl.gz", gzip.compress(data))):
        (tmp_path / name).write_bytes(packed)
    outcome = call(main, runs / "one", f"--input={tmp_path}/in-*", f"--output={tmp_path}/out")
    assert outcome.status == 0
    assert "4 predictions" in outcome.err and "4 bad rows" in outcome.err
    found = letters(tmp_path)
    assert {letter["file"] for letter in found} == {f"{tmp_path}/in-1.jsonl", f"{tmp_path}/in-2.jsonl.gz"}
    for letter in found:
        line = data[letter["byte"] :].split(b"\n")[0]
        assert line in (b"no json", bad.rstrip(b"\n"))
        assert "expected" in letter["reason"]


def test_a_batch_with_only_bad_rows_fails(runs, tmp_path):
    (tmp_path / "in.jsonl").write_bytes(jsonl(rows(3)))
    outcome = call(
        main, runs / "one", f"--input={tmp_path}/in.jsonl", f"--output={tmp_path}/out", "--text-column=body"
    )
    assert outcome.status == 1 and "0 predictions" in outcome.err and "3 bad rows" in outcome.err
    assert all("'body'" in letter["reason"] for letter in letters(tmp_path))


@pytest.mark.parametrize("bundle_bytes", [1, 7, 100, 1000, 10**6])
def test_lines_are_read_once_for_any_ranges(tmp_path, bundle_bytes):
    from apache_beam.io.source_test_utils import read_from_source  # pyright: ignore[reportMissingImports]

    from export.batch.pipeline import Lines

    lines = [b"%d%s\n" % (number, b"x" * (number % 40)) for number in range(60)] + [b"\n", b"\n", b"last"]
    (tmp_path / "in.jsonl").write_bytes(b"".join(lines))
    parts = list(Lines(f"{tmp_path}/in.jsonl").split(bundle_bytes))
    assert bundle_bytes > 100 or len(parts) > 5
    found = [
        each
        for part in parts
        for each in read_from_source(part.source, part.start_position, part.stop_position)
    ]
    assert [line for _, _, line in found] == lines
    offsets = [sum(map(len, lines[:number])) for number in range(len(lines))]
    assert [byte for _, byte, _ in found] == offsets


@pytest.mark.parametrize("kind", ["cut", "other"])
def test_a_damaged_file_fails_the_batch_and_nothing_is_left(runs, tmp_path, kind):
    packed = gzip.compress(jsonl(rows(2000)))
    (tmp_path / "in.jsonl.gz").write_bytes(packed[: len(packed) // 2] if kind == "cut" else b"no gzip")
    outcome = call(main, runs / "one", f"--input={tmp_path}/in*", f"--output={tmp_path}/new/out")
    assert outcome.status == 2 and not outcome.out
    assert f"error: {tmp_path}/in.jsonl.gz: expected a readable file" in outcome.err
    assert [path.name for path in tmp_path.iterdir()] == ["in.jsonl.gz"]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--input={here}/absent-*", "--output={here}/out"], "no file matches"),
        (["--input={here}", "--output={here}/out"], "got a folder"),
        (["--input={here}/*.bz2", "--output={here}/out"], "plain or gzipped files"),
        (["--input={here}/in*", "--output={here}/taken"], "use --overwrite"),
        (
            ["--input={here}/*.jsonl", "--output={here}/taken", "--overwrite"],
            "expected input that is not an output file",
        ),
        (["--input={here}/in*", "--output={here}/out", "--", "--runer=X"], "did you mean --runner?"),
        (["--input={here}/in*", "--output={here}/out", "--", "--runner=X"], "Unexpected pipeline runner: X"),
        (["--input={here}/in*", "--output={here}/out", "--", "--direct_num_workers=x"], "invalid int value"),
    ],
)
def test_wrong_input_is_rejected(runs, tmp_path, arguments, message):
    for name in ("in.jsonl", "packed.bz2", "taken-00000-of-00001.jsonl"):
        (tmp_path / name).write_bytes(jsonl(rows(1)))
    before = {path: path.read_bytes() for path in tmp_path.iterdir()}
    outcome = call(main, runs / "one", *(argument.format(here=tmp_path) for argument in arguments))
    assert outcome.status == 2 and not outcome.out
    assert outcome.err.splitlines()[-1].startswith("error: ") and message in outcome.err
    assert {path: path.read_bytes() for path in tmp_path.iterdir()} == before


def test_other_models_are_rejected(tmp_path):
    (tmp_path / "in.jsonl").write_bytes(jsonl(rows(1)))
    outcome = call(main, tmp_path, f"--input={tmp_path}/in*", f"--output={tmp_path}/new/out")
    assert outcome.status == 2 and "expected a run folder or a SavedModel" in outcome.err
    assert [path.name for path in tmp_path.iterdir()] == ["in.jsonl"]


def test_a_pattern_without_a_folder(runs, tmp_path, monkeypatch):
    """Beam alone finds no file for it."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "in.jsonl").write_bytes(jsonl(rows(2)))
    assert call(main, runs / "one", "--input=in*", "--output=out").status == 0
    check_predictions("one", rows(2), predictions_for(tmp_path))
    assert call(main, runs / "one", "--input=in*", "--output=out", "--overwrite").status == 0


def command(runs, folder) -> list[str]:
    arguments = [str(runs / "one"), f"--input={folder}/in*", f"--output={folder}/new/out"]
    return [sys.executable, "-m", "export.batch", *arguments]


def test_an_interrupted_batch_leaves_nothing(runs, tmp_path):
    (tmp_path / "in.jsonl").write_bytes(jsonl(rows(200_000)))
    process = subprocess.Popen(
        command(runs, tmp_path), cwd=ROOT, env=clean_environment(), stderr=subprocess.PIPE, text=True
    )
    assert process.stderr is not None
    assert "input file" in process.stderr.readline()
    time.sleep(2)
    process.send_signal(signal.SIGTERM)
    assert "interrupted" in process.stderr.read()
    assert process.wait(60) == 130
    assert [path.name for path in tmp_path.iterdir()] == ["in.jsonl"]


@contextlib.contextmanager
def job_service(port: int):
    """Runs Beam's own job service, as a cluster does, with workers in separate processes."""
    process = subprocess.Popen(
        [sys.executable, "-m", "apache_beam.runners.portability.local_job_service_main", "--port", str(port)],
        env=clean_environment(),
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert process.stderr is not None
    while "Listening" not in (line := process.stderr.readline()):
        assert line, "the job service ended"
    try:
        yield
    finally:
        process.terminate()
        process.wait(30)
        process.stderr.close()


@pytest.mark.parametrize("mode", ["portable", "processes"])
def test_workers_run_in_other_processes(runs, tmp_path, mode):
    (tmp_path / "in.jsonl").write_bytes(jsonl(rows(100)) + b"no json\n")
    port = 20_000 + os.getpid() % 20_000
    flags = {
        "portable": [
            "--runner=PortableRunner",
            f"--job_endpoint=localhost:{port}",
            "--environment_type=LOOPBACK",
        ],
        "processes": ["--direct_running_mode=multi_processing", "--direct_num_workers=2"],
    }[mode]
    with job_service(port) if mode == "portable" else contextlib.nullcontext():
        result = subprocess.run(
            [*command(runs, tmp_path), "--", *flags],
            cwd=ROOT,
            env=clean_environment(),
            capture_output=True,
            text=True,
            timeout=300,
        )
    assert result.returncode == 0, result.stderr
    assert "100 predictions" in result.stderr and "1 bad rows" in result.stderr
    check_predictions("one", rows(100), predictions_for(tmp_path / "new"))
    assert len(letters(tmp_path / "new")) == 1
