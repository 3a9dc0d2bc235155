"""Rows of a `tensorflow-datasets` data set, in the format of `training.io.tables`."""

import importlib.util
import logging
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from kmha.errors import InputError
from training.io.tables import Row

_logger = logging.getLogger(__name__)


def tfds_rows(name: str, split: str, columns: Sequence[str], data_dir: Path | None = None) -> Iterator[Row]:
    """Streams one split of a data set in its fixed order, one row per example.

    Downloads and prepares the data set if necessary. Bytes become text, class ids their names, other numbers text. A
    sequence of these becomes a list. `Row.place` is name, split and number from 1: `ag_news_subset:train:17`.

    Args:
        name: Name for `tfds.load`, for example `ag_news_subset` or `glue/sst2`.
        split: Split for `tfds.load`, for example `train` or `train[:10%]`.
        columns: Names of the features to keep.
        data_dir: Folder of the data sets; None for the default of tfds.

    Raises:
        InputError: The package, data set, split or feature is missing, the download fails, or a feature has another
            type.
    """
    if importlib.util.find_spec("tensorflow_datasets") is None:
        raise InputError(
            f"tfds data set {name}: expected the package tensorflow-datasets, got none; install it with "
            "pip install 'kmha[tfds]'"
        )
    import tensorflow_datasets as tfds

    builder = _prepared_builder(tfds, name, data_dir)
    features = builder.info.features
    known = list(features) if isinstance(features, tfds.features.FeaturesDict) else []
    for column in columns:
        if column not in known:
            raise InputError(f"{name}: expected feature {column!r}, got features {', '.join(known)}")
    try:
        dataset = builder.as_dataset(split=split, shuffle_files=False)
    except (ValueError, KeyError):
        given = ", ".join(builder.info.splits) or "(none)"
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
