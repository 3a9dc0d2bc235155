"""Estimates the memory of training steps, to refuse batches that cannot fit before the training starts."""

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from kmha.config import EncoderConfig
from kmha.errors import InputError

# Numbers of float32 values, fitted to measured steps (docs/how-to/long-texts.md).
PER_HIDDEN, PER_INTERMEDIATE = 13, 3.5  # per token and block, times hidden_dim and intermediate_dim
PER_EMBEDDING = 8  # per token, times hidden_dim
# Per head and pair of tokens: in every block; in every block with dropout; in the block being computed.
PAIR_VALUES, PAIR_DROPOUT_VALUES, PAIR_WORKSPACE = 1, 2, 3
BLOCKWISE_WORKSPACE = 16  # per head and pair of tokens of one block of queries and one block of keys
WEIGHT_COPIES = 6  # weights, gradients, two moments, moving average, best weights
# Bytes of an evaluated row and label: logits, probabilities, their copies in float64 and ranks. Of a training row and
# label: the matrix of targets and a copy.
SCORE_BYTES, TARGET_BYTES = 40, 8
_FLOAT_BYTES = 4
BASE_BYTES = 100 * 2**20  # threads and graphs of any model


def estimate_bytes(
    configs: Sequence[EncoderConfig], weights: int, rows: int, tokens: int, copies: int = WEIGHT_COPIES
) -> int:
    """Memory of training steps in bytes, with so many copies of the weights, in addition to that of the process."""
    batch_values = max(_batch_values(config, rows, tokens) for config in configs)
    return BASE_BYTES + math.ceil(_FLOAT_BYTES * (copies * weights + batch_values))


def encoder_configs(model: Any) -> list[EncoderConfig]:
    """The configurations of a model's encoders; empty if it has none."""
    return list(getattr(model, "encoder_configs", {}).values())


def _batch_values(config: EncoderConfig, rows: int, tokens: int) -> float:
    """Number of float32 values of a batch."""
    from kmha.layers.attention_parts import uses_blocks
    from kmha.layers.long_attention import LARGEST_BLOCK, SMALLEST_BLOCK

    width = config.hidden_dim
    sizes = [config.layer_size(index) for index in range(config.num_layers)]
    per_token = PER_EMBEDDING * width + sum(
        PER_HIDDEN * width + PER_INTERMEDIATE * inner for _, inner in sizes
    )
    max_heads = max((heads for heads, _ in sizes), default=0)
    heads = sum(heads for heads, _ in sizes)
    stored, workspace = PAIR_VALUES + (PAIR_DROPOUT_VALUES if config.attention_dropout else 0), PAIR_WORKSPACE
    pairs = tokens**2
    if uses_blocks(tokens, tokens, config.max_length):
        if config.attention_window is not None:
            pairs = tokens * (3 * max(config.attention_window, SMALLEST_BLOCK) + config.attention_globals)
        else:
            pairs, stored, workspace = min(tokens, LARGEST_BLOCK) ** 2, 0, BLOCKWISE_WORKSPACE
    return rows * (tokens * per_token + pairs * (stored * heads + workspace * max_heads))


def available_bytes() -> int | None:
    """Free memory for this process in bytes; None if the system does not report it."""
    found = []
    try:
        lines = Path("/proc/meminfo").read_text(encoding="ascii").splitlines()
        found += [1024 * int(line.split()[1]) for line in lines if line.startswith("MemAvailable:")]
    except OSError:
        return None
    # The limit of a container may be lower.
    for limit, usage in (
        ("/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory.current"),
        ("/sys/fs/cgroup/memory/memory.limit_in_bytes", "/sys/fs/cgroup/memory/memory.usage_in_bytes"),
    ):
        try:
            found.append(int(Path(limit).read_text()) - int(Path(usage).read_text()))
        except (OSError, ValueError):  # another version of cgroups, or the limit is "max"
            continue
    return max(0, min(found)) if found else None


def check_label_memory(
    labels: int, multi_label: bool, train: int, evaluated: int, available: int | None
) -> None:
    """Raises InputError if targets and scores do not fit into the available bytes; before they are allocated.

    Args:
        labels: Number of labels.
        multi_label: Whether a row may have several labels; then targets are a matrix.
        train: Number of training rows.
        evaluated: Rows of the largest part that is scored.
        available: Free memory in bytes; None if unknown.
    """
    needed = SCORE_BYTES * evaluated * labels
    needed += TARGET_BYTES * train * labels if multi_label else 0
    if available is not None and needed > available:
        raise InputError(
            f"--data.train: expected labels whose scores fit into {available:,} bytes of free memory, got"
            f" {labels:,} labels for {train:,} training rows, which take about {needed:,} bytes; merge rare labels"
        )


def check_model_memory(
    configs: Sequence[EncoderConfig], available: int | None, copies: int = WEIGHT_COPIES
) -> None:
    """Raises InputError if so many copies of the encoders' weights do not fit; before the model is built."""
    weights = sum(config.least_weights for config in configs)
    needed = _FLOAT_BYTES * copies * weights
    if available is not None and needed > available:
        raise InputError(
            f"--encoder: expected a model that fits into {available:,} bytes of free memory, got one of at least"
            f" {weights:,} weights, which take {needed:,} bytes; smaller ones: --encoder.hidden-dim,"
            " --encoder.num-layers, --text.max-length, --text.vocabulary-size"
        )


def check_memory(
    configs: Sequence[EncoderConfig],
    weights: int,
    plans: Sequence[Any],
    available: int | None,
    copies: int = WEIGHT_COPIES,
    flag: str = "--train.batch-tokens",
) -> None:
    """Raises InputError if training steps with the largest batch do not fit into the available bytes.

    Args:
        configs: Of the encoders; none: nothing is checked.
        weights: Number of trained weights.
        plans: The batches; none: nothing is checked.
        available: Free memory in bytes; None if unknown.
        copies: Of the weights, as far as they are not allocated yet.
        flag: What makes batches of several rows smaller.
    """
    if available is None or not plans or not configs:
        return
    sizes = {(len(plan.rows), plan.row_tokens) for plan in plans}
    needed, rows, tokens = max((estimate_bytes(configs, weights, *size, copies), *size) for size in sizes)
    if needed <= available:
        return
    flag = "--text.max-length" if rows == 1 else flag
    batch = f"a batch of {rows:,} row{'' if rows == 1 else 's'} of {tokens:,} tokens"
    raise InputError(
        f"{flag}: expected batches that fit into {available:,} bytes of free memory, got"
        f" {batch}, which takes about {needed:,} bytes"
    )
