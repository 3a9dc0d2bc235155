"""Two workers and one process reach the same weights, even if a worker is interrupted."""

import json
import signal
import time
from pathlib import Path

import pytest

from tests.changed_files import flip_bit
from tests.command_runs import NO_DROPOUT, TINY, call, news_rows, write_csv
from tests.pair_rows import ranking_rows
from tests.tagged_sentences import tagged_sentences, write_conll
from tests.training.distributed.multi_worker_runs import (
    apart,
    children_of,
    kill,
    launch,
    launched,
    losses,
    wait_for_batches,
    worker,
    workers,
)
from training.distributed.local_launcher import free_addresses
from training.fit import main
from training.runs.checkpoint_folder import valid_checkpoints

# Many batches, so that there is time to end a worker between them.
LONG = ("--train.epochs=12", "--train.patience=12", "--train.checkpoint-minutes=0")
SUFFIXES = {"match": "csv", "tag": "conll", "masked-lm": "txt"}


@pytest.fixture(scope="module")
def flags(tmp_path_factory) -> list[str]:
    folder = tmp_path_factory.mktemp("rows")
    train = write_csv(folder / "train.csv", news_rows(61, seed=1))
    validation = write_csv(folder / "dev.csv", news_rows(12, seed=2))
    return [
        f"--data.train={train}",
        f"--data.validation={validation}",
        *(flag for flag in TINY if not flag.startswith("--train.buckets")),
        "--train.buckets=2",
        "--optimizer.clip-norm=0.3",
        "--no-baseline",
        "--no-calibrate",
        *NO_DROPOUT,
    ]


def alone(folder: Path, *flags: object) -> Path:
    """The same by one process."""
    outcome = call(main, *flags, f"--out={folder / 'one'}")
    assert outcome.status == 0, outcome.err
    return folder / "one"


@pytest.mark.second
def test_two_workers_give_the_weights_of_one_process(flags, tmp_path):
    """AdamW, clipping, batches of odd numbers of rows; only the chief worker writes files and prints."""
    one, two = alone(tmp_path, *flags), tmp_path / "two"
    status, out, err = launch("--workers=2", "--", *flags, f"--out={two}")
    assert status == 0, err
    assert apart(one, two) < 1e-5
    assert losses(two) == pytest.approx(losses(one), rel=1e-4)
    (line,) = out.splitlines()
    assert json.loads(line)["run"] == str(two)
    assert sorted(path.name for path in two.iterdir()) == sorted(path.name for path in one.iterdir())
    assert sorted(path.name for path in tmp_path.iterdir()) == ["one", "two"]
    assert (two / "vocab.txt").read_bytes() == (one / "vocab.txt").read_bytes()
    assert [line for line in err.splitlines() if line.startswith("[1]")] == [
        "[1] worker 1 of 2 waits for the others"
    ]
    assert "[0] epoch 2/" in err and "Traceback" not in err


@pytest.mark.slow
@pytest.mark.parametrize(
    "more",
    [
        pytest.param(["--train.jit=on"], id="xla"),
        pytest.param(["--optimizer.accumulation-steps=3"], id="accumulation"),
        pytest.param(["--train.jit=on", "--optimizer.clip-norm=0"], id="xla-unclipped"),
        pytest.param(["--train.batch-rows=3", "--train.epochs=1"], id="fewer-rows-than-fit"),
    ],
)
def test_two_workers_with_options_give_the_weights_of_one_process(more, flags, tmp_path):
    # The one process never uses XLA: what XLA computes has to be the same.
    one = alone(tmp_path, *flags, *(flag for flag in more if "jit" not in flag))
    status, _, err = launch("--workers=2", "--", *flags, *more, f"--out={tmp_path / 'two'}")
    assert status == 0, err
    # Attention does not depend on the key bias. Its unclipped gradient is rounding errors, which Adam amplifies.
    found = apart(one, tmp_path / "two", key_biases="--optimizer.clip-norm=0" not in more)
    print("max |dw|", found)
    assert found < 1e-5


