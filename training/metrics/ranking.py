"""Scores of rankings: the candidates of each query ordered by score, averaged over the queries.

Conventions:
    A candidate is right if its relevance is above 0. MAP, MRR and recall use right and wrong only; NDCG uses the
    relevance as gain (linear, as in scikit-learn), and 0 for wrong candidates.
    Among equal scores, the less relevant candidate is ranked first, so that ties never help.
    Queries without a right candidate are left out of all means, as in trec_eval, and counted in
    `queries_without_right`.
    Queries with right candidates only are scored, as in trec_eval. Any order of them is perfect, so many of them raise
    the scores; `queries_with_only_right` counts them.
    recall_at_k divides by all right candidates of a query, even if there are more than k.
"""

from typing import Any, NamedTuple

import numpy as np

RECALL_DEPTHS = (1, 5, 10)
NDCG_DEPTH = 10


class QueryValues(NamedTuple):
    """Scores of each query.

    Attributes:
        values: map, mrr, ndcg_at_10, recall_at_1, recall_at_5 and recall_at_10, float64 [Q] each, of the queries with a
            right candidate in ascending order of their numbers.
        without_right: Number of queries without a right candidate.
        only_right: Number of queries without a wrong candidate.
    """

    values: dict[str, np.ndarray]
    without_right: int
    only_right: int


def ranking_scores(relevance: np.ndarray, scores: np.ndarray, queries: np.ndarray) -> dict[str, Any]:
    """Scores the order of each query's candidates.

    Args:
        relevance: float [R].
        scores: float [R]; the highest is ranked first.
        queries: int [R], the query of each row, in any order.

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
