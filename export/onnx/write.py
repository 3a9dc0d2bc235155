"""Writes a bundle as an ONNX file with the files that a device needs, after checking the file's predictions."""

from pathlib import Path

import numpy as np
import onnx
import onnxruntime

from export.checks.exportable import CheckError
from export.device_files.files import atomic_device_files
from export.graph.device_function import features_of, sample_rows
from export.graph.embedding import check_embeds
from export.graph.model_function import check_attention, ids_function, input_names, output_name
from export.names import VECTORS
from export.onnx.convert import convert, quantized
from export.verification.differences import tag_difference
from kmha.bundle.bundle import Bundle
from kmha.bundle.manifest import TAG
from kmha.features import WORD_MASK
from kmha.inference.vectors import TextVectors

FLOAT_TOLERANCE = 1e-4
SAMPLE_ROWS = 64


def write_onnx(
    bundle: Bundle,
    out: Path,
    quantize: str = "none",
    opset: int = 17,
    attention: bool = False,
    overwrite: bool = False,
    embed: bool = False,
) -> float:
    """Writes the file and the files that a device needs, if its predictions are the bundle's.

    Args:
        bundle: A trained bundle.
        out: The .onnx file.
        quantize: "none" or "dynamic".
        opset: 13 to 18.
        attention: Whether to return the attention weights.
        overwrite: Whether to replace existing files.
        embed: Whether to return the vectors of texts; a bi-encoder always does.

    Returns:
        The largest difference of a probability, in float32 also of a vector's numbers, on the bundle's sample.

    Raises:
        InputError: An option does not fit the run, or the file cannot be written.
        CheckError: The file's predictions differ from the bundle's.
    """
    if embed:
        check_embeds(bundle)
    if attention:
        check_attention(bundle)
    with atomic_device_files(bundle, out, overwrite) as path:
        model = convert(bundle, opset, attention, embed)
        onnx.save_model(quantized(model) if quantize == "dynamic" else model, str(path))
        return _check_predictions(bundle, path, None if quantize == "dynamic" else FLOAT_TOLERANCE)


def _check_predictions(bundle: Bundle, path: Path, tolerance: float | None) -> float:
    """The largest difference on the bundle's sample; raises CheckError above the tolerance (None: no limit)."""
    rows = sample_rows(bundle, SAMPLE_ROWS)
    features = features_of(bundle, rows)
    session = onnxruntime.InferenceSession(str(path), providers=["CPUExecutionProvider"])
    inputs = {name: features[name] for name in input_names(bundle)}
    names = [output.name for output in session.get_outputs()]
    if bundle.task == TAG:
        found = dict(zip(names, map(np.asarray, session.run(names, inputs)), strict=True))
        expected = {name: each.numpy() for name, each in ids_function(bundle)(*inputs.values()).items()}
        return tag_difference(found, expected, inputs[WORD_MASK], exact=tolerance is not None)
    (found,) = session.run([output_name(bundle)], inputs)
    difference = float(np.abs(found - bundle.probabilities(rows)).max())
    if VECTORS in names:
        (vectors,) = session.run([VECTORS], inputs)
        vector_difference = float(np.abs(vectors - TextVectors(bundle)(rows)).max())
        # Quantized weights change a vector's numbers more than probabilities: there only NaN counts.
        counts = tolerance is not None or not np.isfinite(vector_difference)
        difference = vector_difference if counts and not vector_difference <= difference else difference
    if not np.isfinite(difference):
        raise CheckError("the file returns NaN; nothing was written")
    if tolerance is not None and difference > tolerance:
        raise CheckError(f"the file's predictions differ by {difference:.1e}; nothing was written")
    return difference
