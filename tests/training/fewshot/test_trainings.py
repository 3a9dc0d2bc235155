"""Checkpoints of the trainings of few labels: when they are written, and a choice that changes."""

import dataclasses
from types import SimpleNamespace
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf

from kmha.errors import InputError
from training.config.config import ResolvedConfig
from training.engine.optimizer import AdamW
from training.fewshot import trainings as module
from training.fewshot.trainings import Trainings


def _trainings(folder, monkeypatch, written, checkpoint_steps=0, resume=False) -> Trainings:
    """Three trainings of a model with one weight; `written` gets the progress of each checkpoint."""
    model: Any = keras.Sequential([keras.layers.Dense(1, use_bias=False)])
    model.build((None, 1))
    optimizer = AdamW([each.value for each in model.trainable_variables], lambda _: tf.constant(0.1))
    stage: Any = SimpleNamespace(step=SimpleNamespace(optimizer=optimizer, loss_scale=None))
    write = module.write_checkpoint

    def record(place, state, progress, retained):
        written.append(tuple(progress.values()))
        write(place, state, progress, retained)

    monkeypatch.setattr(module, "write_checkpoint", record)
    train = dataclasses.replace(ResolvedConfig().train, checkpoint_steps=checkpoint_steps)
    config = dataclasses.replace(ResolvedConfig(), train=train, resume=resume)
    context: Any = SimpleNamespace(config=config, folder=folder)
    return Trainings(stage, model, (3, 2, 1), 15, None, context)


def _run(trainings: Trainings) -> np.ndarray:
    return trainings.run(5, lambda done: iter([0.5] * (5 - done)), lambda: np.ones((2, 1), np.float32))


def test_checkpoints_are_written_after_so_many_steps_of_all_trainings(tmp_path, monkeypatch):
    written: list[tuple[int, int]] = []
    trainings = _trainings(tmp_path, monkeypatch, written, checkpoint_steps=7)
    with trainings.resumable():
        for _ in range(3):
            _run(trainings)
    assert written == [(1, 2), (2, 4)]


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
