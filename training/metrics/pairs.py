"""Scores of pairs of texts and of rankings as JSON values, and for resamples of the rows.

The conventions are those of `training.metrics.classification`. In a ranking:
    A candidate is right if its relevance is above 0. MAP, MRR and recall use right and wrong only; NDCG uses the
    relevance as gain (linear, as in scikit-learn), and 0 for wrong candidates.
    Among equal scores, the less relevant candidate is ranked first, so that ties never help.
    Queries without a right candidate are left out of all means, as in trec_eval, and counted in
    `queries_without_right`.
    Queries with right candidates only are scored, as in trec_eval. Any order of them is perfect, so many of them raise
    the scores; `queries_with_only_right` counts them.
    recall_at_k divides by all right candidates of a query, even if there are more than k.

Resamples are of rows; of rankings whole queries, since the candidates of a query are not independent. A score is
undefined in a resample with rows of one kind, or a constant column. The functions raise the errors of the scores.
"""

from typing import Any, NamedTuple

import numpy as np
from scipy.stats import rankdata

from training.metrics.bootstrap import ResampledScores, Statistics
from training.metrics.classification import multi_label_scores
from training.metrics.confusion import confusion_matrix

RECALL_DEPTHS = (1, 5, 10)
NDCG_DEPTH = 10
RANKING_NAMES: tuple[str, ...] = ("map", "mrr", "ndcg_at_10")


def binary_pair_scores(true: np.ndarray, probabilities: np.ndarray, threshold: float) -> dict[str, Any]:
    """Scores pairs with labels 0 or 1, int [R], and probabilities of 1, float [R], which match from the threshold on.

    The threshold is compared in float32, as the model does.

    Returns:
        rows, accuracy; f1, precision and recall of label 1; roc_auc, average_precision; ece (of the probability of 1,
        15 equal-width bins), loss (mean binary cross-entropy), threshold, confusion_matrix (rows are true labels).

    Raises:
        ValueError: Shapes do not fit, a label is neither 0 nor 1, or a probability is not finite.
    """
    true, probabilities = np.asarray(true), np.asarray(probabilities)
    _check_shapes(true, probabilities)
    if not np.isin(true, (0, 1)).all():
        raise ValueError(f"labels: expected 0 or 1, got {true[~np.isin(true, (0, 1))][0]}")
    scores = multi_label_scores(true[:, None], probabilities[:, None], ["1"], np.array([threshold]))
    names = ("rows", "accuracy", "precision", "recall", "roc_auc", "average_precision", "ece", "loss")
    predicted = probabilities.astype(np.float32) >= np.float32(threshold)
    return {name: scores[name] for name in names} | {
        "f1": scores["macro_f1"],
        "threshold": float(threshold),
        "confusion_matrix": confusion_matrix(true, predicted, 2).tolist(),
    }


def graded_scores(true: np.ndarray, scores: np.ndarray) -> dict[str, Any]:
    """Scores pairs with true values float [R] and scores float [R] on the same scale.

    Returns:
        rows; pearson and spearman (equal values get their mean rank), None if one side is constant; mse, mae, loss
        (the mse).

    Raises:
        ValueError: Shapes do not fit or a number is not finite.
    """
    true, scores = np.asarray(true, np.float64), np.asarray(scores, np.float64)
    _check_shapes(true, scores)
    for name, column in (("truth", true), ("score", scores)):
        if not np.isfinite(column).all():
            raise ValueError(f"the {name} of row {int(np.argmin(np.isfinite(column)))} is not finite")
    gaps = scores - true
    mse = float(np.mean(gaps**2)) if len(gaps) else None
    return {
        "rows": len(true),
        "pearson": _correlation(true, scores),
        "spearman": _correlation(rankdata(true), rankdata(scores)),
        "mse": mse,
        "mae": float(np.mean(np.abs(gaps))) if len(gaps) else None,
        "loss": mse,
    }


def _check_shapes(true: np.ndarray, scores: np.ndarray) -> None:
    if true.ndim != 1 or true.shape != scores.shape:
        raise ValueError(f"expected truth and scores of one shape [R], got {true.shape} and {scores.shape}")


def _correlation(left: np.ndarray, right: np.ndarray) -> float | None:
    # Compare the values: after rounding, the deviations of a constant column may differ.
    if any(not len(side) or side.min() == side.max() for side in (left, right)):
        return None
    left, right = (_deviations(side) for side in (left, right))
    return float(np.clip(left @ right, -1.0, 1.0))


def _deviations(column: np.ndarray) -> np.ndarray:
    """Deviations from the mean, normalized to length 1."""
    column = column - column.mean()
    column = column / np.abs(column).max()  # avoids overflow and underflow of the squares
    return column / np.linalg.norm(column)


