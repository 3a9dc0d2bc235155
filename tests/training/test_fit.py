import contextlib
import datetime
import errno
import io
import json
import platform
import re
import signal
import subprocess
import sys
import time
from importlib.metadata import version
from pathlib import Path

import pytest

from tests.command_runs import call, clean_environment, run_script, saved_weights
from training.cli.exceptions import CheckpointWriteError, TrainingDiverged
from training.data.text_batches import ShortenedSource
from training.fit import main
from training.job import run as job
from training.runs.checkpoint_folder import list_checkpoints, write_progress

FILES = [
    "bundle.json",
    "config.toml",
    "epochs.csv",
    "metrics.json",
    "model.keras",
    "sample.jsonl",
    "vocab.txt",
]


def without_clock(metrics: dict) -> dict:
    """Metrics without values that depend on the load of the machine."""
    apart = ("seconds", "history", "cost", "next")  # the next commands name the run folder
    retained = {name: value for name, value in metrics.items() if name not in apart}
    timed = ("tokens_per_second", "tokens_per_cpu_second", "input_wait_share")
    retained["history"] = [
        {name: value for name, value in epoch.items() if name not in timed} for epoch in metrics["history"]
    ]
    return retained


def metrics_of(run: Path) -> dict:
    return json.loads((run / "metrics.json").read_text("utf-8"))


def test_the_run_folder_has_the_bundle_and_no_temporary_files(news_run):
    assert news_run.outcome.status == 0, news_run.outcome.err
    assert sorted(path.name for path in news_run.folder.iterdir()) == FILES
    assert sorted(path.name for path in news_run.folder.parent.iterdir()) == ["run", "test.csv", "train.csv"]


def test_stdout_is_one_line_of_json_with_the_figures_of_the_metrics(news_run):
    line, metrics = news_run.outcome.json, metrics_of(news_run.folder)
    assert line["run"] == str(news_run.folder) and line["judged_on"] == "test" and line["rows"] == 23
    for name in ("accuracy", "macro_f1", "micro_f1", "weighted_f1", "precision", "recall", "ece", "loss"):
        assert line[name] == metrics["test"][name]
        assert 0 <= line[name]
    assert line["baseline"]["accuracy"] == metrics["baseline"]["accuracy"] > 0.5
    assert all(isinstance(value, int | float | str | dict) for value in line.values())


def test_importing_the_command_does_not_import_large_packages():
    run_script("import sys, training.fit; assert not {'numpy', 'tensorflow'} & set(sys.modules)")


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.mark.parametrize("flags", [[], ["--json"]], ids=["table", "json"])
def test_on_a_terminal_the_result_is_a_table(news_run, monkeypatch, flags):
    monkeypatch.setattr(job, "fit", lambda config: metrics_of(news_run.folder))
    out, err = Terminal(), Terminal()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        assert main(["--out", str(news_run.folder), *flags]) == 0
    assert re.match(r"kmha \d+\.\d+\.\d+: reading settings and data\n", err.getvalue())
    if flags:
        assert json.loads(out.getvalue()) == news_run.outcome.json
    else:
        assert re.search(r"^model +0\.\d+ ", out.getvalue(), re.MULTILINE)
        assert "Next:\n  # " in out.getvalue() and "{" not in out.getvalue()


def test_the_bundle_records_versions_date_and_command(news_run):
    details = json.loads((news_run.folder / "bundle.json").read_text("utf-8"))
    assert details["versions"]["kmha"] == version("kmha")
    assert details["versions"]["python"] == platform.python_version()
    age = datetime.datetime.now(datetime.UTC) - datetime.datetime.fromisoformat(details["trained"]["date"])
    assert age > datetime.timedelta(seconds=-1)
    command = details["trained"]["command"]
    assert command.startswith("python -m training.fit ") and f" --data.train={news_run.train} " in command
    assert "json" not in (news_run.folder / "config.toml").read_text("utf-8").split("[data]")[0]


def test_stderr_reports_the_data_and_the_comparison_with_the_baseline(news_run):
    err = news_run.outcome.err
    assert "labels that only test rows have, counted as errors: weather (1)" in err
    assert "2 rows have an empty text (used)" in err
    assert re.search(r"^train rows: .* 1 without a token$", err, re.MULTILINE)
    assert re.search(
        r"^linear baseline: TF-IDF of word .*, 54 training rows and 6 validation rows$", err, re.MULTILINE
    )
    verdict = metrics_of(news_run.folder)["baseline"]["comparison"]["accuracy"]["verdict"]
    assert re.search(
        rf"^accuracy: {verdict}, model 0\.\d+, linear baseline \d\.\d+, difference \S+ \(.* to .*\), McNemar p",
        err,
        re.MULTILINE,
    )
    assert err.count("\nepoch ") == 2
    assert "WARNING" not in err and "Traceback" not in err


