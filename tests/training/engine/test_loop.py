import csv
import dataclasses
import importlib.util
import json
import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import keras
import numpy as np
import pytest
import tensorflow as tf

from kmha.errors import InputError
from tests.training.tiny_runs import SETTINGS, distance, make_loop, make_source, trainable, weights_of
from training.cli.exceptions import Interrupted, TrainingDiverged
from training.data.length_buckets import bucket_lengths
from training.engine import loop as loop_module
from training.engine.loop import (
    EpochLog,
    Loop,
    OptimizerView,
    ProgressBar,
    TrainingProgress,
    epoch_plans,
    expose_optimizer,
)

ROOT = Path(__file__).parents[3]


def with_settings(**changes):
    return dataclasses.replace(SETTINGS, **changes)


def signal_at(batch: int, number: int = signal.SIGINT) -> keras.callbacks.Callback:
    """Sends this process a signal after this number of batches."""
    seen = []

    def note(_, logs):
        seen.append(1)
        if len(seen) == batch:
            os.kill(os.getpid(), number)

    return keras.callbacks.LambdaCallback(on_train_batch_end=note)


def scripted(scores: list[float]):
    """A validation function that returns these scores one after another."""
    left = list(scores)
    return lambda: {"loss": 1.0, "fit": left.pop(0)}


def resumed(folder, batch: int, number: int = signal.SIGINT, **options):
    """A run that was stopped at a batch and resumed in a new loop."""
    with pytest.raises(Interrupted, match=signal.Signals(number).name):
        make_loop(folder, callbacks=[signal_at(batch, number)], **options).run()
    loop = make_loop(folder, **options)
    progress = loop.run(resume=True)
    return loop, progress


def batches_of_an_epoch(loop: Loop) -> int:
    return len(epoch_plans(loop.source_of(0), loop.lengths, loop.settings, 0))


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """An uninterrupted run with dropout and an average: the loop and how it ended."""
    loop = make_loop(tmp_path_factory.mktemp("whole"))
    return loop, loop.run()


def check_equal(whole, again) -> None:
    """Checks that two runs have the same weights, averages and history."""
    (loop, progress), (other, ended) = whole, again
    assert distance(weights_of(loop.model), weights_of(other.model)) < 1e-6
    averages = [[value.numpy() for value in run.average.averages] for run in (loop, other)]
    assert distance(*averages) < 1e-6
    assert ended.best_metric == pytest.approx(progress.best_metric, abs=1e-6)
    assert (ended.best_epoch, ended.batches_done) == (
        progress.best_epoch,
        progress.batches_done,
    )
    assert [e["loss"] for e in ended.history] == pytest.approx(
        [e["loss"] for e in progress.history], abs=1e-5
    )


# In the first epoch, at its end (before validation), in the second epoch, and at the end of the run.
@pytest.mark.parametrize("where", ["middle", "end of epoch", "second epoch", "last batch"])
def test_resumed_run_reaches_the_same_weights(tmp_path, whole, where):
    count = batches_of_an_epoch(whole[0])
    batch = {"middle": 3, "end of epoch": count, "second epoch": count + 2, "last batch": 2 * count}[where]
    number = signal.SIGTERM if where == "middle" else signal.SIGINT
    check_equal(whole, resumed(tmp_path, batch, number))


def test_signal_during_validation_stops_after_it(tmp_path):
    def validate():
        os.kill(os.getpid(), signal.SIGINT)
        return {"loss": 1.0, "fit": 0.5}

    with pytest.raises(Interrupted):
        make_loop(tmp_path, validate=validate).run()
    progress = make_loop(tmp_path, validate=scripted([0.75])).run(resume=True)
    assert (progress.best_epoch, progress.best_metric, progress.epoch) == (
        1,
        0.75,
        2,
    )


def test_signal_after_the_last_checkpoint_stops_before_evaluation(tmp_path):
    def late(logs):
        os.kill(os.getpid(), signal.SIGTERM)

    with pytest.raises(Interrupted, match="SIGTERM"):
        make_loop(tmp_path, callbacks=[keras.callbacks.LambdaCallback(on_train_end=late)]).run()
    assert make_loop(tmp_path).run(resume=True).epoch == SETTINGS.epochs


