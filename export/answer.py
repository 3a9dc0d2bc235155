"""python -m export.answer ARTEFACT < texts.txt > probabilities.npy

Answers texts, one a line, with an exported model and its own runtime: float32 [rows, labels] in NumPy's format. A
matcher answers pairs, text_a and text_b with a tab between them. A tagger answers sentences, a space between two
words: float32 [words, tags + 2], the probabilities of all tags, that of the tag on the best path, and its number.
"""  # noqa: D415

import json
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import tyro

from export.predictors.artefacts import recognise
from export.predictors.exchange import ERRORS, FACTS, IDS, LAYERS, PROBABILITIES, TEXTS, VECTORS, read_texts
from export.predictors.protocol import load
from training.cli.parser import parse, run
from training.predict import lines, pairs, sentences


@dataclass(frozen=True)
class AnswerConfig:
    """Answers texts, or pairs with a tab between them, one a line, with an exported model; NumPy's format on stdout."""

    artefact: Annotated[Path, tyro.conf.Positional, tyro.conf.arg(metavar="ARTEFACT")]
    """A SavedModel or a folder of its versions, a .tflite or an .onnx file."""
    folder: Path | None = None
    """Read texts.jsonl (JSON strings, or lists of them) and write the answers there, as export.verify asks."""


def main(argv: Sequence[str] | None = None) -> int:
    """Runs the command; returns its exit status."""
    return run(lambda: _answer(parse(AnswerConfig, argv, "python -m export.answer")))


def _answer(config: AnswerConfig) -> int:
    artefact = recognise(config.artefact)
    import numpy as np

    predictor = load(artefact)
    if config.folder is None:
        read = sentences if _tags(predictor) else lines if predictor.num_texts == 1 else pairs
        rows: list[Any] = list(read(sys.stdin.buffer))
        np.save(sys.stdout.buffer, predictor.probabilities(rows), allow_pickle=False)
    elif (config.folder / LAYERS).exists():
        _write_errors(predictor, config.folder)
    else:
        _write_answers(predictor, config.folder)
    return 0


def _tags(predictor) -> bool:
    return getattr(predictor, "sentences", False)


def _write_answers(predictor, folder: Path) -> None:
    import numpy as np

    texts = read_texts(folder / TEXTS, _tags(predictor))
    np.save(folder / PROBABILITIES, predictor.probabilities(texts), allow_pickle=False)
    (folder / IDS).write_text(json.dumps(predictor.token_ids(texts)))
    (folder / FACTS).write_text(json.dumps(predictor.facts()))
    if hasattr(predictor, "vectors"):
        np.savez(folder / VECTORS, **predictor.vectors(texts))


def _write_errors(predictor, folder: Path) -> None:
    """How far each layer of layers.npz is from the nearest tensor of the artefact."""
    import numpy as np

    from export.predictors.nearest_tensor import nearest_errors

    with np.load(folder / LAYERS, allow_pickle=False) as stored:
        layers = {name: stored[name] for name in stored.files}
    texts = read_texts(folder / TEXTS, _tags(predictor))
    errors = nearest_errors(layers, predictor.tensors(texts))
    (folder / ERRORS).write_text(json.dumps(errors))


if __name__ == "__main__":
    sys.exit(main())
