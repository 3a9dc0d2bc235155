"""python -m export.onnx RUN OUT.onnx [--quantize dynamic] [--opset 17] [--attention] [--embed] [--overwrite]

Exports a run as an ONNX file: token ids and mask in, probabilities out, with the tokenizer, the labels and the
vocabulary in files next to it.
"""  # noqa: D415

import logging
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

import tyro

from export.checks import check_exportable
from kmha.errors import InputError, require_package
from training.cli.parser import parse, run

logger = logging.getLogger("kmha")

FIRST_OPSET, LAST_OPSET = 13, 18
NEEDED = ("onnx", "onnxruntime", "tf2onnx")


@dataclass(frozen=True)
class OnnxConfig:
    """Exports a run as an ONNX file: token ids and mask in, probabilities out."""

    run: Annotated[Path, tyro.conf.Positional, tyro.conf.arg(metavar="RUN")]
    """Run folder that training.fit wrote."""
    out: Annotated[Path, tyro.conf.Positional, tyro.conf.arg(metavar="OUT.onnx")]
    """The file to write; OUT.tokenizer.json, OUT.labels.txt and OUT.vocab.txt are written next to it."""
    quantize: Literal["none", "dynamic"] = "none"
    """Weights as float32 or as int8; newer versions of onnxruntime round activations too."""
    opset: int = 17
    """Version of the ONNX operators, 13 to 18."""
    attention: bool = False
    """Also return the attention weights of every layer and head."""
    embed: bool = False
    """Also return the vector of the text, as training.embed does."""
    overwrite: bool = False
    """Replace existing files."""


def main(argv: Sequence[str] | None = None) -> int:
    """Runs the command; returns its exit status."""
    return run(lambda: _export(parse(OnnxConfig, argv, "python -m export.onnx")))


def _export(config: OnnxConfig) -> int:
    check_settings(config.out, config.opset)
    check_exportable(config.run)
    from kmha.quiet import import_tensorflow

    import_tensorflow()
    from export.onnx.write import write_onnx
    from export.verification.examiner import summary
    from kmha.bundle.bundle import Bundle

    bundle, options = Bundle.load(config.run), (config.attention, config.overwrite, config.embed)
    report = write_onnx(bundle, config.out, config.quantize, config.opset, *options)
    for line in summary(bundle, report):
        logger.info(line)
    logger.info(f"{config.out.stat().st_size / 1e6:.1f} MB")
    print(config.out)
    return 0


def check_settings(out: Path, opset: int) -> None:
    """Raises InputError for settings or an environment that cannot work, before anything is computed."""
    if out.suffix != ".onnx":
        raise InputError(f"{out}: expected a name that ends in .onnx, got {out.suffix or 'no suffix'}")
    if not FIRST_OPSET <= opset <= LAST_OPSET:
        raise InputError(f"--opset: expected {FIRST_OPSET} to {LAST_OPSET}, got {opset}")
    for name in NEEDED:
        require_package(name, "export.onnx", "onnx")


if __name__ == "__main__":
    sys.exit(main())
