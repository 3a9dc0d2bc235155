from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import training.cli.parser  # noqa: F401  (installs the log handler)
from kmha.config import EncoderConfig
from kmha.errors import InputError
from training.io.examples import Columns, Example, Subset, write_examples
from training.tasks.match.task import MatchTask

NOTHING: Any = None

PAIRS, TRIPLETS = ["text_a", "text_b", "label"], ["anchor", "positive", "negative"]
BINARY = MatchTask(target="binary", loss="cross-entropy", best_by="accuracy")


def part_of(folder: Path, rows, file: str = "a.csv") -> Subset:
    """Rows of label and query, or of the label alone; the texts are all different."""
    rows = [(row, None) if isinstance(row, str) else row for row in rows]
    examples = write_examples(
        (
            Example((f"a {query or number}", f"b {number}"), (label,), f"{file}:{number + 2}", query)
            for number, (label, query) in enumerate(rows)
        ),
        folder,
        num_texts=2,
    )
    return Subset(examples, np.arange(len(rows)))


def resolved(folder: Path, rows, task: MatchTask | None = None, **others: Any) -> MatchTask:
    sets = {"train": part_of(folder / "train", rows).examples}
    for name, given in others.items():
        sets[name] = part_of(folder / name, given, f"{name}.csv").examples
    return (task or MatchTask()).resolve_from_data(sets)


@pytest.mark.parametrize(
    ("labels", "target", "loss", "best_by"),
    [
        (["1", "0", "1"], "binary", "cross-entropy", "accuracy"),
        (["1.0", "0"], "binary", "cross-entropy", "accuracy"),
        (["1", "0", "2"], "graded", "squares", "spearman"),
        (["0.25", "-3"], "graded", "squares", "spearman"),
        (["1", "0", "maybe"], "classes", "cross-entropy", "accuracy"),
        (["entailment", "neutral"], "classes", "cross-entropy", "accuracy"),
    ],
)
def test_target_loss_and_metric_follow_from_the_labels(tmp_path, labels, target, loss, best_by):
    task = resolved(tmp_path, labels)
    assert (task.target, task.loss, task.best_by, task.metric) == (target, loss, best_by, best_by)
    assert task.traits.has_classes == (target != "graded")
    assert task.output_names(["x", "y"], NOTHING) == (["x", "y"] if target == "classes" else ["score"])


@pytest.mark.parametrize("labels", [["1", "0"], ["3", "1"]])
def test_default_metric_with_queries_is_map(tmp_path, labels):
    task = resolved(tmp_path, [(label, "q") for label in labels])
    assert task.best_by == "map" and task.traits.keeps_queries_together


def test_classes_have_no_rankings(tmp_path):
    task = resolved(tmp_path, [("yes", "q"), ("no", "q")])
    assert task.best_by == "accuracy" and not task.traits.keeps_queries_together


@pytest.mark.parametrize("loss", ["triplet", "listwise"])
def test_list_losses_keep_queries_together(tmp_path, loss):
    task = resolved(tmp_path, ["1", "0"], MatchTask(loss=loss))
    assert task.best_by == "accuracy" and task.traits.keeps_queries_together
    assert not resolved(tmp_path, ["1", "0"]).traits.keeps_queries_together


@pytest.mark.parametrize(
    ("task", "rows", "message"),
    [
        (MatchTask(target="binary"), ["1", "2"], "a.csv:3: the label must be 0 or 1 for a binary target"),
        (MatchTask(target="binary"), ["0", "yes"], "a.csv:3: the label must be 0 or 1 for a binary target"),
        (MatchTask(target="graded"), ["1", "good"], "a.csv:3: the label must be a number for a graded"),
        (MatchTask(loss="triplet"), ["yes", "no"], "--match.loss: expected cross-entropy for classes such as"
            " 'yes', got triplet"),
        (MatchTask(form="bi"), ["1", "no"], "--match.form: expected cross or joint for classes such as 'no'"),
        (MatchTask(hard_negatives="bm25"), ["yes", "no"], "--match.hard-negatives: expected none for classes"),
        (MatchTask(loss="cross-entropy"), ["1", "3"], "--match.loss: expected squares, triplet, listwise or"
            " contrastive for numbers, got cross-entropy"),
        (MatchTask(loss="squares"), ["1", "0"], "--match.loss: expected cross-entropy, triplet, listwise or"
            " contrastive for labels of 0 and 1 (or --match.target graded), got squares"),
        (MatchTask(best_by="map"), ["1", "0"], "--match.best-by: expected one of accuracy, f1, roc_auc,"
            " average_precision for these rows, got map"),
        (MatchTask(best_by="spearman"), ["1", "0"], "--match.best-by: expected one of accuracy, f1"),
        (MatchTask(best_by="accuracy"), ["1", "3"], "--match.best-by: expected one of spearman, pearson for"),
        (MatchTask(best_by="map"), [("a", "q"), ("b", "q")], "--match.best-by: expected one of accuracy, macro"),
    ],
)  # fmt: skip
def test_settings_that_do_not_fit_the_rows_raise(tmp_path, task, rows, message):
    with pytest.raises(InputError) as caught:
        resolved(tmp_path, rows, task)
    assert str(caught.value).startswith(message)


