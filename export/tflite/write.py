"""Writes a bundle as a TFLite model with the files that a device needs, after checking the model's predictions."""

import contextlib
import logging
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from export.device_files.files import LABELS, VOCABULARY, atomic_device_files, device_files
from export.graph.embedding import check_embeds
from export.graph.model_function import check_attention
from export.tflite import metadata
from export.tflite.check import check_ops, check_predictions
from export.tflite.convert import Quantize, convert
from kmha.bundle.bundle import Bundle
from training.io.disk import atomic_write

logger = logging.getLogger("kmha")


def write_tflite(
    bundle: Bundle,
    final: Path,
    lengths: Sequence[int | None],
    quantize: Quantize = "none",
    with_attention: bool = False,
    overwrite: bool = False,
    with_vectors: bool = False,
) -> float:
    """Writes a bundle as a TFLite model, and the files that a device needs next to it.

    Args:
        bundle: A trained bundle.
        final: The file to write.
        lengths: Tokens of each signature; None for any number.
        quantize: As in `export.tflite.convert.convert`.
        with_attention: Whether to return the attention weights.
        overwrite: Whether to replace existing files.
        with_vectors: Whether to add signatures of vectors.

    Returns:
        The largest difference of a probability, in float32 also of a vector's numbers, on the bundle's sample.

    Raises:
        InputError: A file exists or cannot be written, or int8 has no sample.
        CheckError: The model has an op that is not built in, returns NaN or infinity, or in float32 other predictions.
    """
    if with_vectors:
        check_embeds(bundle)
    if with_attention:
        check_attention(bundle)
    with atomic_device_files(bundle, final, overwrite) as path:
        content = convert(bundle, lengths, quantize, with_attention, with_vectors)
        check_ops(content)
        # MediaPipe reads metadata of models with one signature only.
        if metadata.has_metadata(bundle, len(lengths) + with_vectors, with_attention):
            files = device_files(bundle)
            named = {metadata.LABELS: files[LABELS], metadata.VOCABULARY: files[VOCABULARY]}
            content = metadata.with_metadata(content, bundle, named)
        difference = check_predictions(content, bundle, lengths, quantize == "none", with_vectors)
        path.write_bytes(content)
    return difference


@contextlib.contextmanager
def string_model(
    bundle: Bundle, out: Path, length: int | None, quantize: Any, overwrite: bool, enabled: bool
) -> Iterator[None]:
    """Writes the model of strings, OUT.text.tflite, if enabled; it appears when the block ends without an error."""
    if not enabled:
        yield
        return
    from export.tflite.string_model import check_convertible, write_text_tflite

    check_convertible(bundle, quantize)
    final = out.with_suffix(".text.tflite")
    with atomic_write(final, overwrite) as path:
        difference = write_text_tflite(bundle, path, length or bundle.preprocessor.max_length, quantize)
        logger.info(f"{final}: largest difference from the run: {difference:.2g}")
        yield