class QueryValues(NamedTuple):
    """Scores of each query."""

    # map, mrr, ndcg_at_10, recall_at_1, recall_at_5 and recall_at_10, float64 [Q] each, of the queries with a right
    # candidate in ascending order of their numbers.
    values: dict[str, np.ndarray]
    without_right: int  # queries without a right candidate
    only_right: int  # queries without a wrong candidate


def ranking_scores(relevance: np.ndarray, scores: np.ndarray, queries: np.ndarray) -> dict[str, Any]:
    """Scores the order of each query's candidates: relevance float [R], scores float [R], query of each row int [R].

    Returns:
        map, mrr, ndcg_at_10, recall_at_1, recall_at_5, recall_at_10: means over the scored queries, None without any;
        queries (number of scored ones), queries_without_right (not scored) and queries_with_only_right (scored).

    Raises:
        ValueError: Shapes do not fit, or a relevance or score is not finite.
    """
    values, without_right, only_right = query_values(relevance, scores, queries)
    evaluated = len(values["map"])
    means = {name: float(column.mean()) if evaluated else None for name, column in values.items()}
    return means | {
        "queries": evaluated,
        "queries_without_right": without_right,
        "queries_with_only_right": only_right,
    }


def query_values(relevance: np.ndarray, scores: np.ndarray, queries: np.ndarray) -> QueryValues:
    """Scores of each query; see `ranking_scores`."""
    relevance, scores = np.asarray(relevance, np.float64), np.asarray(scores, np.float64)
    queries = np.asarray(queries, np.int64)
    if relevance.ndim != 1 or not relevance.shape == scores.shape == queries.shape:
        shapes = f"{relevance.shape}, {scores.shape} and {queries.shape}"
        raise ValueError(f"expected relevance, scores and queries of one shape [R], got {shapes}")
    for name, column in (("relevance", relevance), ("score", scores)):
        if not np.isfinite(column).all():
            raise ValueError(f"the {name} of row {int(np.argmin(np.isfinite(column)))} is not finite")

    numbers, query, sizes = np.unique(queries, return_inverse=True, return_counts=True)
    num_queries = len(numbers)
    gains = np.maximum(relevance, 0.0)[np.lexsort((relevance, -scores, query))]
    best_gains = np.maximum(relevance, 0.0)[np.lexsort((-relevance, query))]
    query = np.repeat(np.arange(num_queries), sizes)
    starts = np.cumsum(sizes) - sizes
    ranks = np.arange(1, len(query) + 1) - starts[query]

    def sums(column):
        return np.bincount(query, weights=column, minlength=num_queries)

    right = gains > 0
    rights = sums(right)
    hits = np.cumsum(right) - (np.cumsum(rights) - rights)[query]
    discounts = np.where(ranks <= NDCG_DEPTH, 1.0 / np.log2(ranks + 1.0), 0.0)
    columns = {
        "map": (sums(right * hits / ranks), rights),
        "mrr": (sums((right & (hits == 1)) / ranks), np.ones(num_queries)),
        f"ndcg_at_{NDCG_DEPTH}": (sums(gains * discounts), sums(best_gains * discounts)),
        **{f"recall_at_{depth}": (sums(right & (ranks <= depth)), rights) for depth in RECALL_DEPTHS},
    }
    evaluated = rights > 0
    values = {name: reached[evaluated] / best[evaluated] for name, (reached, best) in columns.items()}
    return QueryValues(values, int((~evaluated).sum()), int((rights == sizes).sum()))


def binary_pair_resampled(true: np.ndarray, probabilities: np.ndarray, threshold: float) -> ResampledScores:
    """Accuracy, f1, roc_auc and average_precision; for the arguments see `binary_pair_scores`."""
    binary_pair_scores(true, probabilities, threshold)  # for its checks
    rows = np.stack([np.asarray(true, np.float64), np.asarray(probabilities, np.float64)], axis=1)

    def statistics(groups: np.ndarray) -> Statistics:
        # Rows with equal probability and label share a cell; the highest probability is first.
        values, value = np.unique(-groups[:, 1], return_inverse=True)
        cells = 2 * value + groups[:, 0].astype(np.int64)
        order = np.argsort(cells, kind="stable")
        filled, starts = np.unique(cells[order], return_index=True)
        positive = (-values).astype(np.float32) >= np.float32(threshold)

        def scores(weights: np.ndarray) -> dict[str, np.ndarray]:
            counts = np.zeros((len(weights), 2 * len(values)))
            counts[:, filled] = np.add.reduceat(weights[:, order], starts, axis=1)
            wrong, right = counts[:, ::2], counts[:, 1::2]  # [S, V]
            false_positives, true_positives = wrong @ positive, right @ positive
            wrongs, rights = wrong.sum(axis=1), right.sum(axis=1)
            right_so_far = right.cumsum(axis=1)
            so_far = right_so_far + wrong.cumsum(axis=1)
            # A right and a wrong row of equal probability count as half a pair in order.
            in_order = (wrong * (right_so_far - right / 2.0)).sum(axis=1)
            precisions = right_so_far / np.maximum(so_far, 1.0)
            with np.errstate(invalid="ignore"):  # 0 / 0 gives NaN for a resample with one label
                return {
                    "accuracy": (wrongs - false_positives + true_positives) / (wrongs + rights),
                    "f1": 2.0 * true_positives / np.maximum(true_positives + false_positives + rights, 1.0),
                    "roc_auc": in_order / (wrongs * rights),
                    "average_precision": (wrongs * (right * precisions).sum(axis=1)) / (wrongs * rights),
                }

        return scores

    predicted = rows[:, 1].astype(np.float32) >= np.float32(threshold)
    return ResampledScores(rows, statistics, predicted == (rows[:, 0] > 0))