def test_every_file_needs_labels_of_the_target(tmp_path):
    with pytest.raises(InputError, match="test.csv:3: the label must be 0 or 1 for a binary target, got '2'"):
        resolved(tmp_path, ["1", "0"], test=["1", "2"])
    with pytest.raises(InputError, match="validation.csv:2: the label must be a number"):
        resolved(tmp_path, ["1", "4"], validation=["good"])
    assert resolved(tmp_path, ["yes", "no"], test=["perhaps"]).target == "classes"


@pytest.mark.parametrize("part", ["validation", "test"])
def test_evaluation_file_without_queries_raises(tmp_path, part):
    rows = [("1", "q"), ("0", "q")]
    nameless: dict[str, Any] = {part: ["1", "0"]}
    with pytest.raises(InputError) as caught:
        resolved(tmp_path, rows, **nameless)
    assert str(caught.value) == (
        f"{part}.csv: expected names of queries as in the training rows for the metric map, got none;"
        " or set --match.best-by accuracy"
    )
    assert resolved(tmp_path, rows, MatchTask(best_by="f1"), **nameless).best_by == "f1"


@pytest.mark.parametrize(
    ("task", "message"),
    [
        (MatchTask(loss="contrastive"), "--match.form: expected bi for --match.loss contrastive"),
        (MatchTask(loss="contrastive", form="joint"), "--match.form: expected bi for --match.loss contrastive"),
        (MatchTask(form="bi", overlap=True), "--match.overlap: expected none in the bi form"),
        (MatchTask(target="classes", loss="listwise"), "--match.loss: expected cross-entropy for classes"),
        (MatchTask(target="classes", form="bi"), "--match.form: expected cross or joint for classes, got bi"),
        (MatchTask(symmetric=True, share_weights=False), "--match.share-weights: expected shared weights with"
            " --match.symmetric, got none"),
        (MatchTask(form="joint", share_weights=False), "--match.share-weights: expected shared weights with"
            " --match.form joint"),
    ],
)  # fmt: skip
def test_contradicting_settings_raise(task, message):
    for refuse in (MatchTask.check, lambda given: given.resolve_columns(PAIRS, Columns(""))):
        with pytest.raises(InputError) as caught:
            refuse(task)
        assert str(caught.value).startswith(message)


def test_default_overlap_is_on_except_for_the_bi_form():
    found = {
        form: MatchTask(form=form).resolve_columns(PAIRS, Columns(""))[0] for form in ("cross", "bi", "joint")
    }
    assert {form: task.overlap for form, task in found.items()} == {"cross": True, "bi": False, "joint": True}
    assert MatchTask(overlap=False).resolve_columns(PAIRS, Columns(""))[0].overlap is False


def test_triplets_are_binary_with_the_triplet_loss():
    task, columns = MatchTask().resolve_columns(TRIPLETS, Columns(""))
    assert (task.target, task.loss, columns.wrong) == ("binary", "triplet", "negative")
    assert MatchTask(loss="cross-entropy").resolve_columns(TRIPLETS, Columns(""))[0].loss == "cross-entropy"
    with pytest.raises(InputError, match="--match.target: expected binary for triplets, got graded"):
        MatchTask(target="graded").resolve_columns(TRIPLETS, Columns(""))


@pytest.mark.parametrize(("form", "length", "segments"), [("cross", 20, 0), ("bi", 20, 0), ("joint", 39, 2)])
def test_joint_form_has_positions_for_both_texts(form, length, segments):
    config = MatchTask(form=form).encoder(EncoderConfig(30, max_length=20, num_segments=0))
    assert (config.max_length, config.num_segments) == (length, segments)


