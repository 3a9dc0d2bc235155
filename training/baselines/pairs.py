"""The bars a matcher is held against on the same rows: TF-IDF cosine, BM25, and a linear model on overlap features.

`fit_pair_baseline` trains them. Choices, made on validation rows or by cross-validation of training rows, so that
the bar is a fair one (mean average precision of wikiqa: 5 folds of the training queries, then dev rows):

- Terms keep punctuation marks (BM25, wikiqa dev: .565, without .555).
- The cosine is that of pieces of words (wikiqa .552 and .608; of words .553 and .560; accuracy of mrpc in ten folds
  .722, of words .715), or of characters and their pairs where a script sets no spaces (sts_zh dev accuracy .988, with
  three characters .987).
- The linear model takes C = 1 (mrpc accuracy .756, wikiqa .635 and .663; C = .1 .752, .635 and .666). Balanced labels
  (mrpc .728) and learning to order the candidates of each query (wikiqa .633 and .655) were no better.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
from scipy.special import expit
from sklearn.linear_model import LogisticRegression, RidgeCV

from kmha.errors import InputError
from training.baselines.pair_features import FEATURE_NAMES, PairFeatures

PairTarget = Literal["binary", "classes", "graded"]

COSINE = "tf-idf cosine"
BM25 = "bm25"
LINEAR = "linear model on overlap features"

_PENALTY = 1.0
_RIDGE_PENALTIES = np.logspace(-1, 4, 11)
_STEPS = 5000
# Some thirty weights need no more rows; how rare terms are is learnt from all.
_ROWS_FOR_WEIGHTS = 50_000


@dataclass(frozen=True)
class PairBaseline:
    """Fitted baselines; `fit_pair_baseline` makes them.

    Attributes:
        features: Gives the F overlap features of a pair.
        weights: float64 [F, C], on features as they come; C is 1 unless the target is several classes.
        biases: float64 [C].
        class_ids: int64 [C], the label id of each column; None unless the target is several classes.
        target: What the linear model answers.
        description: One line telling what was trained on what.
    """

    features: PairFeatures
    weights: np.ndarray
    biases: np.ndarray
    class_ids: np.ndarray | None
    target: PairTarget
    description: str

    def scores(self, a: Sequence[str], b: Sequence[str]) -> dict[str, np.ndarray]:
        """Scores R pairs.

        Args:
            a: R texts; for rankings, the queries.
            b: The R texts beside them.

        Returns:
            float64 [R] each: `COSINE` (0 to 1), `BM25` (0 and up) and `LINEAR`: the probability of label 1,
            the grade, or with several classes label ids int64 [R]. Higher is surer.

        Raises:
            ValueError: The lengths differ.
        """
        matrix = self.features.matrix(a, b)
        cosine = "words" if self.features.characters else "characters"
        return {
            COSINE: matrix[:, FEATURE_NAMES.index(f"tf-idf cosine of {cosine}")],
            BM25: matrix[:, FEATURE_NAMES.index("bm25 of b for a")],
            LINEAR: self._linear(matrix),
        }

    def _linear(self, matrix: np.ndarray) -> np.ndarray:
        answers = matrix @ self.weights + self.biases
        if self.class_ids is not None:
            return self.class_ids[answers.argmax(axis=1)]
        return expit(answers[:, 0]) if self.target == "binary" else answers[:, 0]


def fit_pair_baseline(
    train_a: Sequence[str],
    train_b: Sequence[str],
    values: Sequence[float] | np.ndarray,
    *,
    target: PairTarget,
    seed: int,
    max_rows: int = 100_000,
) -> PairBaseline:
    """Trains the baselines on R pairs.

    Args:
        train_a: R texts; for rankings, the queries.
        train_b: The R texts beside them.
        values: R labels: 0 or 1, label ids, or grades.
        target: Which of the three `values` are: `binary`, `classes` or `graded`.
        seed: Makes sampling repeatable.
        max_rows: Rows beyond this are left out by a seeded draw, and the description says so.

    Returns:
        The fitted baselines.

    Raises:
        InputError: No text holds a visible character.
        ValueError: The lengths differ, there is no row, or a label is not 0 or 1 where it must be.
    """
    targets = np.asarray(values, np.float64 if target == "graded" else np.int64)
    num_rows = len(targets)
    if not num_rows or not len(train_a) == len(train_b) == num_rows:
        raise ValueError(
            f"expected as many texts a and b as labels, got {len(train_a)}, {len(train_b)} and {num_rows}"
        )
    if target == "binary" and not np.isin(targets, (0, 1)).all():
        raise ValueError(f"expected labels 0 and 1, got {np.unique(targets)[:5].tolist()}")
    generator = np.random.default_rng(seed)
    train_a, train_b, targets = _draw(generator, max_rows, list(train_a), list(train_b), targets)
    num_drawn = len(targets)
    if not any(text.strip() for texts in (train_a, train_b) for text in texts):
        raise InputError(
            f"pair baseline: expected a text with a visible character, all {2 * num_drawn} texts are blank"
        )
    features = PairFeatures.fit([*train_a, *train_b])
    train_a, train_b, targets = _draw(generator, _ROWS_FOR_WEIGHTS, train_a, train_b, targets)
    matrix = features.matrix(train_a, train_b)
    # A feature that never varies says nothing, and must not divide by zero.
    means, scales = matrix.mean(axis=0), matrix.std(axis=0)
    scales = np.where(scales > 1e-9, scales, np.inf)
    class_ids = np.unique(targets) if target == "classes" else None
    weights, biases = _fit_linear((matrix - means) / scales, targets, target)
    weights = weights / scales[:, None]
    kind = "ridge regression" if target == "graded" else f"logistic regression (C {_PENALTY:g})"
    unit = "character" if features.characters else "word"
    sample = f"a random {num_drawn:,} of " if num_rows > num_drawn else ""
    weighed = f", weights from {len(targets):,} of them" if num_drawn > len(targets) else ""
    description = (
        f"{kind} on {len(FEATURE_NAMES)} overlap features of {unit} 1-3-grams, "
        f"{sample}{num_rows:,} training rows{weighed}"
    )
    return PairBaseline(features, weights, biases - means @ weights, class_ids, target, description)


def _draw(
    generator: np.random.Generator, count: int, a: list[str], b: list[str], targets: np.ndarray
) -> tuple[list[str], list[str], np.ndarray]:
    """At most `count` rows, in their order."""
    if len(targets) <= count:
        return a, b, targets
    rows = np.sort(generator.choice(len(targets), count, replace=False))
    return [a[row] for row in rows.tolist()], [b[row] for row in rows.tolist()], targets[rows]


def _fit_linear(
    features: np.ndarray, targets: np.ndarray, target: PairTarget
) -> tuple[np.ndarray, np.ndarray]:
    """Weights [F, C] and biases [C]; a lone label or grade is always the answer."""
    num_features = features.shape[1]
    if target == "graded" and np.ptp(targets) == 0:
        return np.zeros((num_features, 1)), targets[:1]
    if target == "graded":
        ridge = RidgeCV(alphas=_RIDGE_PENALTIES).fit(features, targets)
        return ridge.coef_[:, None], np.atleast_1d(ridge.intercept_)
    labels = np.unique(targets)
    if len(labels) == 1:
        # As far from .5 as one row of the other label among these would leave it.
        certainty = np.log(len(targets) + 1) * (2 * labels[0] - 1) if target == "binary" else 0.0
        return np.zeros((num_features, 1)), np.array([certainty])
    machine = LogisticRegression(C=_PENALTY, max_iter=_STEPS).fit(features, targets)
    weights, biases = machine.coef_.T, machine.intercept_
    if target == "classes" and len(labels) == 2:
        return np.hstack([-weights, weights]), np.hstack([-biases, biases])
    return weights, biases