def test_losses_of_several_terms_are_reported_as_means(tmp_path, whole):
    loop = make_loop(tmp_path)
    loop.loss_terms = 4
    progress = loop.run()
    losses = [epoch["loss"] for epoch in progress.history]
    assert losses == pytest.approx([epoch["loss"] / 4 for epoch in whole[1].history])
    assert distance(weights_of(loop.model), weights_of(whole[0].model)) < 1e-6


def test_finished_run_can_be_resumed(tmp_path):
    loop = make_loop(tmp_path)
    first = loop.run()
    again = make_loop(tmp_path)
    assert again.run(resume=True) == first
    assert distance(weights_of(loop.model), weights_of(again.model)) == 0


def test_second_signal_ends_the_run_immediately(tmp_path):
    def twice(batch, logs):
        os.kill(os.getpid(), signal.SIGINT)
        os.kill(os.getpid(), signal.SIGINT)

    loop = make_loop(tmp_path, callbacks=[keras.callbacks.LambdaCallback(on_train_batch_begin=twice)])
    with pytest.raises(KeyboardInterrupt):
        loop.run()
    assert not (tmp_path / "checkpoint").exists()


def test_signal_handlers_are_restored(tmp_path):
    before = [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)]
    with pytest.raises(Interrupted):
        make_loop(tmp_path, callbacks=[signal_at(1)]).run()
    assert [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)] == before


