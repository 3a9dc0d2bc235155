"""python -m export.tflite RUN OUT.tflite

Writes a run as a TFLite model for phones, browsers and small machines: token ids in, probabilities out, with the
tokenizer, the labels and the vocabulary as files beside it.
"""  # noqa: D415

import contextlib
import logging
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal

import tyro

from export.checks.exportable import check_exportable
from kmha.errors import InputError
from training.cli.parser import FAILED, parse, run

logger = logging.getLogger("kmha")

SHORTEST = 3
STEP = 8


@dataclass(frozen=True)
class TfliteConfig:
    """Writes a run as a TFLite model, with all that a device needs beside it."""

    run: Annotated[Path, tyro.conf.Positional]
    """Run folder that training.fit wrote."""
    out: Annotated[Path, tyro.conf.Positional]
    """The file to write; OUT.tokenizer.json, OUT.labels.txt and OUT.vocab.txt come beside it."""
    quantize: Literal["none", "float16", "dynamic", "int8"] = "none"
    """How weights, and with int8 values too, are rounded."""
    length: tuple[int, ...] = ()
    """Tokens a text may have, special ones included; several make several signatures that share the weights.
    Default: the 99th percentile of the training texts, rounded up to a multiple of 8; of a tagger the run's longest."""
    dynamic_length: bool = False
    """One signature for any length up to the run's longest, instead of fixed ones."""
    attention: bool = False
    """Answers the attention weights too."""
    embed: bool = False
    """Adds a signature embed that gives the vector of a text, as training.embed does; it shares the weights."""
    with_tokenizer: bool = False
    """Also writes OUT.text.tflite, which takes strings; it needs a runtime with tensorflow-text's ops."""
    overwrite: bool = False
    """Replaces files that stand there."""


def main(argv: Sequence[str] | None = None) -> int:
    """Runs the command; returns its exit status."""
    return run(lambda: _export(parse(TfliteConfig, argv, "python -m export.tflite")))


def _export(config: TfliteConfig) -> int:
    if config.dynamic_length and config.length:
        raise InputError("--dynamic-length: expected it or --length, got both")
    check_exportable(config.run)
    from kmha.quiet import import_tensorflow

    import_tensorflow()
    from export.checks.exportable import CheckError
    from kmha.bundle.bundle import Bundle

    bundle = Bundle.load(config.run)
    lengths = [None] if config.dynamic_length else chosen_lengths(bundle, config.length)
    try:
        with _text_model(config, bundle, lengths[-1]):
            difference = write_tflite(
                bundle, config.out, lengths, config.quantize, config.attention, config.overwrite, config.embed
            )
    except CheckError as error:
        logger.info(f"error: {config.out}: {error}")
        return FAILED
    logger.info(f"largest difference from the run: {difference:.2g}")
    print(config.out)
    return 0


@contextlib.contextmanager
def _text_model(config: TfliteConfig, bundle, length: int | None) -> Iterator[None]:
    """Writes the model of strings, if asked for; it takes its place when the block ends well."""
    if not config.with_tokenizer:
        yield
        return
    from export.tflite.string_model import check_convertible, write_text_tflite
    from training.io.atomic_write import atomic_write

    check_convertible(bundle, config.quantize)
    quantize: Any = config.quantize
    final = config.out.with_suffix(".text.tflite")
    with atomic_write(final, config.overwrite) as path:
        difference = write_text_tflite(bundle, path, length or bundle.preprocessor.max_length, quantize)
        logger.info(f"{final}: largest difference from the run: {difference:.2g}")
        yield


def chosen_lengths(bundle, expected: Sequence[int] = ()) -> list[int]:
    """The lengths to export, ascending.

    Args:
        bundle: A trained bundle.
        expected: Lengths asked for; none asks for the 99th percentile of the training texts, rounded up, or for a
            tagger's longest: a sentence in shorter windows is tagged, but not as by the run.

    Raises:
        InputError: A length below 3, of a tagger below 8, or past the run's longest.
    """
    from kmha.bundle.manifest import TAG
    from kmha.features import MIN_WINDOW_LENGTH as SHORTEST_WINDOW

    shortest = SHORTEST_WINDOW if bundle.task == TAG else SHORTEST
    longest = max(given.part.max_length for given in bundle.preprocessor.inputs)
    if not expected and bundle.task == TAG:
        return [longest]
    if not expected:
        defaults = bundle.details.get("lengths", {}).get("p99", longest)
        return [max(SHORTEST, min(longest, -(-defaults // STEP) * STEP))]
    for length in expected:
        if not shortest <= length <= longest:
            raise InputError(f"--length: expected {shortest} to the run's {longest}, got {length}")
    return sorted(set(expected))


def write_tflite(
    bundle,
    final: Path,
    lengths: Sequence[int | None],
    quantize: Literal["none", "float16", "dynamic", "int8"] = "none",
    with_attention: bool = False,
    overwrite: bool = False,
    with_vectors: bool = False,
) -> float:
    """Writes a bundle as a TFLite model and what a device needs beside it.

    Args:
        bundle: A trained bundle.
        final: The file to write.
        lengths: Tokens each signature takes; None for any number.
        quantize: As in `tflite_convert.convert`.
        with_attention: Whether to answer the attention weights too.
        overwrite: Whether files that stand there are replaced.
        with_vectors: Whether to add signatures of vectors.

    Returns:
        The largest difference of a probability, in float32 of a vector's numbers too, from the bundle's, on its sample.

    Raises:
        InputError: The place is taken or cannot be written to, or int8 lacks a sample.
        CheckError: The model has an op that is not built in, answers no numbers, or in float32 other ones.
    """
    from export.device_files.files import LABELS, VOCABULARY, device_files, written_for_devices
    from export.graph.embedding import check_embeds
    from export.graph.model_function import check_attention
    from export.tflite import metadata as tflite_metadata
    from export.tflite.check import check_answers, check_ops
    from export.tflite.convert import convert

    if with_vectors:
        check_embeds(bundle)
    if with_attention:
        check_attention(bundle)
    with written_for_devices(bundle, final, overwrite) as path:
        content = convert(bundle, lengths, quantize, with_attention, with_vectors)
        check_ops(content)
        # MediaPipe is told of models of one signature only.
        if tflite_metadata.has_metadata(bundle, len(lengths) + with_vectors, with_attention):
            beside = device_files(bundle)
            named = {
                tflite_metadata.LABELS: beside[LABELS],
                tflite_metadata.VOCABULARY: beside[VOCABULARY],
            }
            content = tflite_metadata.with_metadata(content, bundle, named)
        difference = check_answers(content, bundle, lengths, quantize == "none", with_vectors)
        path.write_bytes(content)
    return difference


if __name__ == "__main__":
    sys.exit(main())
