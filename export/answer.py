"""python -m export.answer ARTIFACT < texts.txt > probabilities.npy

Predicts with an exported model in its own runtime, one text a line: float32 [rows, labels] in NumPy's format. A matcher
takes pairs, text_a and text_b with a tab between them. A tagger takes sentences, with a space between two words:
float32 [words, tags + 2], the probabilities of all tags, that of the tag on the best path, and the tag's number.
"""  # noqa: D415

import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import tyro

from export.predictors.artifacts import find_artifact, load, serve_folder
from training.cli.parser import parse, run
from training.predict import lines, pairs, sentences


@dataclass(frozen=True)
class AnswerConfig:
    """Predicts with an exported model for texts, or pairs with a tab between them, one a line."""

    artifact: Annotated[Path, tyro.conf.Positional, tyro.conf.arg(metavar="ARTIFACT")]
    """A SavedModel or a folder of its versions, a .tflite or an .onnx file."""
    folder: Path | None = None
    """Read texts.jsonl (JSON strings or lists) from this folder and write predictions there, for export.verify."""


def main(argv: Sequence[str] | None = None) -> int:
    """Runs the command; returns its exit status."""
    return run(lambda: _predict(parse(AnswerConfig, argv, "python -m export.answer")))


def _predict(config: AnswerConfig) -> int:
    predictor = load(find_artifact(config.artifact))
    if config.folder is not None:
        serve_folder(predictor, config.folder)
        return 0
    import numpy as np

    is_tagger = getattr(predictor, "sentences", False)
    read = sentences if is_tagger else iter if predictor.num_texts == 1 else pairs
    rows: list[Any] = list(read(lines(sys.stdin.buffer)))
    np.save(sys.stdout.buffer, predictor.probabilities(rows), allow_pickle=False)
    return 0


if __name__ == "__main__":
    sys.exit(main())
