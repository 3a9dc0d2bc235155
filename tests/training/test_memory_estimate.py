"""The estimate beside what training steps really take, and what is refused."""

import ctypes
import gc
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from kmha.config import EncoderConfig
from kmha.errors import InputError
from kmha.layers.attention_choice import LONG_FROM
from kmha.models.classifier import TextClassifier
from training.cost import trained_size
from training.losses import softmax_cross_entropy
from training.memory_estimate import available_bytes, check_memory, encoder_configs, estimated_bytes
from training.optimizer import AdamW
from training.replicas import TrainingStep

SHAPE: dict[str, Any] = {
    "vocabulary_size": 500,
    "hidden_dim": 128,
    "num_layers": 2,
    "num_heads": 4,
    "intermediate_dim": 512,
}


def _status(name: str) -> int:
    lines = Path("/proc/self/status").read_text().splitlines()
    return 1024 * next(int(line.split()[1]) for line in lines if line.startswith(name))


def _taken(config: EncoderConfig, rows: int, tokens: int) -> tuple[int, int]:
    """Bytes above those before that two training steps take, and the estimate."""
    gc.collect()
    # What earlier tests have given back must not be there to be taken again.
    ctypes.CDLL(None).malloc_trim(0)
    Path("/proc/self/clear_refs").write_text("5")  # the peak starts anew
    before = _status("VmRSS")
    model = TextClassifier(config, 3)
    model.build()
    variables = [variable.value for variable in model.trainable_variables]
    optimizer = AdamW(variables, lambda _: tf.constant(1e-4), 0.01)
    step = TrainingStep(model, softmax_cross_entropy, optimizer, tf.distribute.get_strategy())
    ids = np.random.default_rng(0).integers(5, 500, (rows, tokens)).astype("int32")
    features = {"token_ids": ids, "padding_mask": np.ones_like(ids), "segment_ids": np.zeros_like(ids)}
    batch = {
        "features": features,
        "targets": np.zeros(rows, "int32"),
        "weights": np.ones(rows, "float32"),
    }
    for _ in range(2):
        step(tf.nest.map_structure(tf.constant, batch))["loss"].numpy()
    return _status("VmHWM") - before, estimated_bytes([config], trained_size(model), rows, tokens)


def _writable_clear_refs() -> bool:
    try:
        Path("/proc/self/clear_refs").write_text("5")
    except OSError:
        return False
    return True


@pytest.mark.skipif(not _writable_clear_refs(), reason="the system does not tell a peak that starts anew")
@pytest.mark.parametrize(
    ("config", "rows", "tokens"),
    [
        (EncoderConfig(**SHAPE, max_length=512, attention_dropout=0.0), 8, 512),
        (EncoderConfig(**SHAPE, max_length=4096), 1, 4096),
        (EncoderConfig(**SHAPE, max_length=4096, attention_window=64), 1, 4096),
    ],
    ids=["all pairs", "blocks", "window"],
)
def test_the_estimate_is_within_a_factor_of_two_of_what_steps_take(config, rows, tokens):
    taken, estimate = _taken(config, rows, tokens)
    assert taken / 2 < estimate < 2 * taken, (taken / 2**20, estimate / 2**20)


def test_pairs_grow_with_the_square_and_blocks_do_not():
    long = LONG_FROM * 4
    short = EncoderConfig(**SHAPE, max_length=LONG_FROM - 1)
    blocks, window = (
        EncoderConfig(**SHAPE, max_length=2 * long, attention_window=each) for each in (None, 64)
    )
    half, whole = ((LONG_FROM - 2) // 2, LONG_FROM - 2)
    of_pairs = [estimated_bytes([short], 0, 2, tokens) for tokens in (half, whole)]
    assert 3 < of_pairs[1] / of_pairs[0] < 4
    for config in (blocks, window):
        of_blocks = [estimated_bytes([config], 0, 1, tokens) for tokens in (long, 2 * long)]
        assert 1.5 < of_blocks[1] / of_blocks[0] <= 2
    assert estimated_bytes([short], 10**6, 1, 8) - estimated_bytes([short], 0, 1, 8) == 24 * 10**6


def test_what_cannot_fit_is_refused_by_its_flag_and_both_numbers():
    config = EncoderConfig(**SHAPE, max_length=10**6)
    one, many = (
        SimpleNamespace(rows=np.arange(rows), row_tokens=tokens) for rows, tokens in ((1, 10**6), (900, 500))
    )
    for plan, flag, batch in (
        (one, "--text.max-length", "1 row of 1,000,000 tokens"),
        (many, "--train.batch-tokens", "900 rows of 500 tokens"),
    ):
        needed = estimated_bytes([config], 10**6, len(plan.rows), plan.row_tokens)
        small = SimpleNamespace(rows=np.arange(2), row_tokens=10)
        check_memory([config], 10**6, [small, plan], needed)
        with pytest.raises(InputError) as refused:
            check_memory([config], 10**6, [small, plan], needed - 1)
        assert str(refused.value) == (
            f"{flag}: wanted batches that fit into the {needed - 1:,} bytes of memory that are free, given a"
            f" batch of {batch}, which takes about {needed:,}"
        )
    # Nobody knows, or there is nothing to say of the model.
    check_memory([config], 10**6, [one], None)
    check_memory([], 10**6, [one], 1)


def test_what_is_free_is_less_than_the_machine_has():
    free = available_bytes()
    assert free is None or 2**20 < free < 2**50


def test_every_encoder_of_a_model_counts():
    config = EncoderConfig(**SHAPE)
    model = SimpleNamespace(encoder_configs={"": config})
    assert encoder_configs(model) == [config] and encoder_configs(object()) == []