def graded_resampled(true: np.ndarray, scores: np.ndarray) -> ResampledScores:
    """Pearson, spearman, mse and mae; for the arguments see `graded_scores`."""
    graded_scores(true, scores)  # for its checks

    def statistics(groups: np.ndarray) -> Statistics:
        true, scores = groups.T
        squares, distances = (scores - true) ** 2, np.abs(scores - true)
        columns = [_Column(side) for side in (true, scores)]

        def values(weights: np.ndarray) -> dict[str, np.ndarray]:
            rows = weights.sum(axis=1)
            return {
                "pearson": _correlations([column.values(weights) for column in columns], weights),
                "spearman": _correlations([column.ranks(weights) for column in columns], weights),
                "mse": weights @ squares / rows,
                "mae": weights @ distances / rows,
            }

        return values

    rows = np.stack([np.asarray(true, np.float64), np.asarray(scores, np.float64)], axis=1)
    return ResampledScores(rows, statistics)


def ranking_resampled(relevance: np.ndarray, scores: np.ndarray, queries: np.ndarray) -> ResampledScores:
    """Map, mrr and ndcg_at_10 of the Q scored queries; for the arguments see `ranking_scores`."""
    values = query_values(relevance, scores, queries).values

    def statistics(columns: np.ndarray) -> Statistics:
        def means(weights: np.ndarray) -> dict[str, np.ndarray]:
            found = weights @ columns / weights.sum(axis=1, keepdims=True)
            return dict(zip(RANKING_NAMES, found.T, strict=True))

        return means

    return ResampledScores(np.stack([values[name] for name in RANKING_NAMES], axis=1), statistics)


class _Column:
    """Values and ranks of a column in each resample; NaN if all are equal."""

    def __init__(self, column: np.ndarray):
        self._order = np.argsort(column, kind="stable")
        distinct, self._position = np.unique(column, return_inverse=True)
        self._starts = np.searchsorted(column[self._order], distinct)
        middle = distinct.mean() if len(distinct) else 0.0
        self._distinct = distinct - middle
        self._distinct /= np.abs(self._distinct).max(initial=0.0) or 1.0

    def values(self, weights: np.ndarray) -> np.ndarray:
        """Shifted and scaled values, which leaves correlations unchanged: float64 [S, U] -> float64 [S, U]."""
        varies = (self._counts(weights) > 0).sum(axis=1, keepdims=True) > 1
        return np.where(varies, self._distinct[self._position], np.nan)

    def ranks(self, weights: np.ndarray) -> np.ndarray:
        """Average ranks minus 0.5: float64 [S, U] -> float64 [S, U]."""
        counts = self._counts(weights)
        ranks = counts.cumsum(axis=1) - counts / 2.0
        varies = (counts > 0).sum(axis=1, keepdims=True) > 1
        return np.where(varies, ranks, np.nan)[:, self._position]

    def _counts(self, weights: np.ndarray) -> np.ndarray:
        return np.add.reduceat(weights[:, self._order], self._starts, axis=1)


def _correlations(sides: list[np.ndarray], weights: np.ndarray) -> np.ndarray:
    """Pearson correlation in each resample, from two sides and weights, float64 [S, U] each -> float64 [S]."""
    shares = weights / weights.sum(axis=1, keepdims=True)
    left, right = (side - (shares * side).sum(axis=1, keepdims=True) for side in sides)
    lengths = np.sqrt((shares * left**2).sum(axis=1) * (shares * right**2).sum(axis=1))
    # Nearly constant values may have length 0.
    lengths = np.where(lengths > 0, lengths, np.nan)
    return np.clip((shares * left * right).sum(axis=1) / lengths, -1.0, 1.0)