@pytest.mark.slow
def test_three_workers_with_batches_of_fewer_rows(flags, tmp_path):
    small = ["--train.batch-rows=5", "--train.epochs=1"]
    one = alone(tmp_path, *flags, *small)
    status, _, err = launch("--workers=3", "--", *flags, *small, f"--out={tmp_path / 'two'}")
    assert status == 0, err
    print("max |dw|", apart(one, tmp_path / "two"))
    assert apart(one, tmp_path / "two") < 1e-5


@pytest.mark.slow
@pytest.mark.parametrize("killed", [0, 1])
def test_job_with_a_killed_worker_is_restarted(killed, flags, tmp_path):
    one, two = alone(tmp_path, *flags, *LONG), tmp_path / "two"
    with launched("--workers=2", "--restarts=1", "--", *flags, *LONG, f"--out={two}") as process:
        wait_for_batches(two, 9)
        kill(children_of(process)[killed])
        _, err = process.communicate(timeout=300)
    assert process.returncode == 0, err
    assert f"error: worker {killed} was killed by SIGKILL; the other workers were stopped" in err
    assert "starts all workers again, from the last checkpoint (restart 1 of 1)" in err
    assert "Traceback" not in err
    print("max |dw|", apart(one, two))
    assert apart(one, two) < 1e-5
    assert losses(two) == pytest.approx(losses(one), rel=1e-4) and len(losses(one)) == 24


@pytest.mark.slow
@pytest.mark.parametrize("target", ["launcher", "chief", "other"])
def test_signal_to_one_worker_stops_all_at_the_same_batch(target, flags, tmp_path):
    one, two = alone(tmp_path, *flags, *LONG), tmp_path / "two"
    with launched("--workers=2", "--restarts=1", "--", *flags, *LONG, f"--out={two}") as process:
        wait_for_batches(two, 9)
        chief, other = children_of(process)
        kill({"launcher": process.pid, "chief": chief, "other": other}[target], signal.SIGTERM)
        out, err = process.communicate(timeout=300)
    assert process.returncode == 130 and out == "", err
    assert "[0] stopped by SIGTERM; run the same command with --resume to continue" in err
    assert "[1] stopped by SIGTERM" in err and "Traceback" not in err
    status, _, err = launch("--", *flags, *LONG, f"--out={two}", "--resume")
    assert status == 0, err
    print("max |dw|", apart(one, two))
    assert apart(one, two) < 1e-5
    assert losses(two) == pytest.approx(losses(one), rel=1e-4) and len(losses(one)) == 24


@pytest.mark.slow
@pytest.mark.parametrize("killed", [0, 1])
def test_remaining_worker_reports_the_lost_one_and_the_checkpoint_stays(killed, flags, tmp_path):
    """Without a launcher and a shared folder: the checkpoint is copied when the run is resumed."""
    flags = [*flags, *LONG]
    outs = [tmp_path / f"machine{index}" / "run" for index in range(2)]
    addresses = free_addresses(2)
    both = [worker(index, addresses, *flags, f"--out={outs[index]}") for index in range(2)]
    left = both[1 - killed]
    try:
        wait_for_batches(outs[0], 9)
        both[killed].kill()
        died = time.monotonic()
        out, err = left.communicate(timeout=120)
        print("stopped after", time.monotonic() - died)
        assert time.monotonic() - died < 30
    finally:
        for process in both:
            process.kill()
            process.communicate()
    assert left.returncode == 1 and out == ""
    goes_on = "; run the same command with --resume on all workers to continue" if killed == 1 else ""
    assert err.splitlines()[-1] == f"error: worker {killed} is gone{goes_on}"
    assert "Traceback" not in err
    ends = workers(*([*flags, f"--out={out}", "--resume"] for out in outs))
    assert [status for status, _, _ in ends] == [0, 0], ends
    assert not outs[1].parent.exists()
    print("max |dw|", apart(alone(tmp_path, *flags), outs[0]))
    assert apart(tmp_path / "one", outs[0]) < 1e-5
    assert losses(outs[0]) == pytest.approx(losses(tmp_path / "one"), rel=1e-4)


