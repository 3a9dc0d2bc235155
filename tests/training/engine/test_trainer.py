import types
from typing import Any

import pytest

from kmha.errors import InputError
from training.engine import trainer
from training.tasks.classify import ClassifyTask
from training.tasks.match.task import MatchTask

CONTRASTIVE, LISTWISE = MatchTask(form="bi", loss="contrastive"), MatchTask(loss="listwise")


@pytest.fixture
def two_devices(monkeypatch):
    def make(name: str):
        return types.SimpleNamespace(name=name, num_replicas_in_sync=1 if name == "one" else 2)

    monkeypatch.setattr(trainer, "make_strategy", make)


@pytest.mark.parametrize("task", [ClassifyTask(), LISTWISE, MatchTask()])
@pytest.mark.parametrize("name", ["auto", "one", "mirrored"])
def test_replicas_share_most_losses(two_devices, task, name):
    assert trainer._make_strategy(name, task).num_replicas_in_sync == (1 if name == "one" else 2)


def test_a_loss_over_all_pairs_of_a_batch_stays_on_one_device(two_devices):
    for name in ("auto", "one"):
        assert trainer._make_strategy(name, CONTRASTIVE).num_replicas_in_sync == 1
    with pytest.raises(InputError) as caught:
        trainer._make_strategy("mirrored", CONTRASTIVE)
    assert str(caught.value) == (
        "--strategy: expected one, since the loss compares each row with all others of its batch, got mirrored"
        " with 2 devices"
    )


def test_one_device_may_be_called_mirrored():
    # The test process has a single device.
    assert trainer._make_strategy("mirrored", CONTRASTIVE).num_replicas_in_sync == 1


def test_several_workers_share_all_but_a_loss_over_all_pairs_of_a_batch():
    coordinator: Any = types.SimpleNamespace(strategy="theirs")
    assert trainer._make_strategy("auto", LISTWISE, coordinator) == "theirs"
    with pytest.raises(InputError, match="--match.loss: expected a loss of each row or of each list"):
        trainer._make_strategy("auto", CONTRASTIVE, coordinator)
