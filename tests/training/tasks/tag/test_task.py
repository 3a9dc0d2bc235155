"""The tagging task: schemes, repaired tags, settings and initial weights."""

from typing import Any, NamedTuple

import numpy as np
import pytest

import training.cli.parser  # noqa: F401  (installs the log handler)
from kmha.config import EncoderConfig
from kmha.errors import InputError
from training.io.examples import Example, Subset, write_examples
from training.tasks.tag.task import TagTask

BIO = [["O", "B-PER", "I-PER"], ["B-LOC", "B-LOC"]]


def part_of(folder, sequences, words=None) -> Subset:
    examples = write_examples(
        (
            Example(("\n".join(words or ["word"] * len(tags)),), tuple(tags), f"a:{n + 1}", ordered=True)
            for n, tags in enumerate(sequences)
        ),
        folder,
    )
    return Subset(examples, np.arange(len(sequences)))


def resolved(folder, sequences, words=None, **options) -> tuple[TagTask, Subset]:
    part = part_of(folder, sequences, words)
    return TagTask(**options).resolve_from_data({"train": part.examples}), part


@pytest.mark.parametrize(
    ("sequences", "scheme", "metric"),
    [
        (BIO, "bio", "span_f1"),
        ([["O", "I-PER", "I-PER"], ["I-LOC", "B-LOC"]], "iob1", "span_f1"),
        ([["O", "B-PER", "E-PER"], ["S-LOC", "O"]], "bioes", "span_f1"),
        ([["B", "M", "E"], ["S", "S"]], "bmes", "span_f1"),
        ([["NOUN", "VERB"], ["DET", "NOUN"]], "none", "token_accuracy"),
    ],
)
def test_scheme_is_detected_from_the_tags(tmp_path, sequences, scheme, metric):
    task, part = resolved(tmp_path, sequences)
    assert (task.scheme, task.given_scheme, task.metric) == (scheme, scheme, metric)
    assert task.output_names([], part) == sorted({tag for tags in sequences for tag in tags})
    assert task.details_for_bundle == {"metric": metric, "given_scheme": scheme}


def test_tags_are_converted_to_the_model_scheme_and_back(tmp_path):
    task, part = resolved(tmp_path, BIO, scheme="bioes")
    assert (task.scheme, task.given_scheme) == ("bioes", "bio")
    labels = task.output_names([], part)
    assert labels == ["B-PER", "E-PER", "O", "S-LOC"]
    assert [labels[i] for i in task.targets(part, labels)] == ["O", "B-PER", "E-PER", "S-LOC", "S-LOC"]
    assert task.to_row_scheme(["O", "B-PER", "E-PER"]) == BIO[0]


def test_broken_tags_are_logged_and_repaired(tmp_path, capsys):
    task, part = resolved(tmp_path, [*BIO, ["O", "I-PER"], ["I-LOC"]])
    logged = capsys.readouterr().err
    assert "2 tags break bio and are repaired: a:3 word 2 (I-PER after O), a:4 word 1 (I-LOC after" in logged
    labels = task.output_names([], part)
    assert [labels[i] for i in task.targets(part, labels)][-3:] == ["O", "B-PER", "B-LOC"]


def test_single_character_words_turn_characters_off(tmp_path):
    task, _ = resolved(tmp_path / "a", [["B", "E", "S"]], words=["渡", "轮", "。"])
    assert (task.split, task.characters) == ("characters", False)
    task, _ = resolved(tmp_path / "b", [["O", "O", "O"], ["B-X", "O", "O"]], words=["old", "a", "bread"])
    assert (task.split, task.characters) == ("words", True)
    task, _ = resolved(
        tmp_path / "c", [["O", "O"], ["B-X", "O"]], words=["old", "a"], split="characters", characters=False
    )
    assert (task.split, task.characters) == ("characters", False)


@pytest.mark.parametrize(
    ("sequences", "options", "words"),
    [
        (
            [["N", "V"]],
            {"scheme": "bio"},
            "--tag.scheme: expected none for tags without spans, got bio",
        ),
        (
            BIO,
            {"scheme": "none"},
            "--tag.scheme: expected a scheme with spans, as the tags have (bio), got none",
        ),
        (
            [["N", "V"]],
            {"best_by": "span_f1"},
            "--tag.best-by: expected token_accuracy for tags without spans",
        ),
    ],
)
def test_settings_that_do_not_fit_the_tags_raise(tmp_path, sequences, options, words):
    with pytest.raises(InputError) as error:
        resolved(tmp_path, sequences, **options)
    assert words in str(error.value)


class Rows(NamedTuple):
    targets: np.ndarray
    word_counts: np.ndarray


def test_model_forbids_invalid_transitions_and_starts_at_the_frequencies(tmp_path):
    task, part = resolved(tmp_path, BIO)
    labels = task.output_names([], part)
    model: Any = task.build_model(
        {"": EncoderConfig(20, hidden_dim=8, num_heads=2, num_layers=1, intermediate_dim=8)}, labels
    )
    assert model.crf.allowed[labels.index("O")][labels.index("I-PER")] == 0
    assert model.crf.allowed_start[labels.index("I-PER")] == 0
    task.initialize(model, Rows(task.targets(part, labels), np.array([3, 2])))
    shares = np.exp(model.head.bias.numpy())
    np.testing.assert_allclose(
        shares[labels.index("B-LOC")] / shares[labels.index("O")], 2.5 / 1.5, rtol=1e-5
    )
    # Each pair counts half an occurrence more. B-PER precedes I-PER only.
    pairs = np.exp(model.crf.transitions.numpy()[labels.index("B-PER")]) * shares
    np.testing.assert_allclose(pairs, np.where(np.array(labels) == "I-PER", 1.5, 0.5) / 3, rtol=1e-5)
    starts = np.exp(model.crf.start.numpy()) * shares
    np.testing.assert_allclose(starts, np.isin(labels, ["O", "B-LOC"]) / 4 + 0.125, rtol=1e-5)
