import json
import subprocess
import sys

from tests.command_runs import ROOT
from training.speed.workload import Work, read_work

WORK = Work(["Fähre, alt", "渡轮"], [1, 0], "vocab.txt", True, {"hidden_dim": 8}, "", 16, 2)
# Prints, as libraries do; that must not mix with the answers.
LEARNER = """
from training.speed.workload import answer
def learner(work, precision):
    print("hello from a library", precision)
    return lambda steps: [(len(work.texts), work.max_length, 3)] * steps
answer(learner)
"""


def test_work_is_read_as_it_was_written(tmp_path):
    WORK.write(tmp_path / "work.json")
    assert read_work(str(tmp_path / "work.json")) == WORK


def test_a_learner_answers_with_nothing_but_the_standard_library(tmp_path):
    WORK.write(tmp_path / "work.json")
    # -S: no installed packages, as in an environment that has other ones.
    ended = subprocess.run(
        [sys.executable, "-S", "-c", LEARNER, str(tmp_path / "work.json"), "float32"],
        input='{"steps": 2}\n{"steps": 1}\n',
        capture_output=True,
        text=True,
        cwd=ROOT,
    )
    ready, *answers = map(json.loads, ended.stdout.splitlines())
    assert ready == {"ready": True}
    assert [answer["shapes"] for answer in answers] == [[[2, 16]] * 2, [[2, 16]]]
    assert [answer["tokens"] for answer in answers] == [6, 3]
    assert all(answer["seconds"] >= 0 for answer in answers)
    assert "hello from a library float32" in ended.stderr
