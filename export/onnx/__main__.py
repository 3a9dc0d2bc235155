"""python -m export.onnx RUN OUT.onnx [--quantize dynamic] [--opset 17] [--attention] [--embed] [--overwrite]

Writes a run as an ONNX file: token ids and mask in, probabilities out; tokenizer, labels and vocabulary as files
beside it.
"""  # noqa: D415

import importlib.util
import logging
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

import tyro

from export.checks.exportable import CheckError, check_exportable
from kmha.errors import InputError
from training.cli.parser import FAILED, parse, run

logger = logging.getLogger("kmha")

FIRST_OPSET, LAST_OPSET = 13, 18
FLOAT_TOLERANCE = 1e-4
SAMPLE_ROWS = 64
NEEDED = ("onnx", "onnxruntime", "tf2onnx")


@dataclass(frozen=True)
class OnnxConfig:
    """Writes a run as an ONNX file: token ids and mask in, probabilities out."""

    run: Annotated[Path, tyro.conf.Positional, tyro.conf.arg(metavar="RUN")]
    """Run folder that training.fit wrote."""
    out: Annotated[Path, tyro.conf.Positional, tyro.conf.arg(metavar="OUT.onnx")]
    """The file to write; OUT.tokenizer.json, OUT.labels.txt and OUT.vocab.txt come beside it."""
    quantize: Literal["none", "dynamic"] = "none"
    """Weights as float32, or as int8 with activations quantized as they come."""
    opset: int = 17
    """Version of ONNX' operators, 13 to 18."""
    attention: bool = False
    """Answer the attention weights of every layer and head too."""
    embed: bool = False
    """Answer the vector of the text too, as training.embed gives it."""
    overwrite: bool = False
    """Replace a file that stands there."""


def main(argv: Sequence[str] | None = None) -> int:
    """Runs the command; returns its exit status."""
    return run(lambda: _export(parse(OnnxConfig, argv, "python -m export.onnx")))


def _export(config: OnnxConfig) -> int:
    check_settings(config.out, config.opset)
    check_exportable(config.run)
    from kmha.quiet import import_tensorflow

    import_tensorflow()
    from kmha.bundle.bundle import Bundle

    bundle = Bundle.load(config.run)
    try:
        worst = write_onnx(
            bundle,
            config.out,
            config.quantize,
            config.opset,
            config.attention,
            config.overwrite,
            config.embed,
        )
    except CheckError as error:
        logger.info(f"error: {error}")
        return FAILED
    size = config.out.stat().st_size
    logger.info(
        f"{size:,} bytes; probabilities differ from the bundle's by at most {worst:.1e} on its sample"
    )
    print(config.out)
    return 0


def check_settings(out: Path, opset: int) -> None:
    """Refuses what cannot be written, before any work; raises InputError."""
    if out.suffix != ".onnx":
        raise InputError(f"{out}: expected a name that ends in .onnx, got {out.suffix or 'no suffix'}")
    if not FIRST_OPSET <= opset <= LAST_OPSET:
        raise InputError(f"--opset: expected {FIRST_OPSET} to {LAST_OPSET}, got {opset}")
    for name in NEEDED:
        if importlib.util.find_spec(name) is None:
            raise InputError(f"export.onnx: expected the package {name}, got none; install kmha[onnx]")


def write_onnx(
    bundle,
    out: Path,
    quantize: str = "none",
    opset: int = 17,
    attention: bool = False,
    overwrite: bool = False,
    embed: bool = False,
) -> float:
    """Writes the file and what a device needs beside it, once its answers are those of the bundle.

    Args:
        bundle: A trained bundle.
        out: The .onnx file.
        quantize: "none" or "dynamic".
        opset: 13 to 18.
        attention: Whether it answers the attention weights too.
        overwrite: Whether to replace a file that stands there.
        embed: Whether it answers the vectors of texts too; a matcher of the bi form does so anyway.

    Returns:
        The largest difference of a probability, in float32 of a vector's numbers too, on the bundle's sample.

    Raises:
        InputError: A setting cannot be, a package is missing, or nobody can write there.
        CheckError: The file answers other than the bundle.
    """
    check_settings(out, opset)
    import onnx

    from export.device_files.files import written_for_devices
    from export.graph.embedding import check_embeds
    from export.graph.model_function import check_attention
    from export.onnx.convert import convert, quantized

    if embed:
        check_embeds(bundle)
    if attention:
        check_attention(bundle)
    with written_for_devices(bundle, out, overwrite) as path:
        model = convert(bundle, opset, attention, embed)
        onnx.save_model(quantized(model) if quantize == "dynamic" else model, str(path))
        return _compared(bundle, path, None if quantize == "dynamic" else FLOAT_TOLERANCE)


def _compared(bundle, path: Path, tolerance: float | None) -> float:
    """The largest difference on the bundle's sample; raises CheckError past the tolerance (None: any will do)."""
    import numpy as np
    import onnxruntime

    from export.graph.device_function import features_of, sample_rows
    from export.graph.embedding import VECTORS
    from export.graph.model_function import ids_function, input_names, output_name
    from export.verification.differences import tagged_difference
    from kmha.bundle.manifest import TAG
    from kmha.features import WORD_MASK
    from kmha.inference.vectors import TextVectors

    rows = sample_rows(bundle, SAMPLE_ROWS)
    features = features_of(bundle, rows)
    session = onnxruntime.InferenceSession(str(path), providers=["CPUExecutionProvider"])
    inputs = {name: features[name] for name in input_names(bundle)}
    if bundle.task == TAG:
        names = [output.name for output in session.get_outputs()]
        found = dict(zip(names, map(np.asarray, session.run(names, inputs)), strict=True))
        expected = {name: each.numpy() for name, each in ids_function(bundle)(*inputs.values()).items()}
        return tagged_difference(found, expected, inputs[WORD_MASK], exact=tolerance is not None)
    (found,) = session.run([output_name(bundle)], inputs)
    difference = float(np.abs(found - bundle.probabilities(rows)).max())
    if VECTORS in [output.name for output in session.get_outputs()]:
        (vectors,) = session.run([VECTORS], inputs)
        apart = float(np.abs(vectors - TextVectors(bundle)(rows)).max())
        # Rounded weights move a vector's numbers more than they do probabilities: only NaN is wrong by itself.
        counts = tolerance is not None or not np.isfinite(apart)
        difference = apart if counts and not apart <= difference else difference
    if not np.isfinite(difference):
        raise CheckError("the file answers NaN; nothing was written")
    if tolerance is not None and difference > tolerance:
        raise CheckError(f"the file's probabilities differ by {difference:.1e}; nothing was written")
    return difference


if __name__ == "__main__":
    sys.exit(main())
