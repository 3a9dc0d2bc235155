"""Bundles of every kind to prune, selections of their parts, and bundles with blocks of different sizes."""

from collections.abc import Callable
from typing import Any

import numpy as np
import tensorflow as tf

from kmha.bundle.manifest import MATCH, TAG
from kmha.text.words import Ragged
from tests.bundles import PAIRS, SENTENCES, TAGGERS, TEXTS, make_bundle, make_pair_bundle, make_tagger_bundle
from training.pruning.importance import prunable_groups

TWO_BLOCKS: dict[str, Any] = {"num_layers": 2, "num_heads": 4}
# Heads and feed-forward rows of two blocks.
SIZES = ((3, 9), (1, 24))


# Functions that make a new bundle of each kind.
KINDS: dict[str, Callable[[], Any]] = {
    "one label": lambda: make_bundle(**TWO_BLOCKS, positions="rotary", norm="post", head_dim=6),
    "own encoders": lambda: make_pair_bundle(share_weights=False, rounds=2),
    "two ways": lambda: make_pair_bundle(("wordpiece", "char"), symmetric=True, target="graded"),
    "joint": lambda: make_pair_bundle(form="joint", symmetric=True),
    "tags": lambda: make_tagger_bundle(**TAGGERS["spelt"], num_heads=4),
}


def features_of(bundle) -> dict[str, Any]:
    """The features of two rows."""
    if bundle.task == MATCH:
        columns = zip(*PAIRS[:2], strict=True)
        return bundle.preprocessor.pad(bundle.preprocessor.encode(*map(list, columns)))
    if bundle.task == TAG:
        words = [sentence.split() for sentence in SENTENCES[:2]]
        flat = [word for sentence in words for word in sentence]
        tokens = bundle.preprocessor.encode(Ragged.from_row_lengths(tf.constant(flat), list(map(len, words))))
        return bundle.preprocessor.pad(bundle.preprocessor.select_windows(tokens, [0, 1]))
    return bundle.preprocessor(list(TEXTS[:2]))


def uneven_bundle(**encoder):
    """A classifier whose blocks differ, as after pruning."""
    return make_bundle(**TWO_BLOCKS, layer_sizes=SIZES, **encoder)


def uneven_pair_bundle(**model):
    """A matcher whose round of cross-attention is smaller than its block."""
    sized = {"layer_sizes": ((2, 9),), "round_sizes": ((1, 7),)}
    return make_pair_bundle(encoder=sized, **model)


def random_selection(model, seed: int = 0) -> tuple[list, list]:
    """Selects random heads and feed-forward rows to retain, in each block of each group."""
    rng = np.random.default_rng(seed)

    def draw(count: int, size: int) -> np.ndarray:
        return np.sort(rng.choice(count, size, replace=False))

    heads, rows = [], []
    for number, group in enumerate(prunable_groups(model)):
        counts = (1 + number % group.blocks[0].heads, 5 + number)
        counts = (min(counts[0], group.blocks[0].heads), counts[1])
        heads.append([draw(block.heads, counts[0]) for block in group.blocks])
        rows.append([draw(block.rows, counts[1]) for block in group.blocks])
    return heads, rows


def zero(model, heads, rows) -> None:
    """Sets the heads and rows that are not retained to zero."""
    for group, of_heads, of_rows in zip(prunable_groups(model), heads, rows, strict=True):
        for block, its_heads, its_rows in zip(group.blocks, of_heads, of_rows, strict=True):
            gates = np.repeat(np.isin(np.arange(block.heads), its_heads), block.head_size)
            block.output_kernel.assign(block.output_kernel.numpy() * gates[:, None])
            gates = np.isin(np.arange(block.rows), its_rows)
            block.contract_kernel.assign(block.contract_kernel.numpy() * gates[:, None])