def test_granularities_replace_the_default_tokenization():
    assert MatchTask().tokenizations("word") == ("word",)
    assert MatchTask(granularities=("char", "wordpiece", "char")).tokenizations("word") == (
        "char",
        "wordpiece",
    )


def test_targets_are_values_and_query_numbers(tmp_path):
    part = part_of(tmp_path, [("1", "x"), ("0", "y"), ("0.5", "x"), ("1.0", "z")])
    targets = replace(BINARY, target="graded").targets(part, ["score"])
    assert targets.dtype == np.float32
    assert targets[:, 0].tolist() == [1, 0, 0.5, 1]
    assert targets[0, 1] == targets[2, 1] and sorted(set(targets[:, 1])) == [0, 1, 2]
    # For a subset of rows, only the queries of the subset are numbered.
    some = replace(BINARY, target="graded").targets(Subset(part.examples, np.array([1, 3])), ["score"])
    assert some[:, 0].tolist() == [0, 1] and sorted(some[:, 1]) == [0, 1]


def test_targets_of_classes_are_ids(tmp_path):
    part = part_of(tmp_path, ["b", "a", "new", "b"])
    assert replace(BINARY, target="classes").targets(part, ["a", "b"])[:, 0].tolist() == [1, 0, 0, 1]


def test_rows_without_names_belong_to_the_query_of_their_first_text(tmp_path):
    examples = write_examples(
        [Example((f" {a} ", str(b)), ("1",), "") for b, a in enumerate("xyx")], tmp_path, num_texts=2
    )
    queries = BINARY.targets(Subset(examples, np.arange(3)), ["score"])[:, 1]
    assert queries[0] == queries[2] != queries[1]
    assert not examples.named_queries


def test_row_losses_train_on_all_rows(tmp_path):
    part = Subset(part_of(tmp_path, ["1", "0", "1", "0"]).examples, np.array([1, 3]))
    training_set = BINARY.training_set(part, ["score"], seed=0)
    assert training_set.rows.tolist() == [[1, 1], [3, 3]] and training_set.rows.dtype == np.int64
    assert training_set.targets[:, 0].tolist() == [0, 0]
    assert training_set.weights.tolist() == [1, 1] and training_set.weights.dtype == np.float32
    assert training_set.lists is None


ROWS = [
    ("1", "lone"),
    ("1", "good"),
    ("0", "wrong"),
    ("0", "good"),
    ("0", "wrong"),
    ("1", "right"),
    ("1", "right"),
]


@pytest.mark.parametrize(
    ("loss", "rows", "skipped"),
    [("triplet", [1, 3], 3), ("listwise", [1, 3, 5, 6], 2), ("contrastive", [0, 1, 3, 5, 6], 1)],
)
def test_queries_without_comparable_rows_are_skipped(tmp_path, capsys, loss, rows, skipped):
    task = replace(BINARY, loss=loss, form="bi")
    training_set = task.training_set(part_of(tmp_path, ROWS), ["score"], seed=0)
    assert training_set.rows.tolist() == [[row, row] for row in rows]
    assert len(training_set.targets) == len(training_set.weights) == len(rows)
    logged = capsys.readouterr().err
    assert logged == f"{skipped} queries skipped: too few candidates for the {loss} loss\n"
    if loss == "contrastive":
        assert training_set.lists is None
    else:
        assert training_set.lists is not None
        np.testing.assert_array_equal(training_set.lists, training_set.targets[:, 1])
        assert training_set.lists[0] == training_set.lists[1]


@pytest.mark.parametrize(
    ("loss", "rows"),
    [
        ("triplet", [("1", "x"), ("1", "x"), ("0", "y"), ("0", "y")]),
        ("listwise", [("1", "x"), ("1", "y"), ("0", "z"), ("0", "z")]),
        ("contrastive", [("0", "x"), ("0", "y")]),
    ],
)
def test_rows_without_comparable_queries_raise(tmp_path, loss, rows):
    with pytest.raises(
        InputError, match=f"--match.loss {loss}: expected queries with right and wrong candidates"
    ):
        replace(BINARY, loss=loss).training_set(part_of(tmp_path, rows), ["score"], seed=0)


