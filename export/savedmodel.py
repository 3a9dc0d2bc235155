"""python -m export.savedmodel RUN FOLDER

Writes a run as a SavedModel for TensorFlow Serving: FOLDER/<next version>/, strings in, labels and
probabilities out.
"""  # noqa: D415

import shutil
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import tyro

from kmha.errors import InputError
from training.cli import parse, run


@dataclass(frozen=True)
class SavedModelConfig:
    """Writes a run as a SavedModel for TensorFlow Serving."""

    run: Annotated[Path, tyro.conf.Positional]
    """Run folder that training.fit wrote."""
    out: Annotated[Path, tyro.conf.Positional]
    """Folder of the served model; a new version is added to it."""


def main(argv: Sequence[str] | None = None) -> int:
    """Runs the command; returns its exit status."""
    return run(lambda: _export(parse(SavedModelConfig, argv, "python -m export.savedmodel")))


def _export(config: SavedModelConfig) -> int:
    from kmha.quiet import import_tensorflow

    import_tensorflow()
    from kmha.bundle import Bundle

    print(write_savedmodel(Bundle.load(config.run), config.out))
    return 0


def next_version(folder: Path) -> int:
    """The smallest integer above every version in the folder, at least 1."""
    names = [path.name for path in folder.iterdir()] if folder.is_dir() else []
    return max((int(name) for name in names if name.isascii() and name.isdigit()), default=0) + 1


def write_savedmodel(bundle, folder: Path) -> Path:
    """Writes the next version of a served model.

    Written beside and renamed: a server that watches the folder never sees half a model.

    Args:
        bundle: A trained bundle.
        folder: Where the versions stand.

    Returns:
        The version's folder.

    Raises:
        InputError: The folder cannot be written to.
    """
    import tensorflow as tf

    from export.serving import Endpoints

    is_new = not folder.exists()
    try:
        folder.mkdir(parents=True, exist_ok=True)
        final = folder / str(next_version(folder))
        beside = folder / f"{final.name}.partial"
        shutil.rmtree(beside, ignore_errors=True)
        try:
            endpoints = Endpoints(bundle)
            tf.saved_model.save(
                endpoints, str(beside), signatures={"serving_default": endpoints.text_signature()}
            )
            beside.rename(final)
        finally:
            shutil.rmtree(beside, ignore_errors=True)
            if is_new and not any(folder.iterdir()):
                folder.rmdir()
    except (OSError, tf.errors.OpError) as error:
        reason = getattr(error, "strerror", None) or next(iter(str(error).splitlines()), type(error).__name__)
        raise InputError(f"{folder}: cannot write there, {reason}") from error
    return final


def load_savedmodel(folder: Path | str):
    """The function of a written version: string [B] to the dictionary that `Endpoints.predict_text` returns.

    Raises:
        InputError: No SavedModel stands there.
    """
    import tensorflow as tf
    import tensorflow_text  # noqa: F401  (registers the tokenizer's ops)

    try:
        loaded = tf.saved_model.load(str(folder))
    except OSError as error:
        raise InputError(f"{folder}: wanted a SavedModel, given none") from error
    signature = loaded.signatures.get("serving_default")
    if signature is None:
        raise InputError(
            f"{folder}: wanted a SavedModel with the signature serving_default, given one without"
        )

    def answer(texts):
        # `loaded` must outlive the signature, which does not hold the variables itself.
        assert loaded is not None
        return signature(text=tf.constant(texts, tf.string))

    return answer


if __name__ == "__main__":
    sys.exit(main())
