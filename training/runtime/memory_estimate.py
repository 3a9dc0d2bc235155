"""How much memory training takes, estimated before it starts, so that what cannot fit is refused in one line."""

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from kmha.config import EncoderConfig
from kmha.errors import InputError
from kmha.layers.attention_options import uses_blocks
from kmha.layers.blockwise_attention import LARGEST_BLOCK
from kmha.layers.window_attention import SMALLEST_BLOCK

# Float32 numbers, fitted to measured steps (docs/how-to/long-texts.md).
HIDDEN_KEPT, INNER_KEPT = 13, 3.5  # of each token and block, times hidden_dim and intermediate_dim
OF_EMBEDDING = 8  # of each token, times hidden_dim
# Of each head and pair: in every block; there with dropout, too; while one block is computed.
PAIRS_KEPT, PAIRS_DROPPED, PAIRS_ONCE = 1, 2, 3
BLOCK_PAIRS_ONCE = 16  # of each head and pair of a block of queries and one of keys
# Weights, their gradients, two moments, the moving average, the best weights.
COPIES_OF_WEIGHTS = 6
_FLOAT_BYTES = 4
# Of threads and graphs, whatever the model.
BASE_BYTES = 100 * 2**20


def estimate_bytes(configs: Sequence[EncoderConfig], weights: int, rows: int, tokens: int) -> int:
    """The memory of training steps, beside that of a program that has not begun.

    Args:
        configs: Of the model's encoders.
        weights: Trained numbers of the model.
        rows: Of a batch.
        tokens: Padded tokens of a row.
    """
    of_batch = max(_batch_numbers(config, rows, tokens) for config in configs)
    return BASE_BYTES + math.ceil(_FLOAT_BYTES * (COPIES_OF_WEIGHTS * weights + of_batch))


def encoder_configs(model: Any) -> list[EncoderConfig]:
    """The shapes of a model's encoders; none of a network that has no such."""
    return list(getattr(model, "encoder_configs", {}).values())


def _batch_numbers(config: EncoderConfig, rows: int, tokens: int) -> float:
    """How many numbers a batch takes at once."""
    width = config.hidden_dim
    sizes = [config.layer_size(index) for index in range(config.num_layers)]
    of_tokens = OF_EMBEDDING * width + sum(HIDDEN_KEPT * width + INNER_KEPT * inner for _, inner in sizes)
    most_heads = max((heads for heads, _ in sizes), default=0)
    heads = sum(heads for heads, _ in sizes)
    kept, once = PAIRS_KEPT + (PAIRS_DROPPED if config.attention_dropout else 0), PAIRS_ONCE
    pairs = tokens**2
    if uses_blocks(tokens, tokens, config.max_length):
        if config.attention_window is not None:
            pairs = tokens * (3 * max(config.attention_window, SMALLEST_BLOCK) + config.attention_globals)
        else:
            pairs, kept, once = min(tokens, LARGEST_BLOCK) ** 2, 0, BLOCK_PAIRS_ONCE
    return rows * (tokens * of_tokens + pairs * (kept * heads + once * most_heads))


def available_bytes() -> int | None:
    """How much memory this process may still take; None where the system does not tell."""
    found = []
    try:
        lines = Path("/proc/meminfo").read_text(encoding="ascii").splitlines()
        found += [1024 * int(line.split()[1]) for line in lines if line.startswith("MemAvailable:")]
    except OSError:
        return None
    # A container may take less than the machine has.
    for most, taken in (
        ("/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory.current"),
        ("/sys/fs/cgroup/memory/memory.limit_in_bytes", "/sys/fs/cgroup/memory/memory.usage_in_bytes"),
    ):
        try:
            found.append(int(Path(most).read_text()) - int(Path(taken).read_text()))
        except (OSError, ValueError):  # none of this version, or "max"
            continue
    return max(0, min(found)) if found else None


def check_memory(
    configs: Sequence[EncoderConfig], weights: int, plans: Sequence[Any], available: int | None
) -> None:
    """Refuses to train where the largest batch cannot fit.

    Args:
        configs: Of the model's encoders.
        weights: Trained numbers of the model.
        plans: The batches of an epoch; each has `rows`, and `row_tokens` when padded.
        available: Bytes; None where nobody knows.

    Raises:
        InputError: It cannot.
    """
    if available is None or not plans or not configs:
        return
    sizes = {(len(plan.rows), plan.row_tokens) for plan in plans}
    needed, rows, tokens = max((estimate_bytes(configs, weights, *size), *size) for size in sizes)
    if needed <= available:
        return
    flag = "--text.max-length" if rows == 1 else "--train.batch-tokens"
    batch = f"a batch of {rows:,} row{'' if rows == 1 else 's'} of {tokens:,} tokens"
    raise InputError(
        f"{flag}: expected batches that fit into the {available:,} bytes of memory that are free, got"
        f" {batch}, which takes about {needed:,}"
    )
