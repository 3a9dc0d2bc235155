"""Tiny matchers of every form, and pairs for them."""

import functools

import numpy as np
import pytest

from tests.artifact_store import ExportedFiles
from tests.bundles import EDGE_CASES, PAIRS, TEXTS, make_pair_bundle
from tests.stages import with_stages

# Each form; one tokenizer and two; every target; symmetric or not; with a linear path and without.
KINDS = {
    "cross": {"linear": True},
    "two ways": {"granularities": ("wordpiece", "char"), "symmetric": True, "target": "graded"},
    "bi": {"form": "bi"},
    "joint": {"form": "joint", "labels": ("no", "perhaps", "yes"), "target": "classes"},
}
# One encoder for both texts and one for each; the others are in the second stage.
FIRST = ("cross", "bi")
every_kind = pytest.mark.parametrize("kind", with_stages(KINDS, FIRST))
LONG = 10_000
ROWS = [
    *PAIRS,
    *((text, text) for text in TEXTS[:2]),
    # The longest one is the second text only: it takes as much time as all others together.
    *((text, "old bread") for text in EDGE_CASES if len(text) < LONG),
    *(("old bread", text) for text in EDGE_CASES),
]


@functools.cache
def bundle_of(kind: str):
    """Returns a bundle that all tests share. Do not change it."""
    return make_pair_bundle(**KINDS[kind])


@functools.cache
def many_classes():
    """A matcher whose head has so many weights that converters quantize them."""
    return make_pair_bundle(labels=[f"class {number}" for number in range(24)], target="classes")


@functools.cache
def predictions_of(kind: str) -> np.ndarray:
    """The bundle's predictions for ROWS, float32 [R, C]."""
    return bundle_of(kind).probabilities(ROWS)


def written_by(main, suffix: str, *flags: str) -> ExportedFiles:
    """A file of each kind of matcher; `flags` are of the command `main`."""
    return ExportedFiles("pairs", suffix, bundle_of, main, lambda kind: flags)
