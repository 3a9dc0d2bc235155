"""The linear bar each fit is held against: TF-IDF n-grams and linear support vector machines, same rows.

`fit_baseline` trains it, `compare` says in a sentence whether the model clears it.

Choices, so that the bar is a fair one: punctuation marks count as words (a question mark is evidence);
scripts that set no spaces between words use characters; one label a row takes C = 1, the usual setting;
several labels a row take C = 0.1 and a threshold per label, because each label is rare among the rows
(GoEmotions, test macro-F1: C = 1 .448, C = 0.1 .488; without thresholds .334).
"""

import re
import warnings
from collections.abc import Mapping, Sequence
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
_TEXTS_LOOKED_AT = 1000
_ROWS_WITH_RARE_TERMS = (
    20_000  # beyond, a term must occur in two rows: a third of the memory, the same accuracy
)
_HELD_OUT_SHARE = 5
MOST_ROWS = 100_000
_LOWER_IS_BETTER = frozenset({"ece", "loss"})


@dataclass
class LinearBaseline:
    """A fitted linear model; `fit_baseline` makes it.

    Attributes:
        vectorizer: Fitted TF-IDF vectorizer with F features.
        weights: float64 [F, C].
        biases: float64 [C].
        class_ids: int64 [C], the label id of each column; None with several labels a row.
        thresholds: float32 [C], on decision scores; None with one label a row.
        description: One line telling what was trained on what.
    """

    vectorizer: TfidfVectorizer
    weights: np.ndarray
    biases: np.ndarray
    class_ids: np.ndarray | None
    thresholds: np.ndarray | None
    description: str

    def decision_scores(self, texts: Sequence[str]) -> np.ndarray:
        """Gives float32 [R, C]: signed distances, not probabilities; higher is surer."""
        return (self.vectorizer.transform(texts) @ self.weights + self.biases).astype(np.float32)

    def predict(self, texts: Sequence[str]) -> np.ndarray:
        """Gives label ids int64 [R], or with several labels a row indicators int8 [R, C]."""
        if not len(texts):
            return (
                np.zeros(0, np.int64)
                if self.class_ids is not None
                else np.zeros((0, len(self.biases)), np.int8)
            )
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
    """Trains the linear baseline.

    Args:
        texts: R training texts.
        targets: int [R] label ids, or with `multi_label` 0 or 1, [R, C].
        multi_label: Whether a row may carry several labels.
        seed: Makes sampling and training repeatable.
        validation: Texts and targets on which the thresholds of several labels are found. None: on a fifth of
            the training rows, held out for that and then trained on as well. Unused with one label a row.
        max_rows: Rows beyond this are left out by a seeded draw, and the description says so.
        of_rows: Rows that the texts were drawn from; None: from none but them.

    Returns:
        The fitted baseline.

    Raises:
        InputError: No text holds a visible character.
        ValueError: The lengths differ.
    """
    targets = np.asarray(targets)
    if len(texts) != len(targets):
        raise ValueError(
            f"expected one target for each text, got {len(texts)} texts and {len(targets)} targets"
        )
    generator = np.random.default_rng(seed)
    num_rows = of_rows or len(texts)
    if len(texts) > max_rows:
        rows = np.sort(generator.choice(len(texts), max_rows, replace=False))
        texts, targets = [texts[int(row)] for row in rows], targets[rows]
    if not any(text.strip() for text in texts):
        raise InputError(
            f"linear baseline: expected a text with a visible character, all {len(texts)} texts are blank"
        )
    vectorizer, features = _fit_features(texts)
    class_ids = thresholds = None
    if multi_label:
        indicators = targets != 0
        if validation is not None and len(validation[0]):
            weights, biases = _several_labels(features, indicators, seed)
            scores, evaluated = (
                vectorizer.transform(validation[0]) @ weights + biases,
                np.asarray(validation[1]),
            )
        else:
            rows = generator.permutation(len(texts))
            held_out, kept = np.split(rows, [max(1, len(rows) // _HELD_OUT_SHARE)])
            weights, biases = _several_labels(features[kept], indicators[kept], seed)
            scores, evaluated = features[held_out] @ weights + biases, indicators[held_out]
            weights, biases = _several_labels(features, indicators, seed)
        thresholds = best_thresholds(evaluated, scores, default=0.0)
    else:
        weights, biases, class_ids = _one_label(features, targets, seed)
    sample = f"a random {len(texts):,} of " if num_rows > len(texts) else ""
    unit = "character" if vectorizer.analyzer == "char" else "word"
    model = "LinearSVC (C 0.1 per label, thresholds on validation rows)" if multi_label else "LinearSVC (C 1)"
    description = f"TF-IDF of {unit} 1-2-grams + {model}, {sample}{num_rows:,} training rows"
    return LinearBaseline(vectorizer, weights, biases, class_ids, thresholds, description)


def drawn_rows(rows: int, seed: int, most: int = MOST_ROWS) -> np.ndarray:
    """The rows that `fit_baseline` draws from so many, int64 ascending: then the texts of others need not be read."""
    if rows <= most:
        return np.arange(rows)
    return np.sort(np.random.default_rng(seed).choice(rows, most, replace=False))


def compare(
    model_scores: Mapping[str, Any],
    baseline_scores: Mapping[str, Any],
    metric: str,
    name: str = "linear baseline",
) -> str:
    """Says in one sentence which of the two is better.

    The difference is called noise when the baseline's figure lies inside the model's bootstrap interval or
    the model's figure inside the baseline's: `scores["intervals"][metric]`, [lower, upper], where given.

    Args:
        model_scores: Scores of the model by name.
        baseline_scores: Scores of the baseline by name, on the same rows.
        metric: Name of the score to compare.
        name: What the baseline is called.

    Returns:
        For example "macro_f1: the linear baseline wins, model 0.8540, linear baseline 0.9073
        (95 % interval 0.8471 to 0.8609 of the model)".
    """
    model, baseline = model_scores.get(metric), baseline_scores.get(metric)
    if model is None or baseline is None:
        return f"{metric}: cannot be compared, model {_figure(model)}, {name} {_figure(baseline)}"
    interval, other = (scores.get("intervals", {}).get(metric) for scores in (model_scores, baseline_scores))
    if model == baseline:
        verdict = f"model and {name} are equal"
    elif _inside(baseline, interval) or _inside(model, other):
        verdict = f"model and {name} differ only within noise"
    elif (model > baseline) != (metric in _LOWER_IS_BETTER):
        verdict = "the model wins"
    else:
        verdict = f"the {name} wins"
    sentence = f"{metric}: {verdict}, model {_figure(model)}, {name} {_figure(baseline)}"
    for owner, ends in (("model", interval), (name, other)):
        if ends:
            return f"{sentence} (bootstrap interval of the {owner} {_figure(ends[0])} to {_figure(ends[1])})"
    return sentence


def uses_characters(texts: Sequence[str]) -> bool:
    """Tells whether most letters belong to Han, kana, Hangul, Thai or Lao; looks at up to 1,000 texts."""
    step = max(1, len(texts) // _TEXTS_LOOKED_AT)
    text = "\n".join(texts[row] for row in range(0, len(texts), step))
    letters = _LETTER.findall(text)
    return 2 * sum(_UNSPACED.match(letter) is not None for letter in letters) > len(letters)


def _fit_features(texts: Sequence[str]) -> tuple[TfidfVectorizer, Any]:
    """Learns the terms of the texts; gives the vectorizer and the texts' features, sparse float64 [R, F]."""
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
    except ValueError:  # no term stands in two rows
        vectorizer.set_params(min_df=1)
        return vectorizer, vectorizer.fit_transform(texts)


def _one_label(features: Any, ids: np.ndarray, seed: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Fits one column per label id that occurs; a lone label is always the answer."""
    class_ids = np.unique(ids).astype(np.int64)
    if len(class_ids) == 1:
        return np.zeros((features.shape[1], 1)), np.zeros(1), class_ids
    weights, biases = _separate(features, ids, 1.0, seed)
    if len(class_ids) == 2:
        weights, biases = np.hstack([-weights, weights]), np.hstack([-biases, biases])
    return weights, biases, class_ids


def _several_labels(features: Any, indicators: np.ndarray, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Fits one column per label; a label that all or no rows carry gets the constant score 1 or -1."""
    num_labels = indicators.shape[1]
    weights, biases = np.zeros((features.shape[1], num_labels)), np.zeros(num_labels)
    for column in range(num_labels):
        target = indicators[:, column]
        if target.all() or not target.any():
            biases[column] = 1.0 if target.any() else -1.0
        else:
            weight, bias = _separate(features, target, 0.1, seed)
            weights[:, column], biases[column] = weight[:, 0], bias[0]
    return weights, biases


def _separate(features: Any, target: np.ndarray, penalty: float, seed: int) -> tuple[np.ndarray, np.ndarray]:
    with warnings.catch_warnings():
        # On inseparable rows the last digits take long to settle and change no answer worth waiting for.
        warnings.simplefilter("ignore", ConvergenceWarning)
        machine = LinearSVC(C=penalty, random_state=seed, dual="auto").fit(features, target)
    return machine.coef_.T, np.atleast_1d(machine.intercept_)


def _inside(value: float, interval: list[float] | None) -> bool:
    return bool(interval) and interval[0] <= value <= interval[1]


def _figure(value: float | None) -> str:
    return "undefined" if value is None else f"{value:.4f}"
