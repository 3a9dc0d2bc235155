import dataclasses

import pytest

from kmha.config import EncoderConfig
from training.comparison.candidates import LINEAR, NAMES, CandidateTask, Shape, build, describe, match_weights
from training.runtime.resource_usage import count_trainable_weights
from training.tasks.classify import ClassifyTask

CONFIG = EncoderConfig(900, 32, 2, 4, intermediate_dim=64, max_length=40)
NETWORKS = [name for name in NAMES if name != LINEAR]


# The first candidate defines the target.
@pytest.mark.parametrize(("name", "buckets"), [*((name, 0) for name in NETWORKS[1:]), ("averages", 101)])
def test_candidates_have_equal_numbers_of_weights(name, buckets):
    shape = Shape(dataclasses.replace(CONFIG, ngram_buckets=buckets, ngram_dim=8), 5, "mean", 0.1)
    target = count_trainable_weights(build("heads", shape, CONFIG.intermediate_dim))
    size = match_weights(name, shape, target)
    counts = {each: count_trainable_weights(build(name, shape, each)) for each in (size - 1, size, size + 1)}
    # No other size is closer.
    assert min(counts, key=lambda each: abs(counts[each] - target)) == size
    assert abs(counts[size] - target) / target < 0.015
    if name == "one-head":
        assert counts[size] == target and size == CONFIG.intermediate_dim


def test_an_unreachable_target_gives_size_one():
    assert match_weights("averages", Shape(CONFIG, 5, "mean", 0.1), 10) == 1


def test_candidates_differ_as_named():
    shape = Shape(CONFIG, 5, "cls", 0.2)
    heads, one, none = (
        build(name, shape, 64).encoder_config for name in ("heads", "one-head", "no-positions")
    )
    assert heads == CONFIG
    assert one == dataclasses.replace(CONFIG, num_heads=1)
    assert none == dataclasses.replace(CONFIG, positions="none")
    assert "no positions" in describe("no-positions", CONFIG, 64)
    assert (
        describe("one-head", CONFIG, 64)
        == "attention, 1 head, learned positions, 2 layers of 32, feed-forward 64"
    )


def test_the_task_differs_in_the_model_only():
    task = CandidateTask.of(ClassifyTask(multi_label=False, label_smoothing=0.2), "cnn", 3)
    model = task.build_model({"": CONFIG}, ["a", "b"])
    assert (task.smoothing, task.metric, model.num_labels) == (0.2, "accuracy", 2)
    assert model.reader.output_dim == 9
    assert dataclasses.replace(task, dropout=0.5).candidate == "cnn"
