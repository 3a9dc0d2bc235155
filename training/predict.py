"""python -m training.predict RUN < texts.txt > predictions.jsonl

Reads texts from stdin, one per line, and prints one JSON object per line. A matcher reads pairs, text_a and text_b
separated by a tab; with --rank FILE it ranks the lines of the file for each text on stdin. A tagger splits texts into
words; with --words they are already split by spaces. A masked language model fills in each [MASK].
"""  # noqa: D415

import json
import re
import sys
import zipfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, BinaryIO

import tyro

from kmha.bundle.manifest import MASKED_LM, MATCH, MODEL_NAMES, TAG, read_manifest
from kmha.errors import InputError
from kmha.input_files import bounded_lines, open_input
from kmha.quiet import import_tensorflow
from training.cli.bounds import Range
from training.cli.parser import parse, run


@dataclass(frozen=True)
class PredictConfig:
    """Prints one prediction in JSON for each line of stdin, a text or a tab-separated pair."""

    run: Annotated[Path, tyro.conf.Positional, tyro.conf.arg(metavar="RUN")]
    """Run folder that training.fit wrote."""
    top: Annotated[int, Range(at_least=0)] = 0
    """Number of labels, candidates or [MASK] tokens to show, best first; 0: all, but five tokens for [MASK]."""
    rank: Path | None = None
    """File of candidates, one per line, that a matcher ranks for each text on stdin."""
    vectors: Path | None = None
    """Vectors of the candidates, written by training.embed with the same bi-encoder."""
    words: bool = False
    """For a tagger: the texts are already split into words, by spaces or tabs."""


def main(argv: Sequence[str] | None = None) -> int:
    """Runs the command; returns its exit status."""
    return run(lambda: _predict(parse(PredictConfig, argv, "python -m training.predict")))


def lines(stream: BinaryIO) -> Iterator[bytes]:
    """Yields lines without line ends, as bytes, so that invalid UTF-8 is accepted; InputError if one is too long."""
    name = "stdin" if stream is getattr(sys.stdin, "buffer", None) else getattr(stream, "name", "stdin")
    for line in bounded_lines(stream, name):
        yield line.rstrip(b"\r\n")


def pairs(stream: BinaryIO) -> Iterator[tuple[bytes, bytes]]:
    """Yields tab-separated pairs; raises InputError for a line without exactly one tab."""
    for place, line in enumerate(lines(stream), start=1):
        texts = line.split(b"\t")
        if len(texts) != 2:
            given = f"{len(texts) - 1} tabs" if len(texts) > 1 else "none"
            raise InputError(
                f"stdin:{place}: expected text_a and text_b with one tab between them, got {given}"
            )
        yield texts[0], texts[1]


def sentences(stream: BinaryIO) -> Iterator[list[bytes]]:
    """Yields the words of each line, split by spaces or tabs."""
    for line in lines(stream):
        yield [word for word in re.split(rb"[ \t]+", line) if word]


def _predict(config: PredictConfig) -> int:
    task = read_manifest(config.run)["task"]
    if config.rank is not None and task != MATCH:
        raise InputError(f"--rank: expected a run that matches pairs, got {MODEL_NAMES[task]}")
    if config.words and task != TAG:
        raise InputError(f"--words: expected a run that tags words, got {MODEL_NAMES[task]}")
    if config.top and task == TAG:
        raise InputError("--top: expected a run that classifies or matches texts, got a tagger")
    if config.vectors is not None and config.rank is None:
        raise InputError("--vectors: expected --rank with the texts of the vectors, got none")
    candidates = None if config.rank is None else _candidates(config.rank)
    vectors = None if config.vectors is None else _vectors(config.vectors)
    import_tensorflow()
    from kmha.bundle.bundle import Bundle
    from kmha.inference.mask_filler import SHOWN_TOKENS

    bundle = Bundle.load(config.run)
    predictions: Iterator[dict[str, Any]]
    if candidates is not None:
        predictions = _rankings(bundle, candidates, vectors, config.top)
    elif task == MASKED_LM:
        predictions = bundle.filler.predict_stream(lines(sys.stdin.buffer), config.top or SHOWN_TOKENS)
    else:
        read = pairs if task == MATCH else sentences if config.words else lines
        rows: Iterator[Any] = read(sys.stdin.buffer)
        predictions = (_shortened(prediction, config.top) for prediction in bundle.predict_stream(rows))
    for prediction in predictions:
        print(json.dumps(prediction, ensure_ascii=False, allow_nan=False))
    return 0


def _shortened(prediction: dict[str, Any], top: int) -> dict[str, Any]:
    if top and "probabilities" in prediction:
        ranked = sorted(prediction["probabilities"].items(), key=lambda item: -item[1])
        prediction["probabilities"] = dict(ranked[:top])
    return prediction


def _candidates(path: Path) -> list[bytes]:
    try:
        with open_input(path) as file:
            found = list(lines(file))
    except OSError as error:
        raise InputError(
            f"--rank {path}: expected a file of candidates, {error.strerror or error}"
        ) from error
    if not found:
        raise InputError(f"--rank {path}: expected a candidate or more, one a line, got an empty file")
    return found


def _vectors(path: Path) -> Any:
    import numpy as np

    expected = f"--vectors {path}: expected a file that training.embed wrote"
    try:
        with open_input(path) as file:
            vectors = np.load(file, allow_pickle=False)
    except (OSError, ValueError, EOFError, zipfile.BadZipFile) as error:
        reason = next(iter(str(error).splitlines()), type(error).__name__)
        raise InputError(f"{expected}, {reason}") from error
    if not isinstance(vectors, np.ndarray):
        raise InputError(f"{expected}, got an archive of several")
    return vectors


def _rankings(bundle: Any, candidates: list[bytes], vectors: Any, top: int) -> Iterator[dict[str, Any]]:
    """Yields {"query", "ranking": [{"line", "text", "score"}, best first]} for each text on stdin; lines from 1."""
    from kmha.inference.retrieval import Ranker

    ranker = Ranker(bundle, candidates, vectors)
    for query in lines(sys.stdin.buffer):
        ranking = [
            {"line": index + 1, "text": candidates[index].decode("utf-8", "replace"), "score": score}
            for index, score in ranker.rank(query, top)
        ]
        yield {"query": query.decode("utf-8", "replace"), "ranking": ranking}


if __name__ == "__main__":
    sys.exit(main())
