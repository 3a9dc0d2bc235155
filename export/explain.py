"""python -m export.explain SAVEDMODEL TEXT [TEXT_B] --out page.html

Explains a SavedModel's prediction from its `explain` signature, without the run: the page of training.explain without
gradients. One JSON object on stdout.
"""  # noqa: D415

import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import tyro

from export.predictors.artifacts import SAVEDMODEL, find_artifact
from kmha.errors import InputError
from training.cli.bounds import Count, Range
from training.cli.parser import parse, run
from training.explain import report_explanation
from training.html.page import check_page_path
from training.io.disk import to_json


@dataclass(frozen=True)
class ServedExplainConfig:
    """Explains a SavedModel's prediction."""

    artifact: Annotated[Path, tyro.conf.Positional, tyro.conf.arg(metavar="SAVEDMODEL")]
    """A SavedModel or a folder of its versions."""
    text: Annotated[tuple[str, ...], tyro.conf.Positional, tyro.conf.arg(metavar="TEXT")]
    """The text; for a matcher both texts."""
    out: Path | None = None
    """The page to write, a file that ends in .html; an existing file is replaced."""
    label: str = ""
    """The label or tag to explain; empty: the predicted one."""
    word: Annotated[int, Range(at_least=0)] = 0
    """For a tagger the word to explain, from 1; 0: the first one with a tag other than O."""
    draws: Count = 10
    """Number of random draws in the deletion test."""
    seed: Annotated[int, Range(at_least=0)] = 0
    """Seed of the random words."""


def main(argv: Sequence[str] | None = None) -> int:
    """Runs the command; returns its exit status."""
    return run(lambda: _explain(parse(ServedExplainConfig, argv, "python -m export.explain")))


def _explain(config: ServedExplainConfig) -> int:
    artifact = find_artifact(config.artifact)
    if artifact.format != SAVEDMODEL:
        raise InputError(f"{artifact.path}: expected a SavedModel, got another kind of export")
    if not any(text.strip() for text in config.text):
        raise InputError("TEXT: expected a text with words, got none or an empty one")
    if config.out is not None:
        check_page_path(config.out)
    from export.savedmodel.explainer import ExplainableTagger, explainable_model
    from training.explanation.explainer import explain_tag, explain_text

    model = explainable_model(artifact.path)
    if len(config.text) != model.num_texts:
        expected = "two texts, A and B" if model.num_texts == 2 else "one text"
        raise InputError(f"TEXT: expected {expected}, got {len(config.text)}")
    if isinstance(model, ExplainableTagger):
        question = explain_tag(model, model.words(config.text[0]), config.label, config.word)
    elif config.word:
        raise InputError("--word: expected a tagger, got another model")
    else:
        question = explain_text(model, config.text, config.label)
    where = config.artifact.resolve().name
    report = report_explanation(question, config.out, config.draws, config.seed, where)
    print(to_json(report))
    return 0


if __name__ == "__main__":
    sys.exit(main())
