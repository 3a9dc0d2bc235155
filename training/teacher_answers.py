"""A teacher's answers to many rows: computed once before the epochs, kept on disk, found again if nothing changed."""

import hashlib
import json
import os
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from tqdm import tqdm

from kmha.tagging import put_scores
from training.cli import say
from training.inputs import Source
from training.sentences import SentenceSource
from training.shares import in_shares
from training.traced_once import traced_once

BUCKETS = 16
BATCH_TOKENS, MOST_ROWS = 8192, 512


def kept_answers(
    folder: Path, facts: dict[str, Any], shape: tuple[int, int], write: Callable[[Path], None]
) -> np.ndarray:
    """A table of answers on disk: the one in a folder, or where that has none of these facts, a new one.

    Args:
        folder: Made where it does not exist. The name of a table follows from its facts.
        facts: All that the answers depend on, JSON values.
        shape: Of the table, which is float32.
        write: Writes the table to a path.

    Returns:
        float32 `shape`, mapped from the file: read only.
    """
    folder.mkdir(parents=True, exist_ok=True)
    name = hashlib.sha256(json.dumps(facts, sort_keys=True).encode("utf-8")).hexdigest()
    path = folder / f"{name[:32]}.npy"
    found = _opened(path, shape)
    if found is not None:
        say(f"teacher: answers to {shape[0]:,} rows found in {path}")
        return found
    beside = path.with_name(f"{path.name}.{os.getpid()}.partial")
    try:
        write(beside)
        beside.replace(path)
    finally:
        beside.unlink(missing_ok=True)
    found = _opened(path, shape)
    if found is None:
        raise ValueError(f"{path}: wanted a table {shape}, something else was written")
    return found


def _opened(path: Path, shape: tuple[int, int]) -> np.ndarray | None:
    """The table of a file; None where it is missing, cut short or of another shape."""
    try:
        table = np.load(path, mmap_mode="r", allow_pickle=False)
    except (OSError, ValueError, EOFError):
        return None
    return table if table.shape == shape and table.dtype == np.float32 else None


def write_answers(model: Any, source: Source, path: Path) -> None:
    """Writes what a model gives of each row of a source, of sentences of each word: float32 [R, C].

    Rows of similar length go together. A bar shows how far it is where there is a terminal; a line tells the speed.

    Args:
        model: A built model.
        source: The rows.
        path: A file in NumPy's format, written a batch at a time.
    """
    logits = traced_once(lambda features: in_shares(lambda part: model(part, training=False), features))
    plans = source.plans(source.buckets([], BUCKETS), BATCH_TOKENS, MOST_ROWS, rng=None)
    table = np.lib.format.open_memmap(
        path, "w+", np.dtype(np.float32), (answer_rows(source), model.num_labels)
    )
    started, total = time.monotonic(), int(source.lengths.sum())
    with tqdm(
        total=total,
        desc="teacher",
        unit="token",
        unit_scale=True,
        file=sys.stderr,
        dynamic_ncols=True,
        disable=not sys.stderr.isatty(),
    ) as bar:
        for plan, batch in zip(plans, source.dataset(plans), strict=True):
            found = logits(batch["features"]).numpy()
            if isinstance(source, SentenceSource):
                put_scores(table, found, source.begins[plan.rows], source.counts[plan.rows])
            else:
                table[plan.rows] = found[: len(plan.rows)]
            bar.update(int(source.lengths[plan.rows].sum()))
    table.flush()
    seconds = time.monotonic() - started
    say(f"teacher: {len(source.rows):,} rows answered in {seconds:.1f} s ({total / seconds:,.0f} tokens/s)")


def answer_rows(source: Source) -> int:
    """How many answers there are to a source: of sentences one a word, else one a row."""
    return int(source.counts.sum()) if isinstance(source, SentenceSource) else len(source.rows)
