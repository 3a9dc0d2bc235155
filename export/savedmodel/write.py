"""Writes a bundle as the next version of a served SavedModel, with warm-up requests and server settings."""

import logging
from pathlib import Path
from typing import Any

import tensorflow as tf

from export.names import CLASSIFY, PREDICT_WORDS, RANK
from export.savedmodel.endpoints import ClassifierEndpoints
from export.savedmodel.matcher_endpoints import MatcherEndpoints
from export.savedmodel.tagger_endpoints import TaggerEndpoints
from export.savedmodel.tf_serving_files import (
    ALLOWED_BATCH_SIZES,
    COMPOSE,
    EXPLAINING,
    RANKING,
    UNBATCHED,
    XLA_FLAG,
    add_missing,
    model_name,
    server_files,
)
from export.savedmodel.warmup import write_warmup
from kmha.bundle import manifest
from kmha.bundle.bundle import Bundle
from kmha.errors import InputError
from training.io.disk import atomic_write

logger = logging.getLogger("kmha")

_ENDPOINTS = {
    manifest.CLASSIFY: ClassifierEndpoints,
    manifest.MATCH: MatcherEndpoints,
    manifest.TAG: TaggerEndpoints,
}


def endpoints(bundle: Bundle, xla: bool = False) -> Any:
    """The endpoints of a classifier, a matcher or a tagger; `xla` adds a signature that XLA compiles."""
    return _ENDPOINTS[bundle.task](bundle, xla)


def next_version(folder: Path) -> int:
    """The smallest integer above every version in the folder, at least 1."""
    names = [path.name for path in folder.iterdir()] if folder.is_dir() else []
    return max((int(name) for name in names if name.isascii() and name.isdigit()), default=0) + 1


def write_savedmodel(bundle: Bundle, folder: Path, xla: bool = False) -> Path:
    """Writes the next version of a served model and the files that a server needs.

    The version is written under a temporary name and renamed: a server that watches the folder never loads an
    incomplete model.

    Args:
        bundle: A trained bundle.
        folder: The folder of versions. Existing settings files are retained.
        xla: Whether to add a signature that XLA compiles.

    Returns:
        The version's folder.

    Raises:
        InputError: The folder cannot be written to.
    """
    final = folder / str(next_version(folder))
    try:
        # The folder comes first: a new one is removed again after an error.
        with atomic_write(final) as partial:
            signatures = _save(bundle, partial, xla)
            unbatched = RANKING if RANK in signatures else EXPLAINING if PREDICT_WORDS in signatures else ""
            _add_server_files(folder, xla, unbatched)
    except tf.errors.OpError as error:
        reason = next(iter(str(error).splitlines()), type(error).__name__)
        raise InputError(f"{folder}: cannot write there, {reason}") from error
    return final


def _save(bundle: Bundle, folder: Path, xla: bool) -> dict[str, Any]:
    """Writes a version; returns its signatures by name."""
    module = endpoints(bundle, xla)
    signatures = module.signatures()
    tf.saved_model.save(module, str(folder), signatures=signatures)
    if CLASSIFY in signatures:
        # TensorFlow saves every signature for Predict calls. Classify calls need another method name.
        updater = tf.compat.v1.saved_model.signature_def_utils.MethodNameUpdater(str(folder))
        updater.replace_method_name(CLASSIFY, tf.compat.v1.saved_model.CLASSIFY_METHOD_NAME)
        updater.save()
        # The checksum of the file before that change; loaders do not need one.
        (folder / "fingerprint.pb").unlink(missing_ok=True)
    if not write_warmup(bundle, signatures, folder, ALLOWED_BATCH_SIZES):
        logger.info(
            "the run has no sample texts: no warm-up requests written, the first requests will be slow"
        )
    return signatures


def _add_server_files(folder: Path, xla: bool, unbatched: str) -> None:
    retained = add_missing(folder, server_files(model_name(folder), xla, unbatched))
    if retained:
        logger.info(f"not changed: {', '.join(retained)}")
    if COMPOSE not in retained:
        return
    path = folder / COMPOSE
    compose = path.read_text("utf-8", "replace")
    if xla and XLA_FLAG not in compose:
        logger.info(f"{path}: add {XLA_FLAG} to the command, the compiled signature needs it")
    if unbatched and f"{unbatched}:" not in compose:
        logger.info(f"{path}: add a server without batching, the signature {UNBATCHED[unbatched]} needs it")
