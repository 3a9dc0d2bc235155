"""The linear baseline of classification: TF-IDF n-grams and linear support vector machines.

Punctuation marks are terms. Scripts without spaces between words use characters. One label per row uses C = 1. Several
labels per row use C = 0.1 and a threshold per label, because each label is rare (GoEmotions, test macro-F1: C = 1 .448,
C = 0.1 .488; without thresholds .334).
"""

import re
import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from sklearn.exceptions import ConvergenceWarning
from sklearn.feature_extraction.text import TfidfVectorizer
from sklearn.svm import LinearSVC

from kmha.errors import InputError
from training.metrics.thresholds import best_thresholds

WORD_PATTERN = r"(?u)\w+|[^\w\s]"
_LETTER = re.compile(r"[^\W\d_]")
# Thai and Lao, Hangul (jamo, compatibility, syllables), kana, and the Han blocks.
_UNSPACED = re.compile(
    r"[\u0e00-\u0eff\u1100-\u11ff\u3040-\u30ff\u3130-\u318f\u31f0-\u31ff\uac00-\ud7af"
    r"\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff\uff66-\uff9f\U00020000-\U0003ffff]"
)
_TEXTS_INSPECTED = 1000
# With more rows, min_df is 2: a third of the memory, the same accuracy.
_ROWS_WITH_RARE_TERMS = 20_000
_HELD_OUT_DIVISOR = 5
MOST_ROWS = 100_000


@dataclass
class LinearBaseline:
    """A fitted linear model, made by `fit_baseline`."""

    vectorizer: TfidfVectorizer  # with F features
    weights: np.ndarray  # float64 [F, C]
    biases: np.ndarray  # float64 [C]
    class_ids: np.ndarray | None  # label id of each column, int64 [C]; None with several labels per row
    thresholds: np.ndarray | None  # of the decision scores, float32 [C]; None with one label per row
    description: str  # the model and its training rows in one line

    def decision_scores(self, texts: Sequence[str]) -> np.ndarray:
        """Signed distances float32 [R, C]; higher is more confident."""
        return (self.vectorizer.transform(texts) @ self.weights + self.biases).astype(np.float32)

    def predict(self, texts: Sequence[str]) -> np.ndarray:
        """Label ids int64 [R]; with several labels per row 0 or 1, int8 [R, C]."""
        if not len(texts):
            empty = np.zeros((0, len(self.biases)), np.int8)
            return empty if self.class_ids is None else np.zeros(0, np.int64)
        scores = self.decision_scores(texts)
        if self.class_ids is not None:
            return self.class_ids[scores.argmax(axis=1)]
        return (scores >= self.thresholds).astype(np.int8)


