"""The baselines of matching: TF-IDF cosine, BM25, and a linear model on overlap features.

The settings were selected on validation rows or by cross-validation (WikiQA: mean average precision in five folds of
the training queries, then on dev rows):

- Punctuation marks are terms (BM25, WikiQA dev: .565, without .555).
- The cosine uses character n-grams (WikiQA .552 and .608, with words .553 and .560; MRPC accuracy in ten folds
  .722, with words .715). Scripts without spaces use characters and pairs of characters (sts_zh dev accuracy .988, with
  trigrams .987).
- The linear model uses C = 1 (MRPC accuracy .756, WikiQA .635 and .663; C = .1 .752, .635 and .666). Balanced labels
  (MRPC .728) and a ranking loss (WikiQA .633 and .655) were not better.
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
# Enough for about thirty weights; term frequencies are counted on all rows.
_ROWS_FOR_WEIGHTS = 50_000


@dataclass(frozen=True)
class PairBaseline:
    """Fitted baselines, made by `fit_pair_baseline`."""

    features: PairFeatures  # the F overlap features of a pair
    weights: np.ndarray  # float64 [F, C], for features without scaling; C is 1 unless the target is classes
    biases: np.ndarray  # float64 [C]
    class_ids: np.ndarray | None  # label id of each column, int64 [C]; None unless the target is classes
    target: PairTarget
    description: str  # the linear model and its training rows in one line

    def scores(self, a: Sequence[str], b: Sequence[str]) -> dict[str, np.ndarray]:
        """Scores R pairs; in rankings, the queries are the first texts. Raises ValueError if the lengths differ.

        Returns:
            float64 [R] each: `COSINE` (0 to 1), `BM25` (at least 0) and `LINEAR`: the probability of label 1, the
            grade, or label ids int64 [R] for classes.
        """
        matrix = self.features.matrix(a, b)
        cosine = "words" if self.features.characters else "characters"
        return {
            COSINE: matrix[:, FEATURE_NAMES.index(f"tf-idf cosine of {cosine}")],
            BM25: matrix[:, FEATURE_NAMES.index("bm25 of b for a")],
            LINEAR: self._linear(matrix),
        }

    def _linear(self, matrix: np.ndarray) -> np.ndarray:
        outputs = matrix @ self.weights + self.biases
        if self.class_ids is not None:
            return self.class_ids[outputs.argmax(axis=1)]
        return expit(outputs[:, 0]) if self.target == "binary" else outputs[:, 0]


def fit_pair_baseline(
    train_a: Sequence[str],
    train_b: Sequence[str],
    values: Sequence[float] | np.ndarray,
    *,
    target: PairTarget,
    seed: int,
    max_rows: int = 100_000,
) -> PairBaseline:
    """Trains the baselines on at most `max_rows` random ones of R pairs with values: 0 or 1, label ids, or grades.

    Raises InputError if all texts are blank, and ValueError if the lengths differ, there is no row, or a binary label
    is not 0 or 1.
    """
    targets = np.asarray(values, np.float64 if target == "graded" else np.int64)
    num_rows = len(targets)
    if not num_rows or not len(train_a) == len(train_b) == num_rows:
        counts = f"{len(train_a)}, {len(train_b)} and {num_rows}"
        raise ValueError(f"expected as many texts a and b as labels, got {counts}")
    if target == "binary" and not np.isin(targets, (0, 1)).all():
        raise ValueError(f"expected labels 0 and 1, got {np.unique(targets)[:5].tolist()}")
    generator = np.random.default_rng(seed)
    train_a, train_b, targets = _sample(generator, max_rows, list(train_a), list(train_b), targets)
    num_sampled = len(targets)
    if not any(text.strip() for texts in (train_a, train_b) for text in texts):
        given = f"all {2 * num_sampled} texts are blank"
        raise InputError(f"pair baseline: expected a text with a visible character, {given}")
    features = PairFeatures.fit([*train_a, *train_b])
    train_a, train_b, targets = _sample(generator, _ROWS_FOR_WEIGHTS, train_a, train_b, targets)
    matrix = features.matrix(train_a, train_b)
    # A constant feature gets weight 0 instead of a division by 0.
    means, scales = matrix.mean(axis=0), matrix.std(axis=0)
    scales = np.where(scales > 1e-9, scales, np.inf)
    class_ids = np.unique(targets) if target == "classes" else None
    weights, biases = _fit_linear((matrix - means) / scales, targets, target)
    weights = weights / scales[:, None]
    kind = "ridge regression" if target == "graded" else f"logistic regression (C {_PENALTY:g})"
    unit = "character" if features.characters else "word"
    sample = f"a random {num_sampled:,} of " if num_rows > num_sampled else ""
    weighed = f", weights from {len(targets):,} of them" if num_sampled > len(targets) else ""
    description = (
        f"{kind} on {len(FEATURE_NAMES)} overlap features of {unit} 1-3-grams, "
        f"{sample}{num_rows:,} training rows{weighed}"
    )
    return PairBaseline(features, weights, biases - means @ weights, class_ids, target, description)


def _sample(
    generator: np.random.Generator, count: int, a: list[str], b: list[str], targets: np.ndarray
) -> tuple[list[str], list[str], np.ndarray]:
    """At most `count` random rows, in their order."""
    if len(targets) <= count:
        return a, b, targets
    rows = np.sort(generator.choice(len(targets), count, replace=False))
    return [a[row] for row in rows.tolist()], [b[row] for row in rows.tolist()], targets[rows]


def _fit_linear(
    features: np.ndarray, targets: np.ndarray, target: PairTarget
) -> tuple[np.ndarray, np.ndarray]:
    """Weights [F, C] and biases [C]; a single label or grade is always predicted."""
    num_features = features.shape[1]
    if target == "graded" and np.ptp(targets) == 0:
        return np.zeros((num_features, 1)), targets[:1]
    if target == "graded":
        ridge = RidgeCV(alphas=_RIDGE_PENALTIES).fit(features, targets)
        return ridge.coef_[:, None], np.atleast_1d(ridge.intercept_)
    labels = np.unique(targets)
    if len(labels) == 1:
        # The log-odds with one more row of the other label.
        bias = np.log(len(targets) + 1) * (2 * labels[0] - 1) if target == "binary" else 0.0
        return np.zeros((num_features, 1)), np.array([bias])
    machine = LogisticRegression(C=_PENALTY, max_iter=_STEPS).fit(features, targets)
    weights, biases = machine.coef_.T, machine.intercept_
    if target == "classes" and len(labels) == 2:
        return np.hstack([-weights, weights]), np.hstack([-biases, biases])
    return weights, biases
