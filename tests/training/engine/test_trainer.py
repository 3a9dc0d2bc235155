import dataclasses
import types
from typing import Any

import numpy as np
import pytest

from kmha.errors import InputError
from kmha.pretrained.sources import find_checkpoint
from kmha.pretrained.weights import encoder_variables
from tests.kmha.pretrained.folders import GOLDEN
from training.config.config import FitConfig
from training.config.defaults import resolve_config
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


class _Texts:
    """A source of two texts of six tokens."""

    text_lengths = np.array([6, 6])

    def different_ids(self, granularity: int):
        yield np.array([[5, 6, 7, 5, 6, 7], [8, 9, 8, 9, 8, 9]], np.int32)


@pytest.fixture
def initial_vectors(tmp_path):
    def make(coordinator: Any = trainer.SINGLE_WORKER, **settings) -> Any:
        config = resolve_config(FitConfig(**{"task": settings.pop("task", "classify")}))
        config = dataclasses.replace(config, encoder=dataclasses.replace(config.encoder, **settings))
        context: Any = types.SimpleNamespace(config=config, scratch=tmp_path, coordinator=coordinator)
        source: Any = _Texts()
        return trainer._initial_vectors(context, config, source)

    return make


def test_token_embeddings_start_from_the_training_texts(initial_vectors):
    # Also of models with another width (`training.compare`).
    for width in (16, 35):
        vectors = initial_vectors()(0, 20, width)
        assert vectors.shape == (20, width)
        assert np.flatnonzero(vectors.any(axis=1)).tolist() == [5, 6, 7, 8, 9]
        assert vectors[5] @ vectors[6] > vectors[5] @ vectors[8]


@pytest.mark.parametrize(
    "settings", [{"size": "none"}, {"vectors": "words.txt"}, {"task": "tag"}, {"task": "masked-lm"}]
)
def test_other_embeddings_do_not_start_from_the_training_texts(initial_vectors, settings):
    assert initial_vectors(**settings) is None


def test_all_workers_start_from_the_vectors_of_the_chief_worker(initial_vectors):
    class Worker:
        is_chief = False

        def copy_from_chief(self, folder):
            np.save(folder / "0-2.npy", np.ones((3, 2), np.float32))

    assert initial_vectors(coordinator=Worker())(0, 3, 2).tolist() == [[1, 1]] * 3


@pytest.mark.parametrize("left_out", ["", "embedding/segments", "block_1/feed_forward/contract/kernel"])
def test_weights_that_a_checkpoint_lacks_start_at_random(left_out):
    checkpoint = find_checkpoint(str(GOLDEN / "bert"))
    weights = checkpoint.read_weights()
    some = {path: value for path, value in weights.items() if not (left_out and path.startswith(left_out))}
    task = ClassifyTask()
    model = trainer._pretrained_model(
        lambda: task.build_model({"": checkpoint.config}, ["a", "b"]),
        dataclasses.replace(checkpoint, read_weights=lambda: some),
        checkpoint.vocabulary,
    )
    for path, variable in encoder_variables(model.encoder).items():
        if path in some:
            np.testing.assert_array_equal(variable.numpy(), some[path])
        else:
            assert variable.numpy().std() > 0.01