def test_loss_setting_selects_the_loss():
    targets = np.array([[1, 0], [0, 0]], np.float32)
    logits = np.array([[2.0], [0.5]], np.float32)
    right, wrong = np.log1p(np.exp(-2.0)), np.log1p(np.exp(0.5))
    share = np.log1p(np.exp(0.5 - 2.0))
    for loss, expected in {
        "cross-entropy": [right, wrong],
        "squares": [1.0, 0.25],
        "triplet": [0.5, 0.0],
        "listwise": [share, 0.0],
    }.items():
        found = np.asarray(replace(BINARY, loss=loss, margin=2.0).row_losses(targets, logits))
        np.testing.assert_allclose(found, expected, atol=1e-6)
    pairs = np.array([[2.0, 0.5], [0.0, 0.0]], np.float32)
    found = np.asarray(replace(BINARY, loss="contrastive").row_losses(targets, pairs))
    np.testing.assert_allclose(found, [share, 0.0], atol=1e-6)
    classes = np.asarray(
        replace(BINARY, target="classes").row_losses(targets, np.array([[0, 2.0], [1.0, 0]], np.float32))
    )
    np.testing.assert_allclose(classes, [np.log1p(np.exp(-2.0)), np.log1p(np.exp(-1.0))], atol=1e-6)


def test_label_smoothing_is_passed_to_the_loss():
    targets, logits = np.array([[1, 0]], np.float32), np.array([[9.0]], np.float32)
    smooth = replace(BINARY, label_smoothing=0.2).row_losses(targets, logits)
    assert float(np.asarray(smooth)[0]) == pytest.approx(0.1 * 9.0, abs=1e-3)


def test_threshold_has_the_best_accuracy(tmp_path):
    part = part_of(tmp_path, ["0", "0", "1", "1"])
    found = BINARY.tune_thresholds(part, ["score"], np.array([[0.1], [0.2], [0.3], [0.9]], np.float32))
    assert found["thresholds"] == [pytest.approx(0.25)]
    assert replace(BINARY, target="graded").tune_thresholds(part, ["score"], np.zeros((4, 1))) == {}
    assert replace(BINARY, target="classes").tune_thresholds(part, ["0", "1"], np.zeros((4, 2))) == {}


@pytest.mark.parametrize(
    ("target", "labels", "probabilities", "expected"),
    [
        ("binary", "0011", [[0.1], [0.6], [0.7], [0.4]], {"accuracy": 0.5, "map": 1.0}),
        ("graded", "0123", [[0.0], [1.0], [2.0], [3.0]], {"spearman": 1.0, "mse": 0.0, "mrr": 1.0}),
        ("classes", "aabb", [[1, 0], [0, 1], [0, 1], [0, 1]], {"accuracy": 0.75}),
    ],
)
def test_scores_follow_the_target(tmp_path, target, labels, probabilities, expected):
    queries = ["x", "x", "x", "y"]
    part = part_of(tmp_path, list(zip(labels, queries, strict=True)))
    task = replace(BINARY, target=target)
    scores = task.scores(part, ["a", "b"], np.array(probabilities, np.float64), {"thresholds": [0.5]}, True)
    assert {name: scores[name] for name in expected} == pytest.approx(expected)
    assert set(scores["intervals"]) >= set(expected) - {"mse"}
    assert ("map" in scores) == (target != "classes")


def test_few_labels_have_no_cross_attention():
    task = replace(BINARY, form="joint", overlap=False)
    assert task.allow_few_labels and task.has_contrastive_stage
    few = task.for_few_labels()
    assert (few.form, few.rounds, few.overlap) == ("cross", 0, True)
    targets = np.array([[1, 0], [0, 0], [1, 1]], np.float32)
    assert few.few_label_targets(targets).tolist() == [[1], [0], [1]]
    classes = replace(task, target="classes")
    assert classes.few_label_targets(targets).tolist() == [1, 0, 1] and not classes.has_contrastive_stage
    assert not replace(task, target="graded").allow_few_labels
    assert not replace(task, loss="triplet").allow_few_labels


def test_right_pairs_need_a_high_cosine():
    targets = np.array([[1, 0], [1, 1], [0, 2], [0, 3]], np.float32)
    cosines = np.array([[0.9], [0.1], [0.9], [0.1]], np.float32)
    losses = np.asarray(BINARY.contrastive_losses(targets, cosines, 1))
    assert losses.shape == (4,) and losses[0] < 0.1 < losses[1] and losses[3] < 0.1 < losses[2]