def fit_baseline(
    texts: Sequence[str],
    targets: np.ndarray,
    *,
    multi_label: bool,
    seed: int,
    validation: tuple[Sequence[str], np.ndarray] | None = None,
    max_rows: int = MOST_ROWS,
    of_rows: int | None = None,
) -> LinearBaseline:
    """Trains the linear baseline on at most `max_rows` random texts with label ids int [R], or several labels [R, C].

    The thresholds of several labels are selected on the validation texts and targets. Without any, a fifth of the
    training rows is held out, then the model is trained on all rows. The texts may be sampled from `of_rows` rows.
    Raises InputError if all texts are blank, and ValueError if the lengths differ.
    """
    targets = np.asarray(targets)
    if len(texts) != len(targets):
        counts = f"{len(texts)} texts and {len(targets)} targets"
        raise ValueError(f"expected one target for each text, got {counts}")
    generator = np.random.default_rng(seed)
    num_rows = of_rows or len(texts)
    if len(texts) > max_rows:
        rows = np.sort(generator.choice(len(texts), max_rows, replace=False))
        texts, targets = [texts[int(row)] for row in rows], targets[rows]
    if not any(text.strip() for text in texts):
        given = f"all {len(texts)} texts are blank"
        raise InputError(f"linear baseline: expected a text with a visible character, {given}")
    vectorizer, features = _fit_features(texts)
    class_ids = thresholds = None
    if multi_label:
        indicators = targets != 0
        if validation is not None and len(validation[0]):
            weights, biases = _fit_several_labels(features, indicators, seed)
            scores = vectorizer.transform(validation[0]) @ weights + biases
            evaluated = np.asarray(validation[1])
        else:
            rows = generator.permutation(len(texts))
            held_out, others = np.split(rows, [max(1, len(rows) // _HELD_OUT_DIVISOR)])
            weights, biases = _fit_several_labels(features[others], indicators[others], seed)
            scores, evaluated = features[held_out] @ weights + biases, indicators[held_out]
            weights, biases = _fit_several_labels(features, indicators, seed)
        thresholds = best_thresholds(evaluated, scores, default=0.0)
    else:
        weights, biases, class_ids = _fit_one_label(features, targets, seed)
    sample = f"a random {len(texts):,} of " if num_rows > len(texts) else ""
    unit = "character" if vectorizer.analyzer == "char" else "word"
    model = "LinearSVC (C 0.1 per label, thresholds on validation rows)" if multi_label else "LinearSVC (C 1)"
    description = f"TF-IDF of {unit} 1-2-grams + {model}, {sample}{num_rows:,} training rows"
    return LinearBaseline(vectorizer, weights, biases, class_ids, thresholds, description)


def sample_rows(rows: int, seed: int, most: int = MOST_ROWS) -> np.ndarray:
    """Samples rows as `fit_baseline` does, int64 ascending, so that only their texts are read."""
    if rows <= most:
        return np.arange(rows)
    return np.sort(np.random.default_rng(seed).choice(rows, most, replace=False))


def uses_characters(texts: Sequence[str]) -> bool:
    """Whether most letters of up to 1,000 of the texts are Han, kana, Hangul, Thai or Lao."""
    step = max(1, len(texts) // _TEXTS_INSPECTED)
    text = "\n".join(texts[row] for row in range(0, len(texts), step))
    letters = _LETTER.findall(text)
    return 2 * sum(_UNSPACED.match(letter) is not None for letter in letters) > len(letters)


def _fit_features(texts: Sequence[str]) -> tuple[TfidfVectorizer, Any]:
    """The fitted vectorizer, and the features of the texts, sparse float64 [R, F]."""
    vectorizer = TfidfVectorizer(
        analyzer="char" if uses_characters(texts) else "word",
        ngram_range=(1, 2),
        min_df=1 if len(texts) <= _ROWS_WITH_RARE_TERMS else 2,
        sublinear_tf=True,
    )
    if vectorizer.analyzer == "word":
        vectorizer.set_params(token_pattern=WORD_PATTERN)
    try:
        return vectorizer, vectorizer.fit_transform(texts)
    except ValueError:  # no term occurs in two rows
        vectorizer.set_params(min_df=1)
        return vectorizer, vectorizer.fit_transform(texts)


def _fit_one_label(features: Any, ids: np.ndarray, seed: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Fits a column per label id; a single label is always predicted."""
    class_ids = np.unique(ids).astype(np.int64)
    if len(class_ids) == 1:
        return np.zeros((features.shape[1], 1)), np.zeros(1), class_ids
    weights, biases = _fit_svm(features, ids, 1.0, seed)
    if len(class_ids) == 2:
        weights, biases = np.hstack([-weights, weights]), np.hstack([-biases, biases])
    return weights, biases, class_ids


def _fit_several_labels(features: Any, indicators: np.ndarray, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Fits a column per label; a label of all or of no rows gets the constant score 1 or -1."""
    num_labels = indicators.shape[1]
    weights, biases = np.zeros((features.shape[1], num_labels)), np.zeros(num_labels)
    for column in range(num_labels):
        target = indicators[:, column]
        if target.all() or not target.any():
            biases[column] = 1.0 if target.any() else -1.0
        else:
            weight, bias = _fit_svm(features, target, 0.1, seed)
            weights[:, column], biases[column] = weight[:, 0], bias[0]
    return weights, biases


def _fit_svm(features: Any, target: np.ndarray, penalty: float, seed: int) -> tuple[np.ndarray, np.ndarray]:
    with warnings.catch_warnings():
        # An approximate optimum is sufficient.
        warnings.simplefilter("ignore", ConvergenceWarning)
        machine = LinearSVC(C=penalty, random_state=seed, dual="auto").fit(features, target)
    return machine.coef_.T, np.atleast_1d(machine.intercept_)
