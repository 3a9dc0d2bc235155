"""python -m export.huggingface RUN FOLDER

Exports the encoder of a run as a folder that Hugging Face's BertModel loads: config.json, model.safetensors, vocab.txt
and tokenizer_config.json. Layers above the encoder (pooling, classification head) are not exported.
"""  # noqa: D415

import logging
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

import tyro

from kmha.errors import InputError
from training.cli.parser import parse, run

logger = logging.getLogger("kmha")


@dataclass(frozen=True)
class HuggingFaceConfig:
    """Exports the encoder of a run as a folder that Hugging Face's BertModel loads."""

    run: Annotated[Path, tyro.conf.Positional, tyro.conf.arg(metavar="RUN")]
    """Run folder that training.fit wrote, with an encoder of BERT's architecture."""
    out: Annotated[Path, tyro.conf.Positional, tyro.conf.arg(metavar="FOLDER")]
    """The folder to write."""
    side: Literal["a", "b"] = "a"
    """The text whose encoder to export, where a matcher has one for each text."""
    overwrite: bool = False
    """Replace an existing folder."""


def main(argv: Sequence[str] | None = None) -> int:
    """Runs the command; returns its exit status."""
    return run(lambda: _export(parse(HuggingFaceConfig, argv, "python -m export.huggingface")))


def _export(config: HuggingFaceConfig) -> int:
    from kmha.quiet import import_tensorflow

    import_tensorflow()
    from kmha.bundle.bundle import Bundle, parts_of
    from kmha.pretrained.write_huggingface import write_huggingface
    from training.io.disk import atomic_write

    bundle = Bundle.load(config.run)
    parts = list(parts_of(bundle.preprocessor).values())
    # Of a matcher with several tokenizers, the wordpiece one, as BERT has.
    index = next((i for i, part in enumerate(parts) if part.tokenization == "wordpiece"), 0)
    encoder, part = bundle.model.encoders_of(index)[-1 if config.side == "b" else 0], parts[index]
    with atomic_write(config.out, config.overwrite) as folder:
        try:
            write_huggingface(folder, encoder, part.vocabulary, part.tokenization, part.lower_case)
        except InputError as error:
            raise InputError(f"{config.run}: {error}") from error
    numbers = sum(int(variable.shape.num_elements()) for variable in encoder.trainable_variables)
    logger.info(f"{numbers:,} weights, {len(part.vocabulary):,} tokens")
    print(config.out)
    return 0


if __name__ == "__main__":
    sys.exit(main())
