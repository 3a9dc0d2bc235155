"""Batches split into shards, one for each core or a few cores, give the same gradients and predictions."""

import dataclasses
import json
import subprocess
import sys
from pathlib import Path

import keras
import numpy as np
import pytest
import tensorflow as tf

from tests.command_runs import NO_DROPOUT, TINY, call, clean_environment, news_rows, write_csv
from tests.training.tiny_runs import distance, make_batch, make_step, tiny_model, trainable
from training.config.config import ResolvedConfig, TrainSection
from training.config.defaults import resolve_text
from training.engine import trainer
from training.fit import main
from training.runtime import cpu_sharding as shares
from training.tasks.classify import ClassifyTask
from training.tasks.match.task import MatchTask
from training.tasks.protocol import Task

ROOT = Path(__file__).parents[3]
LARGE = 10_000


@pytest.mark.parametrize(
    ("settings", "longest", "cores", "expected"),
    [
        ({}, 256, 2, 2),
        ({}, 256, 1, 1),
        ({}, 256, 16, 4),  # of the longest texts a batch has eight: two each
        ({}, 512, 16, 2),
        ({}, 1024, 16, 1),
        ({}, 4096, 2, 1),
        ({"batch_tokens": 65_536}, 256, 64, 4),
        ({"batch_rows": 5}, 16, 16, 2),
        ({"batch_rows": 1}, 16, 16, 1),
    ],
)
def test_every_shard_has_rows(settings, longest, cores, expected):
    assert shares.max_shards(TrainSection(**settings), longest, cores) == expected


def test_number_of_shards_of_a_job():
    config = resolve_text(ResolvedConfig(), np.full(9, 30))

    def shards(rows: int | None = LARGE, task: Task | None = None, cores=2, **changed):
        return shares.choose_num_shards(
            dataclasses.replace(config, **changed), task or ClassifyTask(), rows, cores
        )

    assert shards() == 2
    assert shards(rows=100) == 1
    # Few labels.
    assert [shards(rows=None, cores=cores) for cores in (1, 2, 16)] == [1, 2, 4]
    assert shards(rows=None, task=MatchTask()) == 1
    assert shards(rows=None, classify=dataclasses.replace(config.classify, window=64)) == 1
    assert shards(rows=None, strategy="mirrored") == 1
    assert shards(strategy="mirrored") == 1
    assert shards(train=TrainSection(jit="on")) == 1
    assert shards(task=MatchTask(form="bi", loss="contrastive")) == 1
    assert shards(task=MatchTask(form="bi", loss="cross-entropy")) == 2
    # Two texts of 512 tokens each: a batch has room for two pairs.
    assert shards(task=MatchTask(), text=dataclasses.replace(config.text, max_length=512)) == 1


@pytest.mark.parametrize("given", ["", "0", "1", "64"])
def test_intra_op_cores_follow_the_environment(given, monkeypatch):
    monkeypatch.setattr(shares.os, "sched_getaffinity", lambda _: range(4))
    monkeypatch.setenv("TF_NUM_INTRAOP_THREADS", given)
    assert shares.intra_op_cores() == (1 if given == "1" else 4)


def _weights_after(batches, **options) -> list[np.ndarray]:
    keras.utils.set_random_seed(3)
    model = tiny_model()
    step = make_step(model, clip_norm=0.05, **options)
    sums = [step(batch) for batch in batches]
    step.flush()
    return [variable.numpy() for variable in trainable(model)] + [np.array([s["weight"] for s in sums])]


@pytest.mark.second
def test_shards_reach_the_weights_of_whole_batches():
    """Rows of tables repeat from one share to the next; the last rows only fill up."""
    rng = np.random.default_rng(0)
    batches = [make_batch(rng, 4, 6, 8, [0.5, 1.0, 2.5]) for _ in range(4)]
    whole = _weights_after(batches)
    assert distance(whole, _weights_after(batches[:2] * 2)) > 1e-3
    assert distance(whole, _weights_after(batches, shards=3)) < 1e-5
    accumulated = _weights_after(batches, accumulation_steps=2)
    assert distance(accumulated, _weights_after(batches, accumulation_steps=2, shards=2)) < 1e-5


@pytest.mark.parametrize("count", [1, 2, 4, 5])
@pytest.mark.parametrize("rows", [1, 2, 3, 5, 8])
def test_outputs_of_shards_equal_those_of_whole_batches(count, rows, monkeypatch):
    monkeypatch.setattr(shares, "num_shards", lambda: count)
    parts = []

    def request(part):
        tf.debugging.assert_positive(tf.shape(part["ids"])[0])
        parts.append(part)
        return {"sums": tf.reduce_sum(part["ids"], axis=1), "same": part["other"]}

    ids = np.arange(rows * 3).reshape(rows, 3)
    features = {"ids": tf.constant(ids), "other": tf.constant(ids[:, :1])}
    found = tf.function(lambda: shares.run_sharded(request, features), autograph=False)()
    np.testing.assert_array_equal(found["sums"], ids.sum(axis=1))
    np.testing.assert_array_equal(found["same"], ids[:, :1])
    assert len(parts) == count


@pytest.mark.second
def test_fit_with_shards_has_the_history_of_whole_batches(tmp_path, monkeypatch):
    """By its own command: 61 rows in batches of 16, so that some are filled up."""
    train = write_csv(tmp_path / "train.csv", news_rows(61, seed=1))
    flags = [f"--data.train={train}", *TINY, *NO_DROPOUT, "--no-baseline", "--no-calibrate"]
    history = []
    for count in (1, 2):
        for module in (shares, trainer):
            monkeypatch.setattr(module, "num_shards", lambda count=count: count)
        run = tmp_path / f"run{count}"
        assert call(main, *flags, "--out", run).status == 0
        history.append(json.loads((run / "metrics.json").read_text("utf-8"))["history"])
    whole, shared = history
    for before, after in zip(whole, shared, strict=True):
        for name in ("loss", "val_loss", "val_accuracy"):
            assert after[name] == pytest.approx(before[name], abs=1e-4)


@pytest.mark.second
def test_tensorflow_starts_with_the_threads_of_a_shard():
    program = """if True:
        import os
        os.sched_getaffinity = lambda _: range(4)
        from training.runtime import cpu_sharding as shares
        assert shares.num_shards() == 1
        shares.configure_shards(2)
        print(shares.num_shards())
        shares.configure_shards(4)
        print(shares.num_shards())
    """
    done = subprocess.run(
        [sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, env=clean_environment()
    )
    assert done.returncode == 0, done.stderr[-2000:]
    assert done.stdout.split() == ["2", "2"]
