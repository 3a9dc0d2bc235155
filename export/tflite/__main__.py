"""python -m export.tflite RUN OUT.tflite

Exports a run as a TFLite model for phones, browsers and small devices: token ids in, probabilities out, with the
tokenizer, the labels and the vocabulary in files next to it.
"""  # noqa: D415

import contextlib
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


@dataclass(frozen=True)
class TfliteConfig:
    """Exports a run as a TFLite model, with the files that a device needs."""

    run: Annotated[Path, tyro.conf.Positional, tyro.conf.arg(metavar="RUN")]
    """Run folder that training.fit wrote."""
    out: Annotated[Path, tyro.conf.Positional, tyro.conf.arg(metavar="OUT.tflite")]
    """The file to write; OUT.tokenizer.json, OUT.labels.txt and OUT.vocab.txt are written next to it."""
    quantize: Literal["none", "float16", "dynamic", "int8"] = "none"
    """How weights, and with int8 also activations, are quantized."""
    length: tuple[int, ...] = ()
    """Tokens of a text, special ones included; several lengths make several signatures that share the weights.
    Default: the 50th, 90th and 99th percentile of the training texts, rounded up to a multiple of 8, and the longest;
    of a tagger, and in addition of a run of few labels, the run's longest."""
    dynamic_length: bool = False
    """One signature for any length up to the run's longest, instead of fixed lengths."""
    attention: bool = False
    """Also return the attention weights."""
    embed: bool = False
    """Add a signature embed that returns the vector of a text, as training.embed does; it shares the weights."""
    with_tokenizer: bool = False
    """Also write OUT.text.tflite, which takes strings; it needs a runtime with tensorflow-text's ops."""
    overwrite: bool = False
    """Replace existing files."""


def main(argv: Sequence[str] | None = None) -> int:
    """Runs the command; returns its exit status."""
    return run(lambda: _export(parse(TfliteConfig, argv, "python -m export.tflite")))


def _export(config: TfliteConfig) -> int:
    if config.dynamic_length and config.length:
        raise InputError("--dynamic-length: expected it or --length, got both")
    require_package("ai_edge_litert", "export.tflite", "litert")
    check_exportable(config.run)
    from kmha.quiet import import_tensorflow

    import_tensorflow()
    from export.graph import chosen_lengths
    from export.tflite.string_model import string_model
    from export.tflite.write import write_tflite
    from export.verification.examiner import summary
    from kmha.bundle.bundle import Bundle
    from training.runtime.resource_usage import bytes_by_part, describe_bytes

    bundle = Bundle.load(config.run)
    lengths = [None] if config.dynamic_length else chosen_lengths(bundle, config.length)
    quantize, overwrite = config.quantize, config.overwrite
    with contextlib.ExitStack() as stack:
        if config.with_tokenizer:
            stack.enter_context(string_model(bundle, config.out, lengths[-1], quantize, overwrite))
        report = write_tflite(
            bundle, config.out, lengths, quantize, config.attention, overwrite, config.embed
        )
    for line in summary(bundle, report):
        logger.info(line)
    float_bytes = {"none": 4, "float16": 2}.get(quantize, 1)
    parts = describe_bytes(bytes_by_part(bundle.model, float_bytes))
    logger.info(f"{config.out.stat().st_size / 1e6:.1f} MB; weights: {parts}")
    print(config.out)
    return 0


if __name__ == "__main__":
    sys.exit(main())
