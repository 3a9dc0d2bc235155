import os
import sys

import pytest

from tests.command_runs import TINY, call, news_rows, write_csv
from training import launch
from training.launch import main


class FakeProcesses:
    """Fake workers that end with the next of `statuses`."""

    statuses: list[int] = []
    seen: list[list[str]] = []
    stopped = False

    def __init__(self, addresses, flags, environments):
        assert len(addresses) == len(set(addresses)) == len(environments)
        self.seen.append(list(flags))

    def run(self) -> int:
        return self.statuses.pop(0)


@pytest.fixture
def starts(monkeypatch):
    monkeypatch.setattr(launch, "LocalWorkers", FakeProcesses)
    monkeypatch.setattr(FakeProcesses, "seen", [])
    monkeypatch.setattr(launch, "can_resume", lambda config: len(FakeProcesses.seen) > 1)
    return FakeProcesses


FLAGS = ["--data.train=train.csv", "--out=run"]


@pytest.mark.parametrize(
    ("statuses", "restarts", "status", "flags"),
    [
        ([0], 3, 0, [FLAGS]),
        ([1], 0, 1, [FLAGS]),
        ([2], 3, 2, [FLAGS]),
        ([130], 3, 130, [FLAGS]),
        # After the first start there is no checkpoint yet.
        ([1, 1, 0], 3, 0, [FLAGS, FLAGS, [*FLAGS, "--resume"]]),
        ([1, 1], 1, 1, [FLAGS, FLAGS]),
    ],
)
def test_all_workers_are_restarted_only_after_a_failure(
    starts, monkeypatch, statuses, restarts, status, flags
):
    monkeypatch.setattr(starts, "statuses", list(statuses))
    outcome = call(main, f"--restarts={restarts}", "--", *FLAGS)
    assert outcome.status == status and not starts.statuses
    assert starts.seen == flags
    assert outcome.err.count("starts all workers again") == len(statuses) - 1


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--workers=2"], "expected the flags of training.fit after --, got no --"),
        (["--workers=0", "--"], "--workers: expected at least 1, got 0"),
        (["--restarts=-1", "--"], "--restarts: expected at least 0, got -1"),
        (["--worker=2", "--"], "unknown flag --worker; did you mean --workers?"),
        (["--", "--data.trian=x"], "unknown flag --data.trian; did you mean --data.train?"),
        (["--", "--train.epochs=-1"], "--train.epochs: expected at least 0, got -1"),
    ],
)
def test_wrong_flags_are_reported_before_anything_starts(starts, words, message):
    outcome = call(main, *words)
    assert (outcome.status, outcome.out, starts.seen) == (2, "", [])
    assert outcome.err == f"error: {message}\n"


def test_help_of_the_launcher_and_of_the_fit(starts):
    assert "--restarts" in call(main, "--help").out
    assert "--data.train" in call(main, "--", "--help").out


def test_one_worker_is_a_process_that_trains_alone(tmp_path):
    """With real processes; stdout is that of the chief worker."""
    import subprocess

    from tests.command_runs import ROOT, clean_environment

    words = [sys.executable, "-m", "training.launch", "--workers", "1", "--"]
    wrong = subprocess.run(
        [*words, f"--data.train={tmp_path / 'none.csv'}", f"--out={tmp_path / 'run'}"],
        cwd=ROOT, env=clean_environment(), capture_output=True, text=True,
    )  # fmt: skip
    assert (wrong.returncode, wrong.stdout) == (2, "")
    (line,) = wrong.stderr.splitlines()
    assert line.startswith("[0] error: ") and "none.csv" in line
    assert os.listdir(tmp_path) == []


@pytest.mark.slow
def test_a_launched_worker_trains(tmp_path, capfd):
    train = write_csv(tmp_path / "train.csv", news_rows(40, 1))
    assert main(["--workers=1", "--", f"--data.train={train}", *TINY, f"--out={tmp_path / 'run'}"]) == 0
    out, err = capfd.readouterr()
    assert out.startswith('{"run": ') and "[0] epoch 1/" in err
