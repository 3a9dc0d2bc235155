"""The estimate compared with measured training steps, and refused batches."""

import json
import os
import subprocess
import sys
import tracemalloc
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from kmha.config import EncoderConfig
from kmha.errors import InputError
from kmha.layers.attention_parts import LONG_FROM
from tests.command_runs import ROOT
from tests.training.memory_worker import SHAPE
from training.evaluation.model_calibration import fit_temperature
from training.metrics.bootstrap import single_label_resampled
from training.metrics.classification import single_label_scores
from training.runtime.memory_estimate import (
    BASE_BYTES,
    SCORE_BYTES,
    available_bytes,
    check_label_memory,
    check_memory,
    encoder_configs,
    estimate_bytes,
)


@pytest.mark.second
@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="no /proc/self/status")
def test_estimate_is_within_a_factor_of_two_of_the_measured_memory():
    command = [sys.executable, "-m", "tests.training.memory_worker"]
    environment = os.environ | {"TF_CPP_MIN_LOG_LEVEL": "3"}
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=500)
    assert done.returncode == 0, done.stderr[-2000:]
    found = json.loads(done.stdout.splitlines()[-1])
    assert len(found) == 3
    for taken, estimate in found:
        assert taken / 2 < estimate < 2 * taken, found


def test_blockwise_attention_grows_linearly():
    long = LONG_FROM * 4
    short = EncoderConfig(**SHAPE, max_length=LONG_FROM - 1)
    blocks, window = (
        EncoderConfig(**SHAPE, max_length=2 * long, attention_window=each) for each in (None, 64)
    )
    half, whole = ((LONG_FROM - 2) // 2, LONG_FROM - 2)
    of_pairs = [estimate_bytes([short], 0, 2, tokens) for tokens in (half, whole)]
    assert 3 < (of_pairs[1] - BASE_BYTES) / (of_pairs[0] - BASE_BYTES) < 4
    for config in (blocks, window):
        of_blocks = [estimate_bytes([config], 0, 1, tokens) for tokens in (long, 2 * long)]
        assert 1.5 < (of_blocks[1] - BASE_BYTES) / (of_blocks[0] - BASE_BYTES) <= 2
    assert estimate_bytes([short], 10**6, 1, 8) - estimate_bytes([short], 0, 1, 8) == 24 * 10**6


def test_batch_too_large_for_memory_is_refused():
    config = EncoderConfig(**SHAPE, max_length=10**6)
    one, many = (
        SimpleNamespace(rows=np.arange(rows), row_tokens=tokens) for rows, tokens in ((1, 10**6), (900, 500))
    )
    for plan, flag, batch in (
        (one, "--text.max-length", "1 row of 1,000,000 tokens"),
        (many, "--train.batch-tokens", "900 rows of 500 tokens"),
    ):
        needed = estimate_bytes([config], 10**6, len(plan.rows), plan.row_tokens)
        small = SimpleNamespace(rows=np.arange(2), row_tokens=10)
        check_memory([config], 10**6, [small, plan], needed)
        with pytest.raises(InputError) as refused:
            check_memory([config], 10**6, [small, plan], needed - 1)
        assert str(refused.value) == (
            f"{flag}: expected batches that fit into {needed - 1:,} bytes of free memory, got a"
            f" batch of {batch}, which takes about {needed:,} bytes"
        )
    # The free memory is unknown, or the model has no encoder.
    check_memory([config], 10**6, [one], None)
    check_memory([], 10**6, [one], 1)


def test_available_memory_is_plausible():
    free = available_bytes()
    assert free is None or 2**20 < free < 2**50


def test_every_encoder_of_a_model_counts():
    config = EncoderConfig(**SHAPE)
    model = SimpleNamespace(encoder_configs={"": config})
    assert encoder_configs(model) == [config] and encoder_configs(object()) == []


@pytest.mark.parametrize(
    ("labels", "multi_label", "train", "evaluated", "fits"),
    [
        (5_000, False, 90_000, 10_000, True),
        (5_000, True, 90_000, 5_000, False),
        (1_000, True, 90_000, 10_000, True),
        (15_000, False, 40_500, 4_500, True),
        (15_000, False, 90_000, 10_000, False),
        (50_000, False, 90_000, 10_000, False),
    ],
)
def test_labels_whose_scores_do_not_fit_are_refused(labels, multi_label, train, evaluated, fits):
    check_label_memory(labels, multi_label, train, evaluated, None)
    if fits:
        check_label_memory(labels, multi_label, train, evaluated, 4 * 10**9)
    else:
        with pytest.raises(InputError, match=f"got {labels:,} labels for {train:,} training rows"):
            check_label_memory(labels, multi_label, train, evaluated, 4 * 10**9)


def test_scores_of_many_labels_take_less_than_estimated():
    rows, labels = 3_000, 2_000
    random = np.random.default_rng(0)
    logits = random.normal(size=(rows, labels)).astype(np.float32)
    probabilities = np.exp(logits) / np.exp(logits).sum(axis=1, keepdims=True)
    true = random.integers(0, labels, rows)
    tracemalloc.start()
    try:
        fit_temperature(logits, true)
        scores = single_label_scores(true, probabilities, [str(label) for label in range(labels)])
        single_label_resampled(true, probabilities.argmax(axis=1)).intervals()
        assert tracemalloc.get_traced_memory()[1] < rows * labels * SCORE_BYTES
    finally:
        tracemalloc.stop()
    assert "confusion_matrix" not in scores and len(scores["per_class"]) == labels
