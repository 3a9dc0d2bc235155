"""Tiny matchers of every form, and pairs for them."""

import functools
from pathlib import Path

import numpy as np

from tests.artifact_store import stored
from tests.bundles import EDGE_CASES, PAIRS, TEXTS, make_pair_bundle
from tests.command_runs import call

# Each form; one tokenizer and two; every target; symmetric or not.
KINDS = {
    "cross": {},
    "two ways": {"granularities": ("wordpiece", "char"), "symmetric": True, "target": "graded"},
    "bi": {"form": "bi"},
    "joint": {"form": "joint", "labels": ("no", "perhaps", "yes"), "target": "classes"},
}
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


def written_by(main, suffix: str, *flags: str) -> dict[str, Path]:
    """A file of each kind of matcher, as an export's command writes it. Tests only read them."""

    def export(folder: Path) -> None:
        for index, kind in enumerate(KINDS):
            bundle_of(kind).save(folder / f"run_{index}")
            path = folder / f"{index}{suffix}"
            outcome = call(main, folder / f"run_{index}", path, *flags)
            assert (outcome.status, outcome.out) == (0, f"{path}\n"), outcome.err

    folder, _ = stored(f"pairs{suffix}", export)
    return {kind: folder / f"{index}{suffix}" for index, kind in enumerate(KINDS)}
