"""The linear baseline of classification: TF-IDF n-grams and linear support vector machines.

Punctuation marks are terms. Scripts without spaces between words use characters. Validation rows choose the n-grams and
C, for several labels per row by macro F1 with a threshold per label. The chosen model is then trained on training and
validation rows. A fixed choice is weak on other data: 1-2-grams with C = 0.1, once chosen on GoEmotions, have a test
macro F1 of .408 on reuters21578 (90 labels), and the choice by validation rows .582.
"""

import dataclasses
import functools
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
from training.metrics.confusion import f1, indicator_counts
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
# The n of the n-grams of words and of characters, tried with C = 1; then C goes up or down while the score rises.
_ORDERS = {"word": ((1, 2), (1, 1)), "char": ((1, 2), (1, 3))}
_PENALTIES = (0.1, 0.3, 1.0, 3.0, 10.0)
_FIRST_PENALTY = 2
# The choice is made on random rows: at most so many, with so many characters, and so many rows times labels.
_CHOICE_ROWS, _CHOICE_CHARACTERS, _CHOICE_WORK = 20_000, 6_000_000, 700_000
_FEWEST_CHOICE_ROWS = 2_000


@dataclass
class LinearBaseline:
    """A fitted linear model, made by `fit_baseline`."""

    vectorizer: TfidfVectorizer  # with F features
    weights: np.ndarray  # float64 [F, C]
    biases: np.ndarray  # float64 [C]
    class_ids: np.ndarray | None  # label id of each column, int64 [C]; None with several labels per row
    thresholds: np.ndarray | None  # of the decision scores, float32 [C]; None with one label per row
    description: str = ""  # the model and its training rows in one line
    validation_score: float = 0.0  # of the choice: accuracy, or macro F1 with several labels

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
    join_validation: bool = True,
    max_rows: int = MOST_ROWS,
    of_rows: int | None = None,
) -> LinearBaseline:
    """Trains the linear baseline on at most `max_rows` random texts with label ids int [R], or several labels [R, C].

    n-grams, C and the thresholds of several labels are chosen on at most 20,000 of the validation texts and targets, on
    which the chosen model is then trained too, unless `join_validation` is false: because they are evaluated. Without
    any, a fifth of the training rows is held out. The texts may be sampled from `of_rows` rows. Raises InputError if
    all texts are blank, and ValueError if the lengths differ.
    """
    texts, targets = list(texts), np.asarray(targets)
    if len(texts) != len(targets):
        counts = f"{len(texts)} texts and {len(targets)} targets"
        raise ValueError(f"expected one target for each text, got {counts}")
    num_rows = of_rows or len(texts)
    texts, targets = _sample(texts, targets, max_rows, np.random.default_rng(seed))
    # Of its own, so that `sample_rows` does not change the choice.
    generator = np.random.default_rng([seed, 1])
    if not any(text.strip() for text in texts):
        given = f"all {len(texts)} texts are blank"
        raise InputError(f"linear baseline: expected a text with a visible character, {given}")
    sample = f"a random {len(texts):,} of " if num_rows > len(texts) else ""
    rows = f"{sample}{num_rows:,} training rows"
    train, every = (texts, targets), (texts, targets)
    if validation is not None and len(validation[0]):
        held_out = _sample(list(validation[0]), np.asarray(validation[1]), _CHOICE_ROWS, generator)
        if join_validation:
            every = [*texts, *held_out[0]], np.concatenate([targets, held_out[1]])
            rows += f" and {len(held_out[0]):,} validation rows"
    else:
        order = generator.permutation(len(texts))
        parts = np.split(order, [max(1, len(order) // _HELD_OUT_DIVISOR)])
        held_out, train = (([texts[row] for row in part.tolist()], targets[part]) for part in parts)
    ngrams, penalty, score = _choose(train, held_out, seed, generator)
    thresholds = None
    if multi_label:
        thresholds = _thresholds(_fit(*train, ngrams, penalty, seed), *held_out)
    fitted = _fit(*every, ngrams, penalty, seed)
    unit = "character" if fitted.vectorizer.analyzer == "char" else "word"
    several = " per label, with thresholds" if multi_label else ""
    grams = f"1-{ngrams[1]}-grams" if ngrams[1] > 1 else "1-grams"
    description = f"TF-IDF of {unit} {grams} + LinearSVC (C {penalty:g}{several}), {rows}"
    return dataclasses.replace(fitted, thresholds=thresholds, description=description, validation_score=score)


def _sample(
    texts: list[str], targets: np.ndarray, most: int, generator: np.random.Generator
) -> tuple[list[str], np.ndarray]:
    """At most so many random rows, in their order."""
    if len(texts) <= most:
        return texts, targets
    rows = np.sort(generator.choice(len(texts), most, replace=False))
    return [texts[row] for row in rows.tolist()], targets[rows]


def _choose(
    train: tuple[list[str], np.ndarray],
    held_out: tuple[list[str], np.ndarray],
    seed: int,
    generator: np.random.Generator,
) -> tuple[tuple[int, int], float, float]:
    """The n-grams, C, and their accuracy, or macro F1 with several labels, on the rows that are held out."""
    texts, targets = train
    orders = _ORDERS["char" if uses_characters(texts) else "word"]
    if not any(text.strip() for text in texts) or not len(held_out[0]):
        return orders[0], _PENALTIES[_FIRST_PENALTY], 0.0
    num_labels = targets.shape[1] if targets.ndim == 2 else len(np.unique(targets))
    by_length = _CHOICE_CHARACTERS * len(texts) // max(1, sum(map(len, texts)))
    most = max(_FEWEST_CHOICE_ROWS, min(_CHOICE_ROWS, by_length, _CHOICE_WORK // num_labels))
    few = _sample(texts, targets, most, generator)
    if not any(text.strip() for text in few[0]):
        few = train
    features = functools.cache(lambda ngrams: _fit_features(few[0], ngrams))

    @functools.cache
    def score(ngrams: tuple[int, int], place: int) -> float:
        return _held_out_score(_fit_machines(*features(ngrams), few[1], _PENALTIES[place], seed), *held_out)

    ngrams = max(orders, key=lambda each: score(each, _FIRST_PENALTY))
    best = _FIRST_PENALTY
    for step in (1, -1):
        while 0 <= best + step < len(_PENALTIES) and score(ngrams, best + step) > score(ngrams, best):
            best += step
        if best != _FIRST_PENALTY:
            break
    return ngrams, _PENALTIES[best], score(ngrams, best)


def _held_out_score(fitted: LinearBaseline, texts: list[str], targets: np.ndarray) -> float:
    if targets.ndim == 1:
        return float((fitted.predict(texts) == targets).mean())
    predicted = fitted.decision_scores(texts) >= _thresholds(fitted, texts, targets)
    return float(f1(indicator_counts(targets != 0, predicted)).mean())


def _thresholds(fitted: LinearBaseline, texts: list[str], targets: np.ndarray) -> np.ndarray:
    return best_thresholds(targets != 0, fitted.decision_scores(texts), default=0.0)


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


def _fit(
    texts: list[str], targets: np.ndarray, ngrams: tuple[int, int], penalty: float, seed: int
) -> LinearBaseline:
    """A model without thresholds and description."""
    return _fit_machines(*_fit_features(texts, ngrams), targets, penalty, seed)


def _fit_features(texts: Sequence[str], ngrams: tuple[int, int]) -> tuple[TfidfVectorizer, Any]:
    """The fitted vectorizer, and the features of the texts, sparse float64 [R, F]."""
    vectorizer = TfidfVectorizer(
        analyzer="char" if uses_characters(texts) else "word",
        ngram_range=ngrams,
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


def _fit_machines(
    vectorizer: TfidfVectorizer, features: Any, targets: np.ndarray, penalty: float, seed: int
) -> LinearBaseline:
    if targets.ndim == 2:
        weights, biases = _fit_several_labels(features, targets != 0, penalty, seed)
        return LinearBaseline(vectorizer, weights, biases, None, None)
    weights, biases, class_ids = _fit_one_label(features, targets, penalty, seed)
    return LinearBaseline(vectorizer, weights, biases, class_ids, None)


def _fit_one_label(
    features: Any, ids: np.ndarray, penalty: float, seed: int
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Fits a column per label id; a single label is always predicted."""
    class_ids = np.unique(ids).astype(np.int64)
    if len(class_ids) == 1:
        return np.zeros((features.shape[1], 1)), np.zeros(1), class_ids
    weights, biases = _fit_svm(features, ids, penalty, seed)
    if len(class_ids) == 2:
        weights, biases = np.hstack([-weights, weights]), np.hstack([-biases, biases])
    return weights, biases, class_ids


def _fit_several_labels(
    features: Any, indicators: np.ndarray, penalty: float, seed: int
) -> tuple[np.ndarray, np.ndarray]:
    """Fits a column per label; a label of all or of no rows gets the constant score 1 or -1."""
    num_labels = indicators.shape[1]
    weights, biases = np.zeros((features.shape[1], num_labels)), np.zeros(num_labels)
    for column in range(num_labels):
        target = indicators[:, column]
        if target.all() or not target.any():
            biases[column] = 1.0 if target.any() else -1.0
        else:
            weight, bias = _fit_svm(features, target, penalty, seed)
            weights[:, column], biases[column] = weight[:, 0], bias[0]
    return weights, biases


def _fit_svm(features: Any, target: np.ndarray, penalty: float, seed: int) -> tuple[np.ndarray, np.ndarray]:
    with warnings.catch_warnings():
        # An approximate optimum is sufficient.
        warnings.simplefilter("ignore", ConvergenceWarning)
        machine = LinearSVC(C=penalty, random_state=seed, dual="auto").fit(features, target)
    return machine.coef_.T, np.atleast_1d(machine.intercept_)
