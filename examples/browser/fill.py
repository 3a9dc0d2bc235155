"""python examples/browser/fill.py RUN SITE && npm install --prefix SITE

Writes the demo page, a run's model as .tflite and .onnx, and its tokenizer to a folder; npm then installs the
runtimes. Any static web server can serve the folder, without a network: python -m http.server --directory
SITE
"""  # noqa: D415

import json
import logging
import shutil
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

import tyro

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from training.cli.parser import parse, run

logger = logging.getLogger("kmha")

HERE = Path(__file__).resolve().parent
TOKENIZER = HERE.parents[1] / "export" / "device" / "tokenizer.js"
PAGE = ("index.html", "style.css", "page.js", "runtimes.js", "words.js", "package.json")
EXAMPLES = 4


@dataclass(frozen=True)
class FillConfig:
    """Writes the demo page and a run's model to a folder."""

    run: Annotated[Path, tyro.conf.Positional]
    """Run folder of training.fit."""
    site: Annotated[Path, tyro.conf.Positional]
    """Output folder; existing files of the page are replaced."""
    quantize: Literal["none", "dynamic"] = "none"
    """dynamic: int8 weights, which makes both models smaller."""


def main(argv: Sequence[str] | None = None) -> int:
    """Runs the program; returns its exit status."""
    return run(lambda: _fill(parse(FillConfig, argv, "python examples/browser/fill.py")))


def _fill(config: FillConfig) -> int:
    from kmha.quiet import import_tensorflow

    import_tensorflow()
    from kmha.bundle.bundle import Bundle

    fill(Bundle.load(config.run), config.site, config.quantize)
    logger.info(
        f"next: npm install --prefix {config.site} && python -m http.server --directory {config.site}"
    )
    print(config.site)
    return 0


def fill(bundle, site: Path, quantize: Literal["none", "dynamic"] = "none") -> None:
    """Writes the page, the models with attention, the tokenizer and example texts.

    Args:
        bundle: A trained bundle.
        site: Output folder.
        quantize: As in `export.tflite` and `export.onnx`.

    Raises:
        InputError: A model cannot be exported or written.
    """
    from export.graph import chosen_lengths
    from export.onnx.write import write_onnx
    from export.tflite.write import write_tflite

    site.mkdir(parents=True, exist_ok=True)
    for name in PAGE:
        shutil.copyfile(HERE / name, site / name)
    shutil.copyfile(TOKENIZER, site / TOKENIZER.name)
    (site / "examples.json").write_text(json.dumps(examples(bundle.sample), ensure_ascii=False), "utf-8")
    write_tflite(bundle, site / "model.tflite", chosen_lengths(bundle), quantize, True, True)
    write_onnx(bundle, site / "model.onnx", quantize, attention=True, overwrite=True)


def examples(sample: Sequence[str]) -> list[str]:
    """At most EXAMPLES texts of a sample, spread evenly over it."""
    return list(sample[:: max(1, len(sample) // EXAMPLES)][:EXAMPLES])


if __name__ == "__main__":
    sys.exit(main())
