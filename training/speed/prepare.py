"""What a benchmark was asked to measure, made ready for those who learn."""

import random
import sys
from pathlib import Path
from typing import Literal, NamedTuple

from kmha.errors import InputError
from training.config.config import DataSection
from training.data.sources import find_sources
from training.io.json_subprocess import has_package
from training.speed.workload import Work

Peer = Literal["keras_hub", "torch"]
Precision = Literal["float32", "bfloat16"]

_PACKAGES = {"keras_hub": ("keras_hub",), "torch": ("torch", "transformers")}
_VOCABULARY_SIZE = 16_000


class Rows(NamedTuple):
    """Texts with the ids of their labels, of which there are so many."""

    texts: list[str]
    labels: list[int]
    num_labels: int


def read_rows(data: Path | None, text_column: str, label_column: str, most: int, seed: int) -> Rows:
    """Draws rows of a file, or of the sample where there is none, in an order that depends on the seed only.

    Raises:
        InputError: The file or a row of it cannot be used, or it has one label only.
    """
    source = find_sources(DataSection(train=data))["train"]
    pairs = []
    for row in source.rows([text_column, label_column]):
        text, label = row.values[text_column], row.values[label_column]
        if isinstance(text, list) or isinstance(label, list):
            raise InputError(f"{row.place}: a text and its label expected, a list got")
        pairs.append((text, label))
    random.Random(seed).shuffle(pairs)
    pairs = pairs[:most]
    names = sorted({label for _, label in pairs})
    if len(names) < 2:
        raise InputError(f"{source.name}: rows of two labels or more expected, got {len(names)}")
    return Rows([text for text, _ in pairs], [names.index(label) for _, label in pairs], len(names))


def make_work(
    rows: Rows, sizes: dict[str, int], pretrained: str, max_length: int, batch_rows: int, folder: Path
) -> Work:
    """Finds the published BERT, or learns a vocabulary for a new one.

    Args:
        rows: To learn from.
        sizes: hidden_dim, num_layers, num_heads, intermediate_dim of a new one.
        pretrained: minilm, or a folder as Hugging Face lays it out; empty: a new one.
        max_length: Most tokens of a text.
        batch_rows: Rows of a batch.
        folder: For the vocabulary.

    Raises:
        InputError: Fewer rows than a batch has, or a published BERT that cannot be used.
    """
    if len(rows.texts) < batch_rows:
        raise InputError(f"--batch-rows: expected at most the {len(rows.texts)} rows, got {batch_rows}")
    vocabulary_path = folder / "vocab.txt"
    if pretrained:
        from kmha.pretrained.huggingface import read_huggingface
        from kmha.pretrained.installed import PACKAGES, installed_folder

        # Hugging Face's form is the one that all of them read.
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
        from kmha.text.vocabulary_training import train_vocabulary

        import_tensorflow()
        vocabulary, lower_case = train_vocabulary(rows.texts, "wordpiece", _VOCABULARY_SIZE), True
    vocabulary.write(vocabulary_path)
    return Work(
        rows.texts,
        rows.labels,
        str(vocabulary_path),
        lower_case,
        {"vocabulary_size": len(vocabulary), **sizes, "num_labels": rows.num_labels},
        pretrained,
        max_length,
        batch_rows,
    )


def lacks(peer: Peer, python: Path | None) -> str | None:
    """The package that a peer lacks, None where it has all.

    Args:
        peer: Who is to take turns.
        python: Of the environment that it lives in; None: this one.
    """
    where = sys.executable if python is None else str(python)
    return next((package for package in _PACKAGES[peer] if not has_package(package, where)), None)
