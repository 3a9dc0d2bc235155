"""Prepares the workload of a benchmark: rows, vocabulary and sizes."""

import random
import sys
from pathlib import Path
from typing import Literal, NamedTuple

from kmha.errors import InputError
from training.config.config import DataSection
from training.data.sources import find_sources
from training.io.json_subprocess import has_package
from training.io.tables import DEFAULT_FORMAT, TableFormat
from training.speed.workload import Workload

Peer = Literal["keras_hub", "torch"]
Precision = Literal["float32", "bfloat16"]

_PACKAGES = {"keras_hub": ("keras_hub",), "torch": ("torch", "transformers")}
_VOCABULARY_SIZE = 16_000


class Rows(NamedTuple):
    """Texts, ids of their labels, and the number of labels."""

    texts: list[str]
    labels: list[int]
    num_labels: int


def read_rows(
    data: Path | None,
    text_column: str,
    label_column: str,
    most: int,
    seed: int,
    form: TableFormat = DEFAULT_FORMAT,
) -> Rows:
    """Draws rows of a file, else of the sample, by the seed only; InputError if they are invalid or have one label."""
    source = find_sources(DataSection(train=data, delimiter=form.delimiter, encoding=form.encoding))["train"]
    pairs = []
    for row in source.rows([text_column, label_column]):
        text, label = row.values[text_column], row.values[label_column]
        if isinstance(text, list) or isinstance(label, list):
            raise InputError(f"{row.place}: expected a text and its label, got a list")
        pairs.append((text, label))
    random.Random(seed).shuffle(pairs)
    pairs = pairs[:most]
    names = sorted({label for _, label in pairs})
    if len(names) < 2:
        raise InputError(f"{source.name}: expected rows of two labels or more, got {len(names)}")
    return Rows([text for text, _ in pairs], [names.index(label) for _, label in pairs], len(names))


def make_workload(
    rows: Rows, sizes: dict[str, int], pretrained: str, max_length: int, batch_rows: int, folder: Path
) -> Workload:
    """Reads a pretrained BERT, or trains a vocabulary for a new model; writes the vocabulary to the folder.

    `sizes` are hidden_dim, num_layers, num_heads, intermediate_dim of a new model. `pretrained` is minilm, or a folder
    in Hugging Face format; empty: a new model. Raises InputError if there are fewer rows than in a batch, or the
    pretrained BERT is invalid.
    """
    if len(rows.texts) < batch_rows:
        raise InputError(f"--batch-rows: expected at most the {len(rows.texts)} rows, got {batch_rows}")
    vocabulary_path = folder / "vocab.txt"
    if pretrained:
        from kmha.pretrained.huggingface import read_huggingface
        from kmha.pretrained.sources import PACKAGES, installed_folder

        # All trainers read Hugging Face's format.
        folder_of = installed_folder(pretrained) if pretrained in PACKAGES else Path(pretrained)
        checkpoint = read_huggingface(folder_of)
        if checkpoint.config.max_length < max_length:
            raise InputError(
                f"--max-length: expected at most {checkpoint.config.max_length} for {pretrained}, got {max_length}"
            )
        sizes = {name: getattr(checkpoint.config, name) for name in sizes}
        vocabulary, lower_case = checkpoint.vocabulary, checkpoint.lower_case
        pretrained = str(folder_of)
    else:
        from kmha.quiet import import_tensorflow

        import_tensorflow()
        from kmha.text.vocabulary_training import train_vocabulary

        vocabulary, lower_case = train_vocabulary(rows.texts, "wordpiece", _VOCABULARY_SIZE), True
    vocabulary.write(vocabulary_path)
    return Workload(
        rows.texts,
        rows.labels,
        str(vocabulary_path),
        lower_case,
        {"vocabulary_size": len(vocabulary), **sizes, "num_labels": rows.num_labels},
        pretrained,
        max_length,
        batch_rows,
    )


def missing_package(peer: Peer, python: Path | None) -> str | None:
    """The first package of a peer that is not installed, in this environment or in that of another Python."""
    where = sys.executable if python is None else str(python)
    return next((package for package in _PACKAGES[peer] if not has_package(package, where)), None)
