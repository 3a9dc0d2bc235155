import dataclasses
import json
import os
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
from training.engine.loop import Loop, TrainingProgress, epoch_plans

ROOT = Path(__file__).parents[3]


def with_settings(**changes):
    return dataclasses.replace(SETTINGS, **changes)


def signal_at(batch: int, number: int = signal.SIGINT) -> keras.callbacks.Callback:
    """Sends this process a signal after so many batches of its run."""
    seen = []

    def note(_, logs):
        seen.append(1)
        if len(seen) == batch:
            os.kill(os.getpid(), number)

    return keras.callbacks.LambdaCallback(on_train_batch_end=note)


def scripted(scores: list[float]):
    """A validation that gives these scores one after another and notes the weights it saw."""
    left = list(scores)
    return lambda: {"loss": 1.0, "fit": left.pop(0)}


def resumed(folder, batch: int, number: int = signal.SIGINT, **options):
    """Weights of a run that was stopped at a batch and went on in a new loop."""
    with pytest.raises(Interrupted, match=signal.Signals(number).name):
        make_loop(folder, callbacks=[signal_at(batch, number)], **options).run()
    loop = make_loop(folder, **options)
    progress = loop.run(resume=True)
    return loop, progress


def batches_of_an_epoch(loop: Loop) -> int:
    return len(epoch_plans(loop.source, loop.lengths, loop.settings, 0))


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """An uninterrupted run with dropout and an average: the loop and how it ended."""
    loop = make_loop(tmp_path_factory.mktemp("whole"))
    return loop, loop.run()


def check_equal(whole, again) -> None:
    """Two runs ended alike."""
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


# In the first epoch, at its very end (before validation), in the second epoch, at the very end of all.
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
    # The signal comes while gradients wait; the run continues until they are applied.
    loop, progress = resumed(tmp_path, 1, **options)
    assert progress.batches_done == count
    assert distance(weights_of(whole.model), weights_of(loop.model)) < 1e-6


def test_resuming_needs_a_checkpoint_of_the_same_model(tmp_path):
    with pytest.raises(InputError, match="got none"):
        make_loop(tmp_path).run(resume=True)
    with pytest.raises(Interrupted):
        make_loop(tmp_path, callbacks=[signal_at(1)], ema=False).run()
    with pytest.raises(InputError, match="another model"):
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
    loop.source.weights[7] = np.nan
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
    """No handler of errors sees it."""


def kill_at(batch: int) -> keras.callbacks.Callback:
    """Ends a run after so many of its batches, without a checkpoint of that moment."""
    seen = []

    def kill(_, logs):
        seen.append(1)
        if len(seen) == batch:
            raise Killed

    return keras.callbacks.LambdaCallback(on_train_batch_end=kill)


def check_same_bits(whole, again) -> None:
    """Two runs ended with the same weights, averages and random state, after epochs of the same figures."""
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
    """A run that was killed after a batch, two batches behind its last checkpoint, and went on in a new loop."""
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
    *_, newest = kept = sorted((tmp_path / "checkpoint").iterdir())
    assert [path.name for path in kept] == ["00000003", "00000004", "00000005"]
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


def test_two_replicas_resume_to_the_weights_of_one(tmp_path):
    done = run_worker(tmp_path, strategy="mirrored", stop_at=7, dropout=0.0)
    assert done["before_stop"] == 7
    (tmp_path / "here").mkdir()
    loop = make_loop(tmp_path / "here", dropout=0.0)
    progress = loop.run()
    assert done["best"] == pytest.approx(progress.best_metric, abs=1e-5)
    assert distance(saved(tmp_path)[:3], weights_of(loop.model)[:3]) < 1e-5
