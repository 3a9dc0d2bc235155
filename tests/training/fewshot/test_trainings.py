"""Checkpoints of the trainings of few labels: when they are written, and a choice that changes."""

import contextlib
import dataclasses
import signal
from types import SimpleNamespace
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf

from kmha.errors import InputError
from training.cli.exceptions import Interrupted
from training.config.config import ResolvedConfig
from training.engine.optimizer import AdamW
from training.fewshot import trainings as module
from training.fewshot.trainings import Trainings


def _trainings(
    folder, monkeypatch, written, checkpoint_steps=0, resume=False, total=15, joined=None
) -> Trainings:
    """Trainings of a model with one weight, on two folds and all rows; `written` gets the progress of checkpoints."""
    model: Any = keras.Sequential([keras.layers.Dense(1, use_bias=False)])
    model.build((None, 1))
    optimizer = AdamW([each.value for each in model.trainable_variables], lambda _: tf.constant(0.1))
    variables = [each.value for each in model.trainable_variables]
    stage: Any = SimpleNamespace(
        step=SimpleNamespace(optimizer=optimizer, loss_scale=None), variables=variables
    )
    write = module.write_checkpoint

    def record(place, state, progress, retained):
        written.append((progress["training"], progress["steps"]))
        write(place, state, progress, retained)

    monkeypatch.setattr(module, "write_checkpoint", record)
    train = dataclasses.replace(ResolvedConfig().train, checkpoint_steps=checkpoint_steps)
    config = dataclasses.replace(ResolvedConfig(), train=train, resume=resume)
    context: Any = SimpleNamespace(config=config, folder=folder)
    return Trainings(stage, model, 3 * [total // 3], 2, (2, 1), joined, context)


def _run(trainings: Trainings) -> np.ndarray:
    return trainings.run(5, lambda done: iter([0.5] * (5 - done)), lambda: np.ones((2, 1), np.float32))


def test_checkpoints_are_written_after_so_many_steps_of_all_trainings(tmp_path, monkeypatch):
    written: list[tuple[int, int]] = []
    trainings = _trainings(tmp_path, monkeypatch, written, checkpoint_steps=7)
    with trainings.resumable():
        for _ in range(3):
            _run(trainings)
    assert written == [(1, 2), (2, 4)]


@pytest.mark.parametrize("stopped_after", range(9))
def test_the_mean_of_the_folds_has_each_of_them_once_however_often_the_fit_was_interrupted(
    stopped_after, tmp_path, monkeypatch
):
    def run(trainings):
        """Each training sets the weight to its number plus 1; a stop may come in a training and after it."""
        nonlocal events
        (weight,) = trainings._variables
        for number in range(2):

            def train(done, value=number + 1.0):
                for _ in range(done, 2):
                    weight.assign([[value]])
                    stop(trainings, raises=False)
                    yield 0.5

            def encode():
                stop(trainings)
                return np.zeros((2, 1), np.float32)

            trainings.run(2, train, encode, joins_mean=True)
            stop(trainings)
        return trainings.mean_weights()[0].numpy().item()

    def stop(trainings, raises=True):
        nonlocal events
        events += 1
        if events == stopped_after:
            trainings._signals = [signal.SIGTERM]
        if raises:
            trainings.stop_if_signaled()

    events = 0
    trainings = _trainings(tmp_path, monkeypatch, [], checkpoint_steps=1)
    # Two steps, the vectors and the heads of each training.
    interrupted = stopped_after > 0
    with pytest.raises(Interrupted) if interrupted else contextlib.nullcontext(), trainings.resumable():
        assert run(trainings) == 1.5
    if interrupted:
        again = _trainings(tmp_path, monkeypatch, [], resume=True)
        with again.resumable():
            assert run(again) == 1.5


def test_a_resumed_fit_with_another_choice_is_refused(tmp_path, monkeypatch):
    trainings = _trainings(tmp_path, monkeypatch, [], checkpoint_steps=14)
    with trainings.resumable():
        for _ in range(3):
            _run(trainings)
    again = _trainings(tmp_path, monkeypatch, [], resume=True)
    with pytest.raises(InputError, match="expected the choice of the interrupted run"), again.resumable():
        # The checkpoint is in the third training.
        for _ in range(2):
            assert _run(again).tolist() == [[1.0], [1.0]]


def test_a_resumed_fit_with_other_steps_is_refused(tmp_path, monkeypatch):
    trainings = _trainings(tmp_path, monkeypatch, [], checkpoint_steps=14)
    with trainings.resumable():
        for _ in range(3):
            _run(trainings)
    again = _trainings(tmp_path, monkeypatch, [], resume=True, total=9)
    with (
        pytest.raises(InputError, match="expected a checkpoint of 9 steps, got one of 15"),
        again.resumable(),
    ):
        pass


@pytest.mark.parametrize(
    ("predictions", "expected"),
    [
        ([[0, 1, 1], [0, 1, 2], [1, 1, 1]], [[1, 1, 1], [1, 1, 0], [0, 1, 0]]),
        ([[[0, 1], [1, 1]], [[0, 1], [1, 0]], [[0, 1], [1, 1]]], [[1, 1], [1, 0], [1, 0]]),
    ],
    ids=["one label", "several"],
)
def test_texts_that_all_models_predict_alike_are_known_after_an_interruption(
    predictions, expected, tmp_path, monkeypatch
):
    predicted = np.array(predictions, np.int32)
    # Two labeled rows and the texts.
    joined: Any = SimpleNamespace(targets=np.concatenate([np.zeros_like(predicted[0][:2]), predicted[0]]))
    first, found = _trainings(tmp_path, monkeypatch, [], joined=joined), []
    with pytest.raises(Interrupted), first.resumable():
        found += [first.record_predictions(each).astype(int).tolist() for each in predicted[:2]]
        signal.raise_signal(signal.SIGINT)
        first.stop_if_signaled()
    second = _trainings(tmp_path, monkeypatch, [], resume=True, joined=joined)
    with second.resumable():
        # The interruption may come after the record, before the first step.
        found += [second.record_predictions(each).astype(int).tolist() for each in predicted[1:]]
    assert found == [*expected[:2], *expected[1:]]