@pytest.mark.slow
def test_all_workers_skip_a_damaged_checkpoint(flags, tmp_path):
    """The damaged file has the right size, so that only checksums find the damage."""
    one, two = alone(tmp_path, *flags, *LONG), tmp_path / "two"
    with launched("--workers=2", "--", *flags, *LONG, f"--out={two}") as process:
        wait_for_batches(two, 9)
        kill(process.pid, signal.SIGTERM)
        _, err = process.communicate(timeout=300)
    assert process.returncode == 130, err
    newest, _ = valid_checkpoints(tmp_path / "two.partial" / "checkpoint")
    (values,) = newest.glob("state.data*")
    flip_bit(values)
    status, _, err = launch("--workers=2", "--", *flags, *LONG, f"--out={two}", "--resume")
    assert status == 0, err
    assert f"{newest.name} is damaged: " in err and "; trying the one before it" in err
    assert apart(one, two) < 1e-5
    assert losses(two) == pytest.approx(losses(one), rel=1e-4)


@pytest.mark.slow
def test_differences_are_reported_by_all_workers(flags, tmp_path):
    other = write_csv(tmp_path / "other.csv", news_rows(61, seed=9))
    for change, message in (
        ("--train.seed=7", "worker 1: expected --train.seed 0 as on worker 0, got 7"),
        (f"--data.train={other}", "worker 1: expected the train rows of"),
        ("--data.train=missing.csv", "missing.csv"),
    ):
        own = [*flags, f"--out={tmp_path / 'run'}"]
        ends = workers(own, [word for word in own if word.split("=")[0] != change.split("=")[0]] + [change])
        for status, out, err in ends:
            assert (status, out) == (2, ""), err
            assert "Traceback" not in err
            assert message in err.splitlines()[-1], ends
        assert not (tmp_path / "run").exists() and not (tmp_path / "run.partial").exists()


@pytest.mark.slow
@pytest.mark.parametrize("task", ["match", "tag", "masked-lm"])
def test_other_tasks_give_the_weights_of_one_process(task, tmp_path):
    """Lists of candidates stay whole; sentences in windows; tokens hidden by row."""
    train, validation = (tmp_path / f"{name}.{SUFFIXES[task]}" for name in ("train", "dev"))
    for path, seed in ((train, 1), (validation, 2)):
        if task == "match":
            rows = [tuple(map(str, row)) for row in ranking_rows(12, 4, seed=seed)]
            write_csv(path, rows, ("text_a", "text_b", "label", "query_id"))
        elif task == "tag":
            write_conll(path, tagged_sentences(30, seed=seed))
        else:
            path.write_text("".join(f"{text}\n" for text, _ in news_rows(60, seed=seed)))
    own = {
        "match": ["--match.loss=listwise", "--match.dropout=0"],
        "tag": ["--tag.dropout=0"],
        "masked-lm": [],
    }
    shared = [
        *TINY,
        *(flag for flag in NO_DROPOUT if not flag.startswith("--classify")),
        *own[task],
        f"--task={task}",
        f"--data.train={train}",
        f"--data.validation={validation}",
        "--no-baseline",
        "--no-calibrate",
    ]
    one = alone(tmp_path, *shared)
    status, _, err = launch("--workers=2", "--", *shared, f"--out={tmp_path / 'two'}")
    assert status == 0, err
    # Weights that score all candidates of a list equally have no gradient: there, Adam amplifies rounding errors.
    found = apart(one, tmp_path / "two", but="head/" if task == "match" else "nothing")
    print("max |dw|", found)
    assert found < 1e-5


@pytest.mark.slow
def test_dropout_trains(flags, tmp_path):
    """With dropout the weights differ from those of one process, but the workers stay synchronized."""
    noisy = [flag for flag in flags if "dropout" not in flag]
    status, _, err = launch("--workers=2", "--", *noisy, f"--out={tmp_path / 'two'}")
    assert status == 0 and "[0] epoch 2/" in err, err
