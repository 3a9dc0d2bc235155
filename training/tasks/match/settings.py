"""Which settings of a matcher go together, and what is decided for those that were left to the rows."""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Literal

import numpy as np

from kmha.errors import InputError
from training.io.example_store import ExampleSet
from training.tasks.match.rows import fits, number

if TYPE_CHECKING:
    from training.tasks.match.task import MatchTask

Target = Literal["binary", "classes", "graded"]
Loss = Literal["cross-entropy", "squares", "triplet", "listwise", "contrastive"]
Metric = Literal[
    "accuracy",
    "f1",
    "macro_f1",
    "roc_auc",
    "average_precision",
    "map",
    "mrr",
    "ndcg_at_10",
    "pearson",
    "spearman",
]
# Of hard negatives: how they are found, where it is not by the vectors of another run.
NONE, BM25 = "none", "bm25"
# They compare the candidates of a query, which must stand in one batch.
LISTS = ("triplet", "listwise")
BY_QUERY: tuple[Metric, ...] = ("map", "mrr", "ndcg_at_10")
_METRICS: dict[Target, tuple[Metric, ...]] = {
    "binary": ("accuracy", "f1", "roc_auc", "average_precision"),
    "classes": ("accuracy", "macro_f1"),
    "graded": ("spearman", "pearson"),
}


def check_together(task: "MatchTask") -> None:
    """Refuses settings that contradict each other, whatever the rows are.

    Raises:
        InputError: Names the flag.
    """
    if task.loss == "contrastive" and task.form != "bi":
        raise InputError(
            f"--match.form: expected bi for --match.loss contrastive, which scores all pairs of a batch,"
            f" got {task.form}"
        )
    if task.overlap and task.form == "bi":
        raise InputError(
            "--match.overlap: expected none in the bi form, whose texts do not see each other, got it"
        )
    if task.target == "classes":
        _check_classes(task, "classes")
    if not task.share_weights and (task.symmetric or task.form == "joint"):
        flag = "--match.symmetric" if task.symmetric else "--match.form joint"
        raise InputError(f"--match.share-weights: expected shared weights with {flag}, got none")


def target_of(train: ExampleSet) -> Target:
    """What the labels look like."""
    values = [number(name) for name in train.label_names]
    if any(value is None for value in values):
        return "classes"
    return "binary" if set(values) <= {0.0, 1.0} else "graded"


def check_labels(examples: ExampleSet, target: Target) -> None:
    """Refuses labels that a target cannot have, naming the first row that has one."""
    for name in examples.label_names:
        if not fits(name, target):
            ids, _ = examples.local_labels(np.arange(len(examples)))
            row = int(np.flatnonzero(ids == examples.label_names.index(name))[0])
            expected = "0 or 1" if target == "binary" else "a number"
            raise InputError(
                f"{examples.place(row)}: the label must be {expected} for a {target} target, got {name!r}"
            )


def loss_of(task: "MatchTask", target: Target, train: ExampleSet) -> Loss:
    """The loss given, or the usual one of the target; raises InputError where it cannot be."""
    defaults: Loss = "squares" if target == "graded" else "cross-entropy"
    loss = defaults if task.loss == "auto" else task.loss
    if target == "classes":
        name = next((name for name in train.label_names if number(name) is None), train.label_names[0])
        _check_classes(task, f"classes such as {name!r}")
    for one, other, refused in (
        ("graded", "squares", "cross-entropy"),
        ("binary", "cross-entropy", "squares"),
    ):
        if (target, loss) == (one, refused):
            labels = "numbers" if target == "graded" else "labels of 0 and 1 (or --match.target graded)"
            raise InputError(
                f"--match.loss: expected {other}, triplet, listwise or contrastive for {labels}, got {loss}"
            )
    return loss


def _check_classes(task: "MatchTask", classes: str) -> None:
    """Refuses what has a single score."""
    if task.loss not in ("auto", "cross-entropy"):
        raise InputError(f"--match.loss: expected cross-entropy for {classes}, got {task.loss}")
    if task.form == "bi":
        raise InputError(f"--match.form: expected cross or joint for {classes}, got bi")
    if task.hard_negatives != NONE:
        raise InputError(f"--match.hard-negatives: expected none for {classes}, got {task.hard_negatives}")


def metric_of(task: "MatchTask", target: Target, sets: Mapping[str, ExampleSet]) -> Metric:
    """The metric given, or the usual one of these rows; raises InputError where it is undefined for them."""
    by_query = BY_QUERY if target != "classes" and sets["train"].named_queries else ()
    known = (*_METRICS[target], *by_query)
    metric = ("map" if by_query else known[0]) if task.best_by == "auto" else task.best_by
    if metric not in known:
        raise InputError(f"--match.best-by: expected one of {', '.join(known)} for these rows, got {metric}")
    if metric in by_query:
        for examples in sets.values():
            if not examples.named_queries:
                raise InputError(
                    f"{examples.origin}: expected names of queries as in the training rows, to judge by {metric},"
                    f" got none; or give --match.best-by {known[0]}"
                )
    return metric
