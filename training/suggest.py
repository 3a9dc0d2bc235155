"""python -m training.suggest RUN --texts pool.txt --count 50 > next.csv

Prints the unlabeled texts whose labels would help the classifier in RUN most, as CSV with an empty label column. Fill
it in, append the rows to the training file and fit again.
"""  # noqa: D415

import logging
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import numpy as np
import tyro

from kmha.bundle.manifest import CLASSIFY, MODEL_NAMES, read_manifest
from kmha.errors import InputError
from training.cli.bounds import Count, Range
from training.cli.parser import parse, run
from training.io.examples import Columns, FormatFlags, Subset
from training.io.tables import table_writer

logger = logging.getLogger("kmha")


@dataclass(frozen=True, kw_only=True)
class SuggestConfig(FormatFlags):
    """Prints the unlabeled texts that are most worth labeling next, as CSV."""

    run: Annotated[Path, tyro.conf.Positional, tyro.conf.arg(metavar="RUN")]
    """Run folder of a classifier that training.fit wrote."""
    texts: Path
    """Texts without labels: .txt with one text per line, or a table with the text column of the training rows."""
    count: Count = 50
    """Number of texts to print."""
    labeled: Path | None = None
    """Table or .txt of texts that have labels already; they are left out."""
    seed: Annotated[int, Range(at_least=0, below=2**32)] = 0
    """Random seed of the selection."""


def main(argv: Sequence[str] | None = None) -> int:
    """Runs the command; returns its exit status."""
    return run(lambda: _suggest(parse(SuggestConfig, argv, "python -m training.suggest")))


def _suggest(config: SuggestConfig) -> int:
    manifest = read_manifest(config.run)
    if manifest["task"] != CLASSIFY:
        raise InputError(f"{config.run}: expected a classifier, got {MODEL_NAMES[manifest['task']]}")
    from training.data.sources import read_unlabeled, unseen, without_copies

    saved = Columns.saved_names(manifest)
    columns = Columns(saved.get("text") or "text", saved.get("label") or "label")
    with tempfile.TemporaryDirectory(prefix="kmha-") as scratch:
        pool = read_unlabeled(config.texts, CLASSIFY, columns, Path(scratch) / "pool", config.form)
        known = []
        if config.labeled is not None:
            labeled = read_unlabeled(
                config.labeled, CLASSIFY, columns, Path(scratch) / "labeled", config.form
            )
            known.append(Subset(labeled, np.arange(len(labeled))))
        rows = unseen(pool, known) if known else np.arange(len(pool))
        texts = [text for text in pool.read_texts(without_copies(pool, rows)) if text.strip()]
        if not texts:
            raise InputError(f"{config.texts}: expected texts without labels, got none")
    selected = _select(config, texts)
    writer = table_writer(sys.stdout, config.form.character or ",")
    writer.writerow([columns.text, columns.label])
    writer.writerows((text, "") for text in selected)
    logger.info(f"{len(selected):,} of {len(texts):,} texts")
    return 0


def _select(config: SuggestConfig, texts: list[str]) -> list[str]:
    """The selected texts, the most useful first."""
    from kmha.quiet import import_tensorflow

    import_tensorflow()
    from kmha.bundle.bundle import Bundle
    from kmha.inference.retrieval import TextVectors
    from training.fewshot.suggestion import select_texts

    bundle = Bundle.load(config.run)
    probabilities, vectors = bundle.probabilities(texts), TextVectors(bundle)(texts)
    rows = select_texts(probabilities, vectors, config.count, config.seed, bundle.thresholds)
    return [texts[row] for row in rows.tolist()]


if __name__ == "__main__":
    sys.exit(main())
