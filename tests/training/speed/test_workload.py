import json
import subprocess
import sys

from tests.command_runs import ROOT
from training.speed.workload import Workload, read_workload

WORK = Workload(["Fähre, alt", "渡轮"], [1, 0], "vocab.txt", True, {"hidden_dim": 8}, "", 16, 2)
# Prints like a library; that must not mix with the replies.
TRAINER = """
from training.speed.workload import serve
def make_trainer(work, precision):
    print("hello from a library", precision)
    return lambda steps: [(len(work.texts), work.max_length, 3)] * steps
serve(make_trainer)
"""


def test_workloads_are_read_as_written(tmp_path):
    WORK.write(tmp_path / "work.json")
    assert read_workload(str(tmp_path / "work.json")) == WORK


def test_trainers_run_with_the_standard_library_only(tmp_path):
    WORK.write(tmp_path / "work.json")
    # -S: no installed packages, as in an environment that has other ones.
    ended = subprocess.run(
        [sys.executable, "-S", "-c", TRAINER, str(tmp_path / "work.json"), "float32"],
        input='{"steps": 2}\n{"steps": 1}\n',
        capture_output=True,
        text=True,
        cwd=ROOT,
    )
    ready, *replies = map(json.loads, ended.stdout.splitlines())
    assert ready == {"ready": True}
    assert [reply["shapes"] for reply in replies] == [[[2, 16]] * 2, [[2, 16]]]
    assert [reply["tokens"] for reply in replies] == [6, 3]
    assert all(reply["seconds"] >= 0 for reply in replies)
    assert "hello from a library float32" in ended.stderr