def test_the_metrics_have_the_data_and_the_history_of_the_training(news_run):
    metrics = metrics_of(news_run.folder)
    assert metrics["data"]["labels_only_in_test"] == {"weather": 1} == metrics["test"]["unknown_labels"]
    assert metrics["data"]["test_rows"] == 23
    assert metrics["tokens"]["train"]["rows"] == 61 and metrics["tokens"]["test"]["empty_rows"] == 1
    assert [epoch["epoch"] for epoch in metrics["history"]] == [0, 1]
    assert metrics["best_epoch"] in (0, 1)
    ends = metrics["test"]["intervals"]["accuracy"]
    assert ends[0] <= metrics["test"]["accuracy"] <= ends[1]
    details = json.loads((news_run.folder / "bundle.json").read_text("utf-8"))
    assert 3 <= details["lengths"]["p50"] <= details["lengths"]["p99"] <= details["lengths"]["p100"] <= 16
    assert details["columns"] == {"text": "text", "label": "label", "separator": "|"}
    assert (
        details["data"]["train"]["name"] == str(news_run.train)
        and len(details["data"]["test"]["sha256"]) == 64
    )


def test_the_written_settings_run_the_same_job_with_the_same_result(news_run, tmp_path):
    outcome = call(main, "--config", news_run.folder / "config.toml", "--out", tmp_path / "again")
    assert outcome.status == 0, outcome.err
    assert without_clock(metrics_of(tmp_path / "again")) == without_clock(metrics_of(news_run.folder))
    before, after = ((run / "config.toml").read_text() for run in (news_run.folder, tmp_path / "again"))
    assert before.replace(str(news_run.folder), "") == after.replace(str(tmp_path / "again"), "")


@pytest.mark.second
def test_each_epoch_leaves_out_other_tokens_of_the_training_texts(news_run, tmp_path, monkeypatch):
    read: dict[tuple[int, ...], list] = {}
    batch = ShortenedSource.batch

    def recorded(source, plan):
        found = batch(source, plan)
        for row, ids in zip(plan.rows, found["features"]["token_ids"], strict=False):
            read.setdefault(tuple(source.seed), []).append((int(row), ids[ids > 0].tolist()))
        return found

    monkeypatch.setattr(ShortenedSource, "batch", recorded)
    data = f"--data.train={news_run.folder.parent / 'train.csv'}"
    flags = ("--train.epochs=2", "--encoder.token-dropout=0.5", "--no-baseline", "--no-report")
    outcome = call(main, data, *flags, f"--out={tmp_path / 'run'}")
    assert outcome.status == 0, outcome.err
    first, second = (dict(read[0, epoch]) for epoch in (0, 1))
    assert set(first) == set(second) and len(first) == metrics_of(tmp_path / "run")["data"]["train_rows"]
    whole = metrics_of(tmp_path / "run")["tokens"]["train"]
    lengths = [sum(map(len, each.values())) for each in (first, second)]
    assert lengths[0] == lengths[1] < 0.9 * whole["tokens"] * len(first) / whole["rows"]
    assert sum(first[row] != second[row] for row in first) > len(first) / 2


def test_several_labels_by_the_name_of_their_column(topics_run):
    assert topics_run.outcome.status == 0, topics_run.outcome.err
    line = topics_run.outcome.json
    assert line["judged_on"] == "validation" and "macro_f1" in line
    assert line["baseline"].keys() >= {"macro_f1", "accuracy"}
    metrics = metrics_of(topics_run.folder)
    assert metrics["judged_on"] == "validation" and "roc_auc" in metrics["validation"]
    bundle = json.loads((topics_run.folder / "bundle.json").read_text("utf-8"))
    assert bundle["multi_label"] and len(bundle["thresholds"]) == len(bundle["labels"]) == 3


def test_the_share_of_words_with_a_vector_is_reported(topics_run):
    assert re.search(r"^word vectors: 1 of \d+ tokens \(\d\.\d%\)$", topics_run.outcome.err, re.MULTILINE)


