"""The processes of the launcher, with small programs instead of training.fit."""

import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from kmha.errors import InputError
from training.distributed import local_launcher as processes
from training.distributed.local_launcher import LocalWorkers, device_environments, free_addresses

# Each worker runs its part of the flags: the first word is for worker 0.
PROGRAM = """
import json, os, signal, sys, time
task = json.loads(os.environ["TF_CONFIG"])["task"]["index"]
word = sys.argv[1 + task]
print("out", task, flush=True)
print("line of", task, os.environ.get("OWN"), file=sys.stderr, flush=True)
if word == "stubborn":
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
if word == "polite":
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(130))
if word == "killed":
    os.kill(os.getpid(), signal.SIGKILL)
if word.isdigit():
    sys.exit(int(word))
time.sleep(60)
"""


@pytest.fixture
def run(monkeypatch, tmp_path):
    """Runs scripted workers; returns the status, the seconds and the job."""
    plain = subprocess.Popen

    def popen(words, **options):
        assert words[1:3] == ["-m", "training.fit"]
        return plain([sys.executable, "-c", PROGRAM, *words[3:]], **options)

    monkeypatch.setattr(processes.subprocess, "Popen", popen)
    monkeypatch.setattr(processes, "REPORT_SECONDS", 0.5)
    monkeypatch.setattr(processes, "EXIT_SECONDS", 1.0)

    def run(*words, signals=0):
        job = LocalWorkers(free_addresses(len(words)), words, [{"OWN": f"own{i}"} for i in range(len(words))])
        if signals:
            threading.Timer(1.5, os.kill, (os.getpid(), signals)).start()
        started = time.monotonic()
        status = job.run()
        assert all(child.poll() is not None for child in job._children)
        return status, time.monotonic() - started, job

    return run


def test_job_succeeds_if_all_workers_do(run, capfd):
    assert run("0", "0", "0")[0] == 0
    out, err = capfd.readouterr()
    assert out == "out 0\n"
    assert sorted(err.splitlines()) == [f"[{i}] line of {i} own{i}" for i in range(3)]


@pytest.mark.parametrize(
    ("words", "status", "message"),
    [
        (("wait", "killed"), 1, "error: worker 1 was killed by SIGKILL; the other workers were stopped"),
        (("3", "wait"), 1, "error: worker 0 exited with status 3; the other workers were stopped"),
        (("stubborn", "1"), 1, "error: worker 1 exited with status 1; the other workers were stopped"),
        (("wait", "2"), 2, ""),
        (("polite", "130"), 130, ""),
    ],
)
def test_failed_worker_ends_the_others(run, capfd, words, status, message):
    found, seconds, _ = run(*words)
    assert found == status and seconds < 15
    lines = [line for line in capfd.readouterr().err.splitlines() if not line.startswith("[")]
    assert lines == ([message] if message else [])


def test_exit_status_of_the_chief_worker_counts(run):
    assert run("0", "1")[0] == 0


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_signals_are_forwarded(run, number):
    status, seconds, job = run("polite", "polite", signals=number)
    assert status == 130 and job.stopped and seconds < 15


def test_ports_are_free_and_different():
    addresses = free_addresses(5)
    assert len(set(addresses)) == 5
    assert all(address.startswith("localhost:") for address in addresses)


@pytest.mark.parametrize(
    ("gpus", "workers", "shares"),
    [("0,1,2,3", 2, ["0,1", "2,3"]), ("4,GPU-a", 2, ["4", "GPU-a"]), ("0,1,2", 2, ["0", "1"])],
)
def test_gpus_are_divided_among_workers(monkeypatch, gpus, workers, shares):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", gpus)
    assert [own["CUDA_VISIBLE_DEVICES"] for own in device_environments(workers)] == shares


def test_fewer_gpus_than_workers_are_refused(monkeypatch):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0")
    with pytest.raises(InputError, match="--workers: expected at most 1, the number of GPUs, got 2"):
        device_environments(2)


@pytest.mark.skipif(Path("/proc/driver/nvidia/gpus").is_dir(), reason="has GPUs")
def test_cores_are_divided_among_workers(monkeypatch):
    for name in ("CUDA_VISIBLE_DEVICES", "TF_NUM_INTRAOP_THREADS", "OMP_NUM_THREADS"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(6)))
    assert device_environments(4) == [{"TF_NUM_INTRAOP_THREADS": "1", "OMP_NUM_THREADS": "1"}] * 4
    monkeypatch.setenv("OMP_NUM_THREADS", "5")
    assert device_environments(2) == [{"TF_NUM_INTRAOP_THREADS": "3"}] * 2
