"""python -m training.explain RUN TEXT [TEXT_B] --out page.html

Explains one prediction as an HTML page: attention of all heads, attention rollout, and gradient × input. A deletion
test evaluates them: how far the prediction drops without their top words, compared with random words. With --data FILE
instead of a text, the test runs on many rows. Prints one JSON object on stdout.
"""  # noqa: D415

import dataclasses
import logging
import sys
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import tyro

from kmha.bundle.manifest import MASKED_LM, MATCH, MODEL_NAMES, TAG, read_manifest
from kmha.errors import InputError
from kmha.quiet import import_tensorflow
from training.cli.bounds import Count, Range
from training.cli.parser import parse, run
from training.data.sources import file_source
from training.html.page import check_page_path, write_page
from training.io.disk import to_json
from training.io.examples import ColumnOverrides, FormatFlags

logger = logging.getLogger("kmha")


@dataclass(frozen=True, kw_only=True)
class ExplainConfig(FormatFlags):
    """Explains a prediction by attention and gradients, and evaluates the explanation."""

    run: Annotated[Path, tyro.conf.Positional, tyro.conf.arg(metavar="RUN")]
    """Run folder that training.fit wrote: a classifier, a matcher or a tagger."""
    text: Annotated[tuple[str, ...], tyro.conf.Positional, tyro.conf.arg(metavar="TEXT")] = ()
    """The text; for a matcher both texts."""
    out: Path | None = None
    """The page to write, ending in .html; an existing file is replaced."""
    label: str = ""
    """The label or tag to explain; empty: the predicted one."""
    word: Annotated[int, Range(at_least=0)] = 0
    """For a tagger, the word to explain, from 1; 0: the first one with a tag other than O."""
    draws: Count = 10
    """Number of random draws in the deletion test."""
    seed: Annotated[int, Range(at_least=0)] = 0
    """Seed of the random words and of the rows of --data."""
    data: Path | None = None
    """Run the deletion test on rows of this file instead: .csv, .tsv, .jsonl or .conll, also .gz."""
    rows: Annotated[int, Range(at_least=0)] = 200
    """Number of random rows of --data; 0: all."""
    text_column: str = ""
    """Column of the text, the words, or the first text of a pair; empty: as in training."""
    text_b_column: str = ""
    """Column of the second text of a pair; empty: as in training."""
    label_column: str = ""
    """Column of the label or the tags; empty: as in training."""


def main(argv: Sequence[str] | None = None) -> int:
    """Runs the command; returns its exit status."""
    return run(lambda: _explain(parse(ExplainConfig, argv, "python -m training.explain")))


def _explain(config: ExplainConfig) -> int:
    _check(config, read_manifest(config.run)["task"])
    import_tensorflow()
    from kmha.bundle.bundle import Bundle
    from training.explanation.bundle_explainer import explainable_model

    bundle = Bundle.load(config.run)
    model = explainable_model(bundle)
    if config.data is None:
        result = _one(config, model)
    else:
        result = _many(config, bundle, model)
    print(to_json(result))
    return 0


def _check(config: ExplainConfig, task: str) -> None:
    """Checks the flags, before TensorFlow is imported."""
    if task == MASKED_LM:
        raise InputError(
            f"{config.run}: expected a classifier, a matcher or a tagger, got {MODEL_NAMES[task]}"
        )
    if config.word and (task != TAG or config.data is not None):
        raise InputError(
            f"--word: expected a text for a tagger, got {'--data' if task == TAG else MODEL_NAMES[task]}"
        )
    if config.data is not None:
        for value, flag in ((config.text, "TEXT"), (config.out, "--out"), (config.label, "--label")):
            if value:
                raise InputError(f"{flag}: expected no text, page or label together with --data, got one")
        file_source(config.data, config.form)
        return
    for name in ("text_column", "text_b_column", "label_column"):
        if getattr(config, name):
            raise InputError(f"--{name.replace('_', '-')}: expected --data too, got none")
    expected = 2 if task == MATCH else 1
    if len(config.text) != expected:
        shown = "two texts, A and B" if expected == 2 else "one text"
        raise InputError(f"TEXT: expected {shown}, for {MODEL_NAMES[task]}, got {len(config.text) or 'none'}")
    if not any(text.strip() for text in config.text):
        raise InputError("TEXT: expected a text with words, got an empty one")
    if config.out is not None:
        check_page_path(config.out)


def _one(config: ExplainConfig, model: Any) -> dict[str, Any]:
    from training.explanation.explainer import explain_tag, explain_text

    if hasattr(model, "tagged"):
        explanation = explain_tag(model, model.words(config.text[0]), config.label, config.word)
    else:
        explanation = explain_text(model, config.text, config.label)
    return report_explanation(explanation, config.out, config.draws, config.seed, config.run.resolve().name)


def report_explanation(
    explanation: Any, out: Path | None, draws: int, seed: int, subtitle: str
) -> dict[str, Any]:
    """Writes the page of an explanation, logs a summary, and returns JSON values for stdout."""
    from training.explanation.deletion_test import deletion_test, word_scores
    from training.explanation.page import EVIDENCE, MAX_NGRAMS, caution, page, summarize

    scores = word_scores(explanation)
    test = deletion_test(explanation, scores, draws, seed)
    if out is not None:
        write_page(out, page(explanation, scores, test, subtitle))
    logger.info(f"{explanation.explained}: {explanation.value:.4f}")
    summary = [summarize(explanation, scores, test), EVIDENCE] if test else []
    for line in (*explanation.notes, caution(explanation), *summary):
        logger.info(line)
    return {
        "explained": explanation.explained,
        explanation.unit: explanation.value,
        "words": explanation.words,
        **{name: [round(float(each), 6) for each in values] for name, values in scores.items()},
        **({"linear": explanation.linear.report(MAX_NGRAMS)} if explanation.linear else {}),
        "deletion": test,
        "page": None if out is None else str(out),
    }


def _many(config: ExplainConfig, bundle: Any, model: Any) -> dict[str, Any]:
    from training.explanation.deletion_test import average_deletion_test, average_table
    from training.explanation.explainer import explain_tag, explain_text

    def explanations() -> Iterator[Any]:
        with tempfile.TemporaryDirectory(prefix="kmha-") as scratch:
            for row in _rows(config, bundle, Path(scratch)):
                try:
                    if bundle.tagger is not None:
                        yield explain_tag(model, row)
                    else:
                        yield explain_text(model, (row,) if isinstance(row, str) else tuple(row))
                except InputError:
                    # A text without tokens or words.
                    yield None

    result = average_deletion_test(explanations(), config.draws, config.seed)
    logger.info(f"{result['rows']:,} rows of {config.data}; mean drop of the prediction")
    for line in average_table(result):
        logger.info(line)
    return {"data": str(config.data), **result}


def _rows(config: ExplainConfig, bundle: Any, folder: Path) -> list[Any]:
    """Random rows of the file: texts, pairs, or lists of words."""
    import numpy as np

    from training.evaluation.evaluator import read_inputs, read_rows

    assert config.data is not None
    names = ColumnOverrides(config.text_column, config.label_column, config.text_b_column, form=config.form)
    _, part = read_rows(bundle, config.data, names, folder)
    if config.rows and config.rows < len(part.rows):
        rng = np.random.default_rng(config.seed)
        part = dataclasses.replace(part, rows=np.sort(rng.choice(part.rows, config.rows, replace=False)))
    return read_inputs(bundle, part)


if __name__ == "__main__":
    sys.exit(main())
