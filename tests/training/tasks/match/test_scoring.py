"""The baseline of pairs: chosen on validation pairs, or in cross-validation."""

import numpy as np
import pytest

from tests.pair_rows import paraphrase_rows, ranking_rows
from training.tasks.match import scoring
from training.tasks.match.scoring import Pairs, best_baseline


def pairs_of(rows, queries=False):
    names = [row[3] for row in rows] if queries else list(range(len(rows)))
    numbers = np.unique(names, return_inverse=True)[1]
    texts = [row[0] for row in rows], [row[1] for row in rows]
    return Pairs(*texts, np.stack([[float(row[2]) for row in rows], numbers], axis=1), queries)


def without_rows(pairs):
    return Pairs([], [], pairs.targets[:0], pairs.has_queries)


def test_without_validation_pairs_the_baseline_is_chosen_in_cross_validation():
    # Wrong pairs share all words but one with the right ones, so that a threshold of .5 says little.
    random = np.random.default_rng(0)
    rows = [
        (a, f"{b} never", label) if label else (a, f"{a} {' '.join(random.permutation(a.split()))}", label)
        for a, b, label in paraphrase_rows(80, 0)
    ]
    train, evaluated = pairs_of(rows[:40]), pairs_of(rows[40:])
    found = best_baseline(train, without_rows(train), evaluated, "binary", "accuracy", 0)
    given = best_baseline(train, evaluated, evaluated, "binary", "accuracy", 0)
    assert found.scores["accuracy"] > 0.9
    assert found.scores["accuracy"] == pytest.approx(given.scores["accuracy"], abs=0.1)


@pytest.mark.parametrize("rows", [ranking_rows(6, 4, 0), ranking_rows(1, 8, 0)])
def test_pairs_of_a_query_are_predicted_together(rows, monkeypatch):
    train, fitted = pairs_of(rows, queries=True), []
    fit = scoring.fit_pair_baseline
    monkeypatch.setattr(
        scoring,
        "fit_pair_baseline",
        lambda a, b, *rest, **named: fitted.append(a) or fit(a, b, *rest, **named),
    )
    found = best_baseline(train, without_rows(train), train, "binary", "map", 0)
    assert 0 < found.scores["map"] <= 1
    queries = set(train.texts_a)
    assert len(fitted) == 1 + scoring.FOLDS
    for texts in fitted[1:]:
        counts = [texts.count(each) for each in queries]
        assert sum(counts) < len(rows)
        # With one query alone, its rows are divided.
        assert len(queries) == 1 or set(counts) == {0, 4}
