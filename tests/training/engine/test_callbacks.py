import csv
import dataclasses
import importlib.util
import re

import keras
import numpy as np
import pytest

from tests.training.tiny_runs import SETTINGS, distance, make_loop, trainable, weights_of
from training.engine.callbacks import EpochLog, OptimizerView, ProgressBar, expose_optimizer
from training.engine.loop import epoch_plans


def batches_of(loop) -> int:
    return len(epoch_plans(loop.source, loop.lengths, loop.settings, 0)) * loop.settings.epochs


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
    # It stays ended: going on with it trains no further.
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
    # Three batches, and the one that was waiting.
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
    kept = [v.numpy() for v in trainable(loop.model)]
    for variable in trainable(loop.model):
        variable.assign_add(variable * 0 + 1)
    loop.model.load_weights(path)
    assert distance(kept, [v.numpy() for v in trainable(loop.model)]) == 0


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
        table = EpochLog(path, append)
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