def send_after_a_checkpoint(number: int, folder: Path, *flags: str) -> tuple[int, bytes, str]:
    """Starts a fit as a process and sends it a signal after a checkpoint; returns how it ended."""
    checkpoints = folder / "run.partial" / "checkpoint"
    before = list_checkpoints(checkpoints)
    with open(folder / "err.txt", "wb") as errors:
        process = subprocess.Popen(
            [sys.executable, "-m", "training.fit", *flags],
            cwd=folder,
            env=clean_environment(),
            stdout=subprocess.PIPE,
            stderr=errors,
        )
        try:
            while list_checkpoints(checkpoints)[:1] == before[:1] and process.poll() is None:
                time.sleep(0.01)
            process.send_signal(number)
            out, _ = process.communicate(timeout=120)
        finally:
            process.kill()
    return process.returncode, out, (folder / "err.txt").read_text()


@pytest.fixture(scope="module")
def stopped(news_run, tmp_path_factory):
    """A run that was killed, resumed, and stopped by SIGTERM; and how its last process ended."""
    folder = tmp_path_factory.mktemp("stopped")
    flags = [*news_run.flags, "--no-baseline", "--train.checkpoint-steps=1", "--out=run", "--resume-or-begin"]
    status, *_ = send_after_a_checkpoint(signal.SIGKILL, folder, *flags)
    assert status == -signal.SIGKILL
    return folder, flags, *send_after_a_checkpoint(signal.SIGTERM, folder, *flags)


def test_a_terminated_run_saves_a_checkpoint_and_prints_how_to_resume(stopped):
    folder, _, status, out, err = stopped
    assert (status, out) == (130, b""), err
    assert err.splitlines()[-1] == "stopped by SIGTERM; run the same command with --resume to continue"
    assert not (folder / "run").exists() and (folder / "run.partial" / "checkpoint").is_dir()


def test_libraries_print_no_messages(stopped):
    assert not re.search(r"WARNING|oneDNN|cuda|XLA|Traceback|^[IWE]\d{4} ", stopped[4], re.MULTILINE)


def test_a_resumed_run_equals_an_uninterrupted_run(stopped, news_run, monkeypatch):
    folder, flags, *_ = stopped
    monkeypatch.chdir(folder)
    other = call(main, *flags, "--train.seed=1", "--train.patience=9", "--train.checkpoints-kept=3")
    assert (other.status, other.err) == (
        2,
        "error: --resume: expected the settings of the interrupted run, --train.patience 2, got 9; --train.seed 0,"
        " got 1\n",
    )
    done = call(main, *flags, "--train.checkpoints-kept=3")
    assert done.status == 0, done.err
    assert done.json["run"] == "run"
    assert sorted(path.name for path in folder.iterdir()) == ["err.txt", "run"]
    assert sorted(path.name for path in (folder / "run").iterdir()) == FILES
    resumed, unbroken = metrics_of(folder / "run"), metrics_of(news_run.folder)
    for metrics in (resumed, unbroken):
        metrics.pop("baseline", None)
    assert without_clock(resumed) == without_clock(unbroken)
    assert saved_weights(folder / "run") == saved_weights(news_run.folder)
    assert len((folder / "run" / "epochs.csv").read_text().splitlines()) == 3


def test_diverged_training_is_reported(monkeypatch):
    def diverge(config):
        raise TrainingDiverged("loss is nan at batch 3")

    monkeypatch.setattr(job, "fit", diverge)
    outcome = call(main, "--data.train=a.csv")
    assert (outcome.status, outcome.out) == (1, "")
    expected = "error: training diverged, loss is nan at batch 3; lower --optimizer.learning-rate\n"
    assert outcome.err == expected


@pytest.mark.parametrize(
    ("error", "status", "message"),
    [
        (KeyboardInterrupt("SIGTERM"), 130, "stopped by SIGTERM; "),
        (KeyboardInterrupt(), 130, "stopped by an interrupt; "),
        (CheckpointWriteError("nothing could be written into a"), 1, "error: nothing could be written into a; "),
        (OSError(errno.ENOSPC, "full", "a"), 1, "error: the disk is full, writing a; "),
        (OSError(errno.EFBIG, "large"), 1, "error: a file is larger than it may be; "),
    ],
)  # fmt: skip
def test_error_messages_have_a_hint_for_resuming(tmp_path, monkeypatch, error, status, message):
    def end(config):
        raise error

    monkeypatch.setattr(job, "fit", end)
    flags = ["--data.train=a.csv", f"--out={tmp_path / 'run'}"]
    outcome = call(main, *flags)
    anew = "there is no checkpoint yet, run the same command to start over\n"
    assert (outcome.status, outcome.out, outcome.err) == (status, "", message + anew)
    place = tmp_path / "run.partial" / "checkpoint" / "00000001"
    place.mkdir(parents=True)
    write_progress(place, {})
    assert call(main, *flags).err == f"{message}run the same command with --resume to continue\n"
