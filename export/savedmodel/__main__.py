"""python -m export.savedmodel RUN FOLDER

Writes a run as a SavedModel for TensorFlow Serving: FOLDER/<next version>/, and beside the versions the
settings of a server. docs/how-to/serving.md tells how to serve and ask it.
"""  # noqa: D415

import logging
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import tyro

from export.checks.exportable import check_exportable
from kmha.errors import InputError
from training.cli.parser import parse, run

logger = logging.getLogger("kmha")


@dataclass(frozen=True)
class SavedModelConfig:
    """Writes a run as a SavedModel for TensorFlow Serving."""

    run: Annotated[Path, tyro.conf.Positional]
    """Run folder that training.fit wrote."""
    out: Annotated[Path, tyro.conf.Positional]
    """Folder of the served model; a new version is added to it."""
    xla: bool = False
    """Adds a signature predict_ids_xla, compiled once for each batch size and length."""


def main(argv: Sequence[str] | None = None) -> int:
    """Runs the command; returns its exit status."""
    return run(lambda: _export(parse(SavedModelConfig, argv, "python -m export.savedmodel")))


def _export(config: SavedModelConfig) -> int:
    check_exportable(config.run)
    from kmha.quiet import import_tensorflow

    import_tensorflow()
    from kmha.bundle.bundle import Bundle

    print(write_savedmodel(Bundle.load(config.run), config.out, config.xla))
    return 0


def next_version(folder: Path) -> int:
    """The smallest integer above every version in the folder, at least 1."""
    names = [path.name for path in folder.iterdir()] if folder.is_dir() else []
    return max((int(name) for name in names if name.isascii() and name.isdigit()), default=0) + 1


def write_savedmodel(bundle, folder: Path, xla: bool = False) -> Path:
    """Writes the next version of a served model, and what a server wants beside it.

    Written beside and renamed: a server that watches the folder never sees half a model.

    Args:
        bundle: A trained bundle.
        folder: Where the versions stand. Files of settings that stand there are kept.
        xla: Whether to add a signature that XLA compiles.

    Returns:
        The version's folder.

    Raises:
        InputError: The folder cannot be written to.
    """
    import tensorflow as tf

    from training.io.atomic_write import atomic_write

    final = folder / str(next_version(folder))
    try:
        # The folder first: where it is new, it goes again after an error.
        with atomic_write(final) as beside:
            signatures = _save(bundle, beside, xla)
            _add_server_files(folder, xla, _unjoined(signatures))
    except tf.errors.OpError as error:
        reason = next(iter(str(error).splitlines()), type(error).__name__)
        raise InputError(f"{folder}: cannot write there, {reason}") from error
    return final


def _save(bundle, folder: Path, xla: bool) -> list[str]:
    """Writes a version; returns the names of its signatures."""
    import tensorflow as tf

    from export.savedmodel.classifier_endpoints import endpoints
    from export.savedmodel.endpoints import CLASSIFY
    from export.savedmodel.tf_serving_files import ALLOWED_BATCH_SIZES
    from export.savedmodel.warmup import write_warmup

    served = endpoints(bundle, xla)
    signatures = served.signatures()
    tf.saved_model.save(served, str(folder), signatures=signatures)
    if CLASSIFY in signatures:
        # Every signature is saved as one for Predict calls; the server takes Classify calls only at one named so.
        updater = tf.compat.v1.saved_model.signature_def_utils.MethodNameUpdater(str(folder))
        updater.replace_method_name(CLASSIFY, tf.compat.v1.saved_model.CLASSIFY_METHOD_NAME)
        updater.save()
        # The checksum of the file before that change; loaders do without one.
        (folder / "fingerprint.pb").unlink(missing_ok=True)
    if not write_warmup(bundle, signatures, folder, ALLOWED_BATCH_SIZES):
        logger.info(
            "the run has no sample texts: no warm-up requests written, so the first requests will be slow"
        )
    return list(signatures)


def _unjoined(signatures: Sequence[str]) -> str:
    """The server that joins no requests, if one is needed."""
    from export.savedmodel.matcher_endpoints import RANK
    from export.savedmodel.tagger_endpoints import PREDICT_WORDS
    from export.savedmodel.tf_serving_files import EXPLAINING, RANKING

    return RANKING if RANK in signatures else EXPLAINING if PREDICT_WORDS in signatures else ""


def _add_server_files(folder: Path, xla: bool, unjoined: str) -> None:
    from export.savedmodel.tf_serving_files import (
        COMPOSE,
        UNJOINED,
        XLA_FLAG,
        add_missing,
        model_name,
        server_files,
    )

    kept = add_missing(folder, server_files(model_name(folder), xla, unjoined))
    if kept:
        logger.info(f"kept as they were: {', '.join(kept)}")
    if COMPOSE not in kept:
        return
    compose = (folder / COMPOSE).read_text("utf-8", "replace")
    if xla and XLA_FLAG not in compose:
        logger.info(
            f"{folder / COMPOSE}: add {XLA_FLAG} to the command, without it the compiled signature fails"
        )
    if unjoined and f"{unjoined}:" not in compose:
        name = UNJOINED[unjoined]
        logger.info(
            f"{folder / COMPOSE}: add a server without batching, without it the signature {name} fails"
        )


def load_savedmodel(folder: Path | str, signature: str = "serving_default"):
    """A function of a written version.

    Args:
        folder: Of the version.
        signature: Its name; see `export.savedmodel.classifier_endpoints.endpoints`.

    Returns:
        A function of the signature's only input, or of its inputs by name, that returns a dictionary of tensors: for
        serving_default of a classifier of string [B], what `Endpoints.predict_text` returns.

    Raises:
        InputError: No SavedModel stands there, or one without the signature.
    """
    import tensorflow as tf
    import tensorflow_text  # noqa: F401  (registers the tokenizer's ops)

    try:
        loaded = tf.saved_model.load(str(folder))
    except OSError as error:
        raise InputError(f"{folder}: expected a SavedModel, got none") from error
    function = loaded.signatures.get(signature)
    if function is None:
        raise InputError(f"{folder}: expected a SavedModel with the signature {signature}, got one without")
    specs = function.structured_input_signature[1]

    def answer(*only, **named):
        # `loaded` must outlive the signature, which does not hold the variables itself.
        assert loaded is not None
        # A file does not keep the order of its inputs.
        if only and (len(only), len(specs)) != (1, 1):
            raise InputError(f"{folder}: {signature} wants {', '.join(sorted(specs))} by name, got without")
        given = dict(zip(specs, only, strict=True)) if only else named
        return function(**{name: tf.constant(value, specs[name].dtype) for name, value in given.items()})

    return answer


if __name__ == "__main__":
    sys.exit(main())
