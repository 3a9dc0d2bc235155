"""Chooses the target, loss and metric of matching from the rows, where the settings leave them open."""

from collections.abc import Mapping

import numpy as np

from kmha.errors import InputError
from training.io.example_store import ExampleSet
from training.tasks.match.rows import fits, number
from training.tasks.match.settings import BY_QUERY, Loss, MatchSettings, Metric, Target

_METRICS: dict[Target, tuple[Metric, ...]] = {
    "binary": ("accuracy", "f1", "roc_auc", "average_precision"),
    "classes": ("accuracy", "macro_f1"),
    "graded": ("spearman", "pearson"),
}


def target_of(train: ExampleSet) -> Target:
    """The kind of the training labels."""
    values = [number(name) for name in train.label_names]
    if any(value is None for value in values):
        return "classes"
    return "binary" if set(values) <= {0.0, 1.0} else "graded"


def check_labels(examples: ExampleSet, target: Target) -> None:
    """Raises InputError for the first row with a label that the target does not allow."""
    for name in examples.label_names:
        if not fits(name, target):
            ids, _ = examples.local_labels(np.arange(len(examples)))
            row = int(np.flatnonzero(ids == examples.label_names.index(name))[0])
            expected = "0 or 1" if target == "binary" else "a number"
            raise InputError(
                f"{examples.place(row)}: the label must be {expected} for a {target} target, got {name!r}"
            )


def loss_of(settings: MatchSettings, target: Target, train: ExampleSet) -> Loss:
    """The loss of the settings, or the default of the target; raises InputError if they do not go together."""
    default: Loss = "squares" if target == "graded" else "cross-entropy"
    loss = default if settings.loss == "auto" else settings.loss
    if target == "classes":
        name = next((name for name in train.label_names if number(name) is None), train.label_names[0])
        settings.check_classes(f"classes such as {name!r}")
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


def metric_of(settings: MatchSettings, target: Target, sets: Mapping[str, ExampleSet]) -> Metric:
    """The metric of the settings, or the default; raises InputError if it is undefined for these rows."""
    by_query = BY_QUERY if target != "classes" and sets["train"].named_queries else ()
    known = (*_METRICS[target], *by_query)
    metric = ("map" if by_query else known[0]) if settings.best_by == "auto" else settings.best_by
    if metric not in known:
        raise InputError(f"--match.best-by: expected one of {', '.join(known)} for these rows, got {metric}")
    if metric in by_query:
        for examples in sets.values():
            if not examples.named_queries:
                raise InputError(
                    f"{examples.origin}: expected names of queries as in the training rows for the metric {metric},"
                    f" got none; or set --match.best-by {known[0]}"
                )
    return metric
