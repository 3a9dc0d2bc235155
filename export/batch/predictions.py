"""Predictions of a SavedModel's text signature for many texts, in the format of training.predict."""

import contextlib
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from export.batch.rows import PROBABILITY
from export.batch.shards import is_local
from export.checks.exportable import check_single_texts
from export.names import ABSTAINED, GIVEN, LABEL, LABELS, PROBABILITIES, TAGS
from export.predictors.artifacts import SAVEDMODEL, find_artifact
from kmha.bundle.manifest import MANIFEST
from kmha.errors import InputError

# Most bytes of a batch after padding. On two cores, with models of the default size, four times as many were not
# faster; 1,024 unsorted rows took 1.5 (Chinese titles) to 3 (AG News) times as long.
BATCH_BYTES = 8_192
# The model truncates longer texts: 512 tokens are rarely more bytes.
LONGEST_BYTES = 2_048

Signature = Callable[[Sequence[bytes]], Mapping[str, Any]]
"""Texts [B] to tensors: see `export.savedmodel.endpoints.ClassifierEndpoints.predict_text`."""


def predict(texts: Sequence[str], signature: Signature) -> list[dict[str, Any]]:
    """What `kmha.bundle.bundle.Bundle.predict` returns for each text, in their order.

    Batches have texts of similar length, since every text is padded to the longest of its batch.
    """
    encoded = [text.encode("utf-8") for text in texts]
    found: dict[int, dict[str, Any]] = {}
    for rows in batches_by_length([len(text) for text in encoded]):
        outputs = signature([encoded[row] for row in rows])
        found.update(zip(rows, _predictions_of(outputs), strict=True))
    return [found[row] for row in range(len(texts))]


def batches_by_length(lengths: Sequence[int]) -> Iterator[list[int]]:
    """Row numbers, each once, in groups of similar length in bytes, the shortest rows first.

    Rows times the longest row are at most `BATCH_BYTES`.
    """
    order = sorted(range(len(lengths)), key=lengths.__getitem__)
    group: list[int] = []
    for row in order:
        if group and (len(group) + 1) * min(max(lengths[row], 1), LONGEST_BYTES) > BATCH_BYTES:
            yield group
            group = []
        group.append(row)
    if group:
        yield group


def check_signature(signature: Signature, place: str) -> None:
    """Predicts for one text; raises InputError if the outputs are not those of an exported classifier."""
    try:
        outputs = signature([b""])
        is_tagger = TAGS in outputs
        if not is_tagger:
            next(_predictions_of(outputs))
    except Exception as error:  # TensorFlow raises many classes of errors for a wrong input.
        reason = next(iter(str(error).splitlines()), type(error).__name__)
        raise InputError(
            f"{place}: expected a SavedModel of texts that export.savedmodel wrote, got another"
            f" ({type(error).__name__}: {reason})"
        ) from error
    if is_tagger:
        raise InputError(
            f"{place}: expected a classifier, since export.batch takes single texts, got a tagger's SavedModel"
        )


def _predictions_of(outputs: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    probabilities = outputs[PROBABILITIES].numpy()
    if not len(probabilities):
        return
    labels = [name.decode("utf-8") for name in outputs[LABELS].numpy()[0]]
    if GIVEN not in outputs:
        abstained = outputs[ABSTAINED].numpy() if ABSTAINED in outputs else None
        for index, (row, best) in enumerate(zip(probabilities, outputs[LABEL].numpy(), strict=True)):
            yield {
                LABEL: best.decode("utf-8"),
                PROBABILITY: float(row.max()),
                **({} if abstained is None else {ABSTAINED: bool(abstained[index])}),
                PROBABILITIES: _named(labels, row),
            }
        return
    for row, decisions in zip(probabilities, outputs[GIVEN].numpy(), strict=True):
        order = np.argsort(-row, kind="stable")
        yield {LABELS: [labels[i] for i in order if decisions[i]], PROBABILITIES: _named(labels, row)}


def _named(labels: list[str], probabilities: np.ndarray) -> dict[str, float]:
    return {label: float(p) for label, p in zip(labels, probabilities, strict=True)}


@contextlib.contextmanager
def text_model(place: str) -> Iterator[str]:
    """The folder of a checked SavedModel of texts; the export of a run is removed when the block ends.

    The place is a run folder, a SavedModel, a folder of its versions (the newest is used), or a SavedModel in a store
    that TensorFlow reads (gs://). Raises InputError for another one.
    """
    from kmha.quiet import import_tensorflow

    import_tensorflow()
    from export.savedmodel.predictor import load_savedmodel
    from export.savedmodel.write import write_savedmodel

    with contextlib.ExitStack() as stack:
        if is_local(place) and (Path(place) / MANIFEST).exists():
            from kmha.bundle.bundle import Bundle

            check_single_texts(Path(place), "export.batch")
            bundle = Bundle.load(place)
            exported = stack.enter_context(tempfile.TemporaryDirectory(prefix="kmha-batch-"))
            folder = str(write_savedmodel(bundle, Path(exported)))
        else:
            folder = str(_version(Path(place))) if is_local(place) else place
        # As a string: a Path would change gs://.
        check_signature(load_savedmodel(folder), place)
        yield folder


def _version(path: Path) -> Path:
    try:
        found = find_artifact(path)
    except InputError as error:
        raise InputError(f"{path}: expected a run folder or a SavedModel, got neither") from error
    if found.format != SAVEDMODEL:
        raise InputError(f"{path}: expected a run folder or a SavedModel, got a {path.suffix} file")
    return found.path.absolute()