def test_accumulated_gradients_are_applied_before_a_stop(tmp_path):
    options = {"accumulation_steps": 3, "dropout": 0.0, "settings": with_settings(epochs=1)}
    (tmp_path / "whole").mkdir()
    whole = make_loop(tmp_path / "whole", **options)
    whole.run()
    count = batches_of_an_epoch(whole)
    assert whole.step.optimizer.steps_done == -(-count // 3)
    # The signal comes during accumulation; the run continues until the gradients are applied.
    loop, progress = resumed(tmp_path, 1, **options)
    assert progress.batches_done == count
    assert distance(weights_of(whole.model), weights_of(loop.model)) < 1e-6


def test_resuming_needs_a_checkpoint_of_the_same_model(tmp_path):
    with pytest.raises(InputError, match="got none"):
        make_loop(tmp_path).run(resume=True)
    with pytest.raises(Interrupted):
        make_loop(tmp_path, callbacks=[signal_at(1)], ema=False).run()
    with pytest.raises(InputError, match="another model or another version.*use --overwrite"):
        make_loop(tmp_path).run(resume=True)


def test_a_checkpoint_of_another_version_is_refused():
    progress = TrainingProgress(epoch=3, best_metric=0.5)
    assert TrainingProgress.read(dataclasses.asdict(progress)) == progress
    with pytest.raises(InputError, match="expected a checkpoint of this version, got one .* 'steps'"):
        TrainingProgress.read({"epoch": 3, "steps": 1})


def test_best_weights_are_restored_and_patience_ends_the_run(tmp_path):
    snapshots, scores = [], [0.1, 0.7, 0.6, 0.7, 0.9]
    loop = make_loop(tmp_path, settings=with_settings(epochs=5, patience=2), ema=False)

    def validate():
        snapshots.append([v.numpy() for v in trainable(loop.model)])
        return {"loss": 1.0, "fit": scores[len(snapshots) - 1]}

    loop.validate = validate
    progress = loop.run()
    assert (len(snapshots), progress.best_epoch, progress.best_metric) == (4, 1, 0.7)
    assert distance([v.numpy() for v in trainable(loop.model)], snapshots[1]) == 0
    assert distance(snapshots[1], snapshots[3]) > 0


@pytest.mark.parametrize("patience", [0, 1])
def test_smallest_patience_ends_after_one_epoch_without_improvement(tmp_path, patience):
    settings = with_settings(epochs=9, patience=patience)
    progress = make_loop(tmp_path, settings=settings, validate=scripted([0.1, 0.2, 0.2])).run()
    assert (progress.epoch, progress.best_epoch) == (3, 1)


def test_initial_weights_stay_if_no_epoch_is_better(tmp_path):
    loop = make_loop(tmp_path, validate=scripted([0.9, 0.4, 0.8]), settings=with_settings(epochs=2))
    loop.evaluate_first = True
    before = [weight.numpy() for weight in trainable(loop.model)]
    progress = loop.run()
    assert (progress.best_epoch, progress.best_metric, progress.epoch) == (
        -1,
        0.9,
        2,
    )
    assert distance([weight.numpy() for weight in trainable(loop.model)], before) == 0


def test_average_is_evaluated_and_saved(tmp_path):
    loop = make_loop(tmp_path, settings=with_settings(epochs=1))
    evaluated = []

    def validate():
        evaluated.append([v.numpy() for v in trainable(loop.model)])
        return {"loss": 1.0, "fit": 0.5}

    loop.validate = validate
    loop.run()
    assert loop.average is not None
    averages = [average.numpy() for average in loop.average.averages]
    assert distance(evaluated[0], averages) == 0
    assert distance([v.numpy() for v in trainable(loop.model)], averages) == 0


def test_nan_loss_ends_the_run(tmp_path):
    loop = make_loop(tmp_path)
    loop.source_of(0).weights[7] = np.nan
    with pytest.raises(TrainingDiverged, match="loss is nan at batch"):
        loop.run()


def test_infinite_gradient_ends_the_run(tmp_path):
    loop = make_loop(tmp_path)
    # The loss is 0 at this point, its slope infinite.
    loop.step.loss = lambda targets, logits: tf.sqrt(tf.reduce_sum(logits, axis=-1) * 0.0)
    with pytest.raises(TrainingDiverged, match="the gradient is not finite at batch 1"):
        loop.run()


def test_nan_metric_ends_the_run(tmp_path):
    with pytest.raises(TrainingDiverged, match="fit is nan after epoch 1"):
        make_loop(tmp_path, validate=scripted([np.nan])).run()


def test_history(tmp_path, whole):
    _, progress = whole
    assert [entry["epoch"] for entry in progress.history] == [0, 1]
    for entry in progress.history:
        assert entry["tokens_per_second"] > 0
        assert 0 <= entry["input_wait_share"] <= 1
        assert entry["val_fit"] == -entry["val_loss"]
    rates = [entry["learning_rate"] for entry in progress.history]
    assert 0.01 > rates[0] > rates[1] == 0
    assert progress.history[1]["loss"] < progress.history[0]["loss"]


class Killed(BaseException):
    """A BaseException, so that no error handler catches it."""


def kill_at(batch: int) -> keras.callbacks.Callback:
    """Ends a run after this number of batches, without a checkpoint at that moment."""
    seen = []

    def kill(_, logs):
        seen.append(1)
        if len(seen) == batch:
            raise Killed

    return keras.callbacks.LambdaCallback(on_train_batch_end=kill)


def check_same_bits(whole, again) -> None:
    """Checks that two runs have the same weights, averages, random state and history, bit by bit."""
    (loop, progress), (other, ended) = whole, again
    assert distance(weights_of(loop.model), weights_of(other.model)) == 0
    assert distance(*([value.numpy() for value in run.average.averages] for run in (loop, other))) == 0
    assert loop.step.optimizer.steps_done == other.step.optimizer.steps_done
    timed = ("tokens_per_second", "tokens_per_cpu_second", "input_wait_share")
    first, second = (
        [{name: value for name, value in entry.items() if name not in timed} for entry in run.history]
        for run in (progress, ended)
    )
    assert first == second


def killed(folder, batch: int, **options):
    """A run that was killed two batches after its last checkpoint and resumed in a new loop."""
    with pytest.raises(Killed):
        make_loop(folder, callbacks=[kill_at(batch)], **options).run()
    loop = make_loop(folder, **options)
    return loop, loop.run(resume=True)


@pytest.mark.parametrize("where", ["first epoch", "second epoch"])
def test_killed_run_resumes_bit_identically(tmp_path, whole, where):
    batch = {"first epoch": 6, "second epoch": batches_of_an_epoch(whole[0]) + 2}[where]
    check_same_bits(whole, killed(tmp_path, batch, settings=with_settings(checkpoint_steps=3)))


def test_killed_run_with_accumulation_resumes_bit_identically(tmp_path):
    folders = [tmp_path / name for name in ("whole", "killed")]
    for folder in folders:
        folder.mkdir()
    options = {"settings": with_settings(checkpoint_steps=1), "accumulation_steps": 3}
    loop = make_loop(folders[0], **options)
    check_same_bits((loop, loop.run()), killed(folders[1], 5, **options))


def test_damaged_newest_checkpoint_falls_back_to_an_older_one(tmp_path, whole, capsys):
    settings = with_settings(checkpoint_steps=1, checkpoints_kept=3)
    with pytest.raises(Killed):
        make_loop(tmp_path, callbacks=[kill_at(6)], settings=settings).run()
    *_, newest = saved = sorted((tmp_path / "checkpoint").iterdir())
    assert [path.name for path in saved] == ["00000003", "00000004", "00000005"]
    (newest / "state.index").write_bytes(b"")
    loop = make_loop(tmp_path, settings=settings)
    check_equal(whole, (loop, loop.run(resume=True)))
    assert f"{newest} is damaged: state.index has 0 of " in capsys.readouterr().err


def test_full_disk_is_refused_before_training(tmp_path, monkeypatch):
    monkeypatch.setattr(loop_module, "state_size", lambda state: 10**15)
    with pytest.raises(InputError, match="expected 3,000,000,000.0 MB of free disk for 2 checkpoints"):
        make_loop(tmp_path).run()
    assert not (tmp_path / "checkpoint").exists()


def test_checkpoints_are_written_by_time(tmp_path):
    loop = make_loop(tmp_path, settings=with_settings(epochs=1, checkpoint_minutes=0.0))
    seen = []
    loop.callbacks = [
        keras.callbacks.LambdaCallback(
            on_train_batch_begin=lambda batch, logs: seen.append((tmp_path / "checkpoint").exists())
        )
    ]
    loop.run()
    assert seen == [False] + [True] * (len(seen) - 1)


def test_the_order_of_rows_depends_on_seed_and_epoch(tmp_path):
    source = make_source(tmp_path)
    lengths = bucket_lengths(source.lengths, 2)

    def order(seed: int, epoch: int) -> list:
        plans = epoch_plans(source, lengths, with_settings(seed=seed), epoch)
        return [plan.rows.tolist() for plan in plans]

    assert order(0, 0) == order(0, 0)
    assert order(0, 0) != order(0, 1)
    assert order(0, 0) != order(1, 0)


def run_worker(folder: Path, **case) -> dict:
    folder.mkdir(exist_ok=True)
    command = [
        sys.executable,
        "-W",
        "error",
        "-m",
        "tests.training.loop_worker",
        str(folder),
        json.dumps(case),
    ]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr[-3000:]
    return json.loads(done.stdout)


def saved(folder: Path) -> list[np.ndarray]:
    with np.load(folder / "weights.npz") as file:
        return [file[name] for name in file.files]


@pytest.mark.second
def test_the_same_seed_gives_the_same_weights_in_another_process(tmp_path):
    run_worker(tmp_path, transformer=True)
    (tmp_path / "here").mkdir()
    loop, _ = resumed(tmp_path / "here", 9, transformer=True)
    assert distance(saved(tmp_path), weights_of(loop.model)) == 0


@pytest.mark.second
def test_two_replicas_resume_to_the_weights_of_one(tmp_path):
    done = run_worker(tmp_path, strategy="mirrored", stop_at=7, dropout=0.0)
    assert done["before_stop"] == 7
    (tmp_path / "here").mkdir()
    loop = make_loop(tmp_path / "here", dropout=0.0)
    progress = loop.run()
    assert done["best"] == pytest.approx(progress.best_metric, abs=1e-5)
    assert distance(saved(tmp_path)[:3], weights_of(loop.model)[:3]) < 1e-5


def batches_of(loop) -> int:
    return len(epoch_plans(loop.source_of(0), loop.lengths, loop.settings, 0)) * loop.settings.epochs


def test_progress_bar_writes_one_line_per_epoch_to_stderr(tmp_path, capfd):
    loop = make_loop(tmp_path)
    loop.callbacks = [ProgressBar(batches_of(loop), "fit", epochs=2)]
    loop.run()
    out, err = capfd.readouterr()
    first, second = [line for line in err.splitlines() if line.startswith("epoch ")]
    assert out == ""
    number = r"-?\d+\.\d{3}"
    line = rf"epoch \d/2: loss {number}, val_loss {number}, val_fit {number}, [\d,]+ tokens/s, \d+ s"
    assert re.fullmatch(rf"{line}, ETA \d:\d\d", first) and re.fullmatch(line, second)


def test_progress_line_of_a_part_of_an_epoch(capsys):
    bar = ProgressBar(8, "accuracy", epochs=2, parts=4)
    bar.on_train_begin()
    bar.on_epoch_begin(6)
    bar.on_epoch_end(6, {"loss": 0.5, "val_loss": 0.25, "val_accuracy": 1.0, "tokens_per_second": 29753.4})
    bar.on_train_end()
    line = "epoch 2/2, part 3/4: loss 0.500, val_loss 0.250, val_accuracy 1.000, 29,753 tokens/s, 0 s"
    assert line in capsys.readouterr().err


def test_progress_bar_has_speed_and_remaining_time(tmp_path, capfd, monkeypatch):
    monkeypatch.setattr("sys.stderr.isatty", lambda: True, raising=False)
    loop = make_loop(tmp_path)
    loop.callbacks = [ProgressBar(batches_of(loop), "fit", epochs=2)]
    loop.run()
    bar = capfd.readouterr().err
    assert re.search(r"\d+/\d+ \[\d\d:\d\d<\d\d:\d\d,.*batch", bar)
    assert "loss=" in bar


def test_resumed_progress_bar_continues():
    progress = ProgressBar(10, "fit", epochs=1)
    progress.set_params({"done_batches": 4})
    progress.on_train_begin()
    assert (progress.bar.n, progress.bar.total, progress.left) == (4, 10, 6)
    progress.on_train_end()


def test_csv_logger(tmp_path):
    make_loop(tmp_path, callbacks=[keras.callbacks.CSVLogger(str(tmp_path / "epochs.csv"))]).run()
    with open(tmp_path / "epochs.csv", newline="") as file:
        rows = list(csv.DictReader(file))
    assert [row["epoch"] for row in rows] == ["0", "1"]
    for name in ("loss", "val_loss", "val_fit", "learning_rate", "tokens_per_second", "input_wait_share"):
        assert all(np.isfinite(float(row[name])) for row in rows)


def test_early_stopping(tmp_path):
    settings = dataclasses.replace(SETTINGS, epochs=4)
    stop = keras.callbacks.EarlyStopping("val_fit", mode="max", patience=1, min_delta=100)
    progress = make_loop(tmp_path, settings=settings, callbacks=[stop]).run()
    assert (progress.epoch, progress.ended) == (2, True)
    # Training stays ended: resuming it adds no epoch.
    assert make_loop(tmp_path, settings=settings).run(resume=True).epoch == 2


def test_callback_stops_within_an_epoch(tmp_path):
    loop = make_loop(tmp_path, accumulation_steps=3)

    def stop(batch, logs):
        loop.model.stop_training = batch == 3

    loop.callbacks = [keras.callbacks.LambdaCallback(on_train_batch_end=stop)]
    progress = loop.run()
    assert (progress.batches_done, progress.epoch, len(progress.history)) == (
        4,
        1,
        1,
    )
    # One step of three batches, and one of the accumulated rest.
    assert loop.step.optimizer.steps_done == 2


def test_lambda_callbacks_are_called_in_order(tmp_path):
    seen = []

    def note(name):
        return lambda *_, **__: seen.append(name)

    names = ("train_begin", "epoch_begin", "train_batch_begin", "train_batch_end", "epoch_end", "train_end")
    loop = make_loop(tmp_path)
    loop.callbacks = [keras.callbacks.LambdaCallback(**{f"on_{name}": note(name) for name in names})]
    loop.run()
    batch = ["train_batch_begin", "train_batch_end"]
    epoch = ["epoch_begin", *batch * (batches_of(loop) // 2), "epoch_end"]
    assert seen == ["train_begin", *epoch * 2, "train_end"]


def test_model_checkpoint_has_the_evaluated_weights(tmp_path):
    path = tmp_path / "best.weights.h5"
    save = keras.callbacks.ModelCheckpoint(
        path, monitor="val_fit", mode="max", save_best_only=True, save_weights_only=True
    )
    loop = make_loop(tmp_path, callbacks=[save])
    loop.run()
    saved = [v.numpy() for v in trainable(loop.model)]
    for variable in trainable(loop.model):
        variable.assign_add(variable * 0 + 1)
    loop.model.load_weights(path)
    assert distance(saved, [v.numpy() for v in trainable(loop.model)]) == 0


@pytest.mark.skipif(not importlib.util.find_spec("tensorboard"), reason="extra tensorboard is not installed")
def test_tensorboard(tmp_path):
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    board = keras.callbacks.TensorBoard(
        str(tmp_path / "board"), histogram_freq=1, update_freq=1, write_steps_per_second=True
    )
    make_loop(tmp_path, callbacks=[board]).run()
    events = {}
    for part in ("train", "validation"):
        accumulator = EventAccumulator(str(tmp_path / "board" / part))
        accumulator.Reload()
        events[part] = accumulator.Tags()["tensors"]
    assert {"epoch_loss", "epoch_learning_rate", "epoch_tokens_per_second", "batch_loss"} <= set(
        events["train"]
    )
    assert {"epoch_fit", "epoch_loss"} <= set(events["validation"])


def test_callbacks_can_read_the_optimizer_but_not_set_its_learning_rate(tmp_path):
    loop = make_loop(tmp_path)
    with expose_optimizer(loop.model, loop.step.optimizer):
        view = loop.model.optimizer
        assert isinstance(view, OptimizerView)
        assert (view.iterations, view.learning_rate) == (0, pytest.approx(0.005))
        with pytest.raises(AttributeError):
            setattr(view, "learning_rate", 1.0)  # noqa: B010
    assert not hasattr(loop.model, "optimizer")


def test_learning_rate_scheduler_callback_is_refused(tmp_path):
    loop = make_loop(tmp_path, callbacks=[keras.callbacks.LearningRateScheduler(lambda epoch: 0.1)])
    with pytest.raises((AttributeError, ValueError)):
        loop.run()


def test_failing_callback_leaves_nothing_open(tmp_path):
    ended = []

    def fail(batch, logs):
        raise RuntimeError("callback")

    loop = make_loop(tmp_path)
    loop.callbacks = [
        keras.callbacks.LambdaCallback(on_train_batch_end=fail, on_train_end=lambda logs: ended.append(1))
    ]
    before = weights_of(loop.model)
    with pytest.raises(RuntimeError, match="callback"):
        loop.run()
    assert ended == [1]
    assert not hasattr(loop.model, "optimizer")
    assert distance(before, weights_of(loop.model)) > 0


def test_epoch_log_of_a_resumed_run_has_each_epoch_once(tmp_path):
    path = tmp_path / "epochs.csv"

    def write(epochs: list[int], done: int, append: bool) -> None:
        table = EpochLog(path, append=append)
        table.set_params({"done_epochs": done})
        table.set_model(keras.Sequential())
        table.on_train_begin()
        for epoch in epochs:
            table.on_epoch_end(epoch, {"loss": epoch / 10, "val": 1.0})
        table.on_train_end()

    write([0, 1, 2], 0, append=True)
    # A kill after the second checkpoint: the third epoch is repeated, and the file ends with half a line.
    path.write_text(path.read_text() + "3,0.")
    write([2, 3], 2, append=True)
    rows = [(row["epoch"], row["loss"]) for row in csv.DictReader(path.read_text().splitlines())]
    assert rows == [("0", "0.0"), ("1", "0.1"), ("2", "0.2"), ("3", "0.3")]
    write([0], 0, append=False)
    assert len(path.read_text().splitlines()) == 2
    path.write_text("")
    write([0], 0, append=True)
    assert [line.split(",")[0] for line in path.read_text().splitlines()] == ["epoch", "0"]
