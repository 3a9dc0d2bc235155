"""python -m training.embed RUN < texts.txt > vectors.npy

Reads texts from stdin, one per line, and writes their vectors: float32 [rows, D] of length 1 as .npy, or with
--format jsonl one JSON object per line. RUN is a run of any task (except matchers in joint form) or a pretrained
checkpoint. With a bi-encoder, `training.predict RUN --rank texts.txt --vectors vectors.npy` ranks the texts by these
vectors.
"""  # noqa: D415

import json
import logging
import shutil
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, BinaryIO, Literal

import tyro

from kmha.bundle.manifest import MANIFEST, MATCH, MODEL_NAMES, read_manifest
from kmha.errors import InputError
from kmha.quiet import import_tensorflow
from training.cli.bounds import Range
from training.cli.parser import parse, run
from training.io.tables import TEXT
from training.predict import saved_columns, stdin_lines

logger = logging.getLogger("kmha")

PROGRESS_SECONDS = 10.0
SHORTEST = 3
# As in the sentence-transformers models with MiniLM's architecture.
DEFAULT_LENGTH = 256


@dataclass(frozen=True)
class EmbedConfig:
    """Computes the vectors of texts, one per line on stdin; writes them to stdout."""

    run: Annotated[str, tyro.conf.Positional, tyro.conf.arg(metavar="RUN")]
    """Run folder that training.fit wrote, or a pretrained checkpoint: minilm or a Hugging Face folder."""
    format: Literal["npy", "jsonl"] = "npy"
    """npy: one float32 array; jsonl: one {"text": …, "vector": […]} per line, written immediately."""
    side: Literal["a", "b"] = "b"
    """For a matcher: a for queries, b for documents; no effect if both share their weights."""
    max_length: Annotated[int, Range(at_least=0)] = 0
    """For a checkpoint: maximum tokens of a text, including special tokens; 0: 256, or its positions if fewer."""


def main(argv: Sequence[str] | None = None) -> int:
    """Runs the command; returns its exit status."""
    return run(lambda: _embed(parse(EmbedConfig, argv, "python -m training.embed")))


def _embed(config: EmbedConfig) -> int:
    load, columns = _found(config)
    import_tensorflow()
    from kmha.inference.retrieval import TextVectors

    vectors = TextVectors(load(), config.side)
    chunks = _logged(vectors.stream(stdin_lines(columns, "give its texts alone")))
    if config.format == "jsonl":
        _write_jsonl(chunks)
    else:
        _write_npy(chunks, vectors.dim, sys.stdout.buffer)
    return 0


def _found(config: EmbedConfig) -> tuple[Callable[[], Any], list[str]]:
    """Checks the flags; returns a function that loads the model, and the columns of its texts in a table.

    Does not import TensorFlow.
    """
    folder = Path(config.run)
    if not (folder / MANIFEST).is_file():
        return _found_checkpoint(config), [TEXT]
    manifest = read_manifest(folder)
    task = manifest["task"]
    if config.side != "b" and task != MATCH:
        raise InputError(f"--side: expected a matcher, got {MODEL_NAMES[task]}")
    if config.max_length:
        raise InputError(
            f"--max-length: expected a published checkpoint, got {MODEL_NAMES[task]} of its own length"
        )

    def load() -> Any:
        from kmha.bundle.bundle import Bundle

        return Bundle.load(folder)

    return load, saved_columns(manifest)


def _found_checkpoint(config: EmbedConfig) -> Callable[[], Any]:
    from kmha.pretrained.sources import find_checkpoint

    checkpoint = find_checkpoint(config.run)
    if config.side != "b":
        raise InputError("--side: expected a matcher, got a published checkpoint")
    positions, length = checkpoint.config.max_length, config.max_length
    if length and not SHORTEST <= length <= positions:
        raise InputError(
            f"--max-length: expected {SHORTEST} to the {positions} positions of {config.run}, got {length}"
        )

    def load() -> Any:
        from kmha.pretrained.weights import load_text_encoder

        return load_text_encoder(checkpoint, length or min(DEFAULT_LENGTH, positions))

    return load


def _logged(chunks: Iterator[tuple[list[Any], Any]]) -> Iterator[tuple[list[Any], Any]]:
    """Yields the same chunks; logs the number of texts regularly and at the end."""
    done, started = 0, time.monotonic()
    last_log = started
    for texts, vectors in chunks:
        yield texts, vectors
        done += len(texts)
        if time.monotonic() - last_log >= PROGRESS_SECONDS:
            last_log = time.monotonic()
            logger.info(f"{done:,} texts, {done / (last_log - started):,.0f} a second")
    seconds = max(time.monotonic() - started, 1e-9)
    logger.info(f"{done:,} texts in {seconds:.1f} s, {done / seconds:,.0f} a second")


def _write_jsonl(chunks: Iterator[tuple[list[Any], Any]]) -> None:
    """Writes one JSON object per text; numbers have the fewest digits that identify a float32."""
    for texts, vectors in chunks:
        for text, vector in zip(texts, vectors, strict=True):
            shown = json.dumps(text.decode("utf-8", "replace"), ensure_ascii=False, allow_nan=False)
            print(f'{{"text": {shown}, "vector": [{", ".join(vector.astype(str))}]}}')


def _write_npy(chunks: Iterator[tuple[list[Any], Any]], dim: int, out: BinaryIO) -> None:
    """Writes a .npy file; buffers rows in a temporary file, because the header contains their number."""
    import numpy as np

    rows = 0
    with tempfile.TemporaryFile(prefix="kmha-") as file:
        for texts, vectors in chunks:
            file.write(np.ascontiguousarray(vectors, "<f4").data)
            rows += len(texts)
        header = {"descr": "<f4", "fortran_order": False, "shape": (rows, dim)}
        np.lib.format.write_array_header_1_0(out, header)
        file.seek(0)
        shutil.copyfileobj(file, out, 1 << 20)


if __name__ == "__main__":
    sys.exit(main())
