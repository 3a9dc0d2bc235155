"""Fits the linear path of a classifier: which n-grams it knows, C, and the scale of its logits."""

import dataclasses
import functools
import itertools
import logging
import warnings
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, NamedTuple

import numpy as np
import scipy.sparse
from sklearn.exceptions import ConvergenceWarning
from sklearn.svm import LinearSVC

from kmha.models.classifier import TextClassifier
from training.config.defaults import FEW_TEXTS
from training.data.inputs import Source
from training.data.split import random_folds
from training.linear.ngrams import (
    MIN_TEXTS,
    Ngrams,
    in_small_tables,
    known_ngrams,
    most_ngrams,
)
from training.linear.weighing import fit_scale, mean_and_error, smoothed_losses, weigh
from training.runtime.cpu_sharding import intra_op_cores

logger = logging.getLogger("kmha")

# Tried in turn on validation rows: the n of the n-grams with C = 1, then C with the most important of them.
ORDERS: tuple[tuple[int, ...], ...] = ((1,), (1, 2), (1, 2, 3))
# The next C on either side is tried only if the last one on this side is the best of the others, and is chosen only if
# it is certainly better: see `is_certainly_better`.
PENALTIES, NEXT_PENALTIES, CERTAIN_ERRORS = (1.0, 0.3, 3.0), {0.3: 0.1, 3.0: 10.0}, 2.0
# Fewer validation rows choose nothing: n is 1 and 2, and C is 1.
FEWEST_TO_CHOOSE = 100
# Of the support vector machines; LIBLINEAR's own default. With scikit-learn's 1e-4 validation losses differ by 2e-4 at
# most, and a fit takes twice as long.
TOLERANCE = 0.1
# Of a feature that does not depend on a label, before the lengths are restored.
SMALLEST_SCALE = 1e-3
# The most important n-grams are chosen from so many frequent ones. With hundreds of labels few n-grams are known, and
# the words of a label are not among the most frequent.
CANDIDATES = 400_000
# Training rows of a label with half of the encoder's factor.
TRUSTED_ROWS = 100
FOLDS = 4
CHUNK_ROWS = 10_000
# Random training rows are enough: at most so many, with so many tokens in all.
MAX_ROWS, MAX_TOKENS = 100_000, 10_000_000
# With more labels, too few n-grams fit into the size of the linear path.
MAX_LABELS = 1_000


@dataclasses.dataclass(frozen=True)
class Tokens:
    """Tokenized texts: concatenated token ids int32 [N], tokens of each text int [R], targets [R, …], weights [R]."""

    flat: np.ndarray
    lengths: np.ndarray
    targets: np.ndarray
    weights: np.ndarray

    @classmethod
    def of(cls, source: Any, rows: np.ndarray | None = None) -> "Tokens":
        """The tokens of some rows of a source, int [R]; None: of all."""
        rows = np.arange(len(source.rows)) if rows is None else rows
        flat, lengths = source.tokens.gather(source.rows[rows])
        return cls(flat, lengths, source.targets[rows], source.weights[rows])

    @classmethod
    def join(cls, parts: Sequence["Tokens"]) -> "Tokens":
        """The texts of all parts."""
        values = ([getattr(part, field.name) for part in parts] for field in dataclasses.fields(cls))
        return cls(*map(np.concatenate, values))


@dataclasses.dataclass(frozen=True)
class Problem:
    """Rows to which support vector machines are fitted.

    Attributes:
        features: float64 [R, F].
        targets: The label of each row, int [R]; with several labels 0 or 1, [R, C].
        weights: Of the rows, [R].
        outputs: Number of labels.
        subwords: See `Ngrams`, float64 [F, G].
    """

    features: scipy.sparse.csr_matrix
    targets: np.ndarray
    weights: np.ndarray
    outputs: int
    subwords: scipy.sparse.csr_matrix | None = None

    @classmethod
    def of(cls, ngrams: Ngrams, rows: Tokens, outputs: int) -> "Problem":
        """The problem of some rows."""
        features = ngrams.features(rows.flat, rows.lengths)
        return cls(features, rows.targets, rows.weights, outputs, ngrams.subwords)

    @property
    def memberships(self) -> np.ndarray:
        """Whether a row has a label, [R, C]."""
        return self.targets if self.targets.ndim == 2 else self.targets[:, None] == np.arange(self.outputs)

    @functools.cached_property
    def fitted_features(self) -> scipy.sparse.csr_matrix:
        """The features with those of the subwords, float64 [R, F + G].

        A subword has the weighted sum of the features of its tokens. So its weight is a part of their weights, and the
        fitted model needs no subwords.
        """
        if self.subwords is None:
            return self.features
        joined = scipy.sparse.hstack([self.features, self.features @ self.subwords], format="csr")
        joined.sort_indices()
        return joined

    @functools.cached_property
    def scales(self) -> np.ndarray:
        """See `feature_scales`, float64 [F + G, C]."""
        return feature_scales(self.fitted_features, self.memberships, self.weights)

    def splits(self, folds: np.ndarray) -> Iterator["Split"]:
        """Each fold of the rows, int [R], and the problem of the others."""
        for fold in np.unique(folds):
            rows, others = np.flatnonzero(folds == fold), np.flatnonzero(folds != fold)
            problem = dataclasses.replace(
                self,
                features=self.features[others],
                targets=self.targets[others],
                weights=self.weights[others],
            )
            yield Split(problem, rows, self.features[rows])

    def machines(
        self, penalty: float, seed: int, is_scaled: bool = True
    ) -> Iterator[tuple[int, np.ndarray, float]]:
        """Each label with the weights, float64 [F], and the bias of its margins.

        A label without rows has the margin -1, one of all rows 1.

        `is_scaled`: whether features are multiplied by `scales` for the fit.
        """
        size, memberships, features = self.features.shape[1], self.memberships, self.fitted_features
        scaled, scales = features.copy() if is_scaled else features, 1.0
        # Two labels, one for each row, have opposite margins.
        known = np.flatnonzero(memberships.any(axis=0))
        opposite = size > 0 and self.targets.ndim == 1 and len(known) == 2
        for label in range(self.outputs):
            members = memberships[:, label]
            if opposite and label == known[0]:
                continue
            if not size or members.all() or not members.any():
                yield label, np.zeros(size), 1.0 if size and members.all() else -1.0
                continue
            if is_scaled:
                scales = self.scales[:, label]
                scaled.data = features.data * scales[features.indices]
            weights, bias = _machine(scaled, members, penalty, seed, self.weights)
            weights = weights * scales
            if self.subwords is not None:
                weights = weights[:size] + self.subwords @ weights[size:]
            yield label, weights, bias
            if opposite:
                yield int(known[0]), -weights, -bias

    def fit(self, penalty: float, seed: int) -> tuple[np.ndarray, np.ndarray]:
        """Kernel float64 [F, C] and bias [C] of the margins; see `machines`."""
        kernel, bias = np.zeros((self.features.shape[1], self.outputs)), np.zeros(self.outputs)
        for label, weights, intercept in self.machines(penalty, seed):
            kernel[:, label], bias[label] = weights, intercept
        return kernel, bias

    def margins(
        self, features: scipy.sparse.csr_matrix, penalty: float, seed: int, is_scaled: bool = True
    ) -> tuple[np.ndarray, np.ndarray]:
        """Margins of other rows, float64 [R', C], and the importance of each feature of the problem, float64 [F].

        It is the largest weight times the root mean square of the feature. One label after the other is fitted,
        because a kernel of many features and labels is too large for memory.
        """
        margins, largest = np.zeros((features.shape[0], self.outputs)), np.zeros(features.shape[1])
        for label, weights, bias in self.machines(penalty, seed, is_scaled):
            margins[:, label] = features @ weights + bias
            np.maximum(largest, np.abs(weights), out=largest)
        return margins, largest * np.sqrt(self.features.power(2).sum(axis=0).A1)

    def importance(self, seed: int) -> np.ndarray:
        """The importance of each feature, float64 [F], by a fit with C 1 without scales; see `margins`."""
        return self.margins(self.features[:0], 1.0, seed, is_scaled=False)[1]


class Split(NamedTuple):
    """Rows, int [R], their features, and the problem of the other rows."""

    others: Problem
    rows: np.ndarray
    features: scipy.sparse.csr_matrix


class Attempt(NamedTuple):
    """n-grams with their problem, and the features of validation rows, or the splits of the problem."""

    ngrams: Ngrams
    problem: Problem
    held_out: scipy.sparse.csr_matrix | list[Split]


@dataclasses.dataclass(frozen=True)
class LinearPath:
    """A fitted linear classifier on n-grams.

    Attributes:
        ngrams: The known n-grams.
        kernel: float64 [F, C].
        bias: float64 [C].
        penalty: C of the support vector machine.
        scale: Of the logits to the margins of the support vector machine, and what is added to them.
        description: The model in one line.
        validation_logits: Of the validation rows, or of each row by a fit on the other folds, float32 [R, C].
        most: Number of n-grams that it may know.
        tokens: All tokens, by id.
        label_rows: With several labels the training rows of each, int [C].
        is_base: Whether it is the model to improve on, not a pretrained encoder.
    """

    ngrams: Ngrams
    kernel: np.ndarray
    bias: np.ndarray
    penalty: float
    scale: tuple[float, float]
    description: str
    validation_logits: np.ndarray
    most: int
    tokens: Sequence[str]
    label_rows: np.ndarray | None = None
    is_base: bool = True

    def weigh(self, linear: np.ndarray, encoder: np.ndarray, targets: np.ndarray) -> tuple[float, Any]:
        """The factors of logits of both paths, [R, C]; with several labels the encoder has one for each label, [C].

        See `weigh`. An encoder learns rare labels worse than the path, and few validation rows show it. So its factor
        of a label with n training rows is n / (n + TRUSTED_ROWS) of the common one.
        """
        if not self.is_base:
            of_encoder, factor = weigh(encoder, linear, targets)
            return factor, of_encoder
        if self.label_rows is None:
            return weigh(linear, encoder, targets)
        trust = self.label_rows / (self.label_rows + TRUSTED_ROWS)
        factor, common = weigh(linear, encoder * trust, targets)
        return factor, (common * trust).astype(np.float32)

    def logits(self, source: Source, rows: np.ndarray | None = None) -> np.ndarray:
        """Logits float32 [R, C] of some rows of a source, int [R]; None: of all."""
        tokens = Tokens.of(source, rows)
        return (self.ngrams.features(tokens.flat, tokens.lengths) @ self.kernel + self.bias).astype(
            np.float32
        )

    def problem(self, rows: Tokens) -> Problem:
        """The problem of other rows with the same n-grams."""
        return Problem.of(self.ngrams, rows, len(self.bias))

    def assign(self, model: TextClassifier, factor: float = 1.0) -> None:
        """Sets the weights of a model's linear path, with the logits multiplied by a factor."""
        ngrams = self.ngrams
        assert model.linear is not None
        model.linear.assign(
            ngrams.keys, ngrams.idf, self.kernel * factor, self.bias * factor, ngrams.displacements
        )

    def copy_into(self, model: TextClassifier, factor: float = 1.0) -> TextClassifier:
        """A copy of a model with this path in place of its own, with the logits multiplied by a factor."""
        copy = model.with_linear_path(len(self.ngrams.keys), self.ngrams.slots)
        self.assign(copy, factor)
        return copy

    def refit(self, parts: Sequence[Source], seed: int) -> "LinearPath":
        """The path with the same penalty and scale, fitted on the rows of several sources, first the training rows.

        With few training rows it knows the n-grams of all rows, otherwise the same as before.
        """
        rows = Tokens.join([Tokens.of(part, sample_rows(part, seed)) for part in parts])
        path = self if len(parts[0].rows) >= FEW_TEXTS else self._with_ngrams_of(rows, seed)
        kernel, bias = path.problem(rows).fit(self.penalty, seed)
        scale, shift = self.scale
        return dataclasses.replace(path, kernel=kernel * scale, bias=bias * scale + shift)

    def _with_ngrams_of(self, rows: Tokens, seed: int) -> "LinearPath":
        """The path with the most important n-grams of other texts, for a new fit."""
        orders = tuple(order for order, size in enumerate(self.ngrams.slots, 1) if size)
        frequent = known_ngrams(
            rows.flat, rows.lengths, orders, self.ngrams.slots[0], CANDIDATES, min_texts=1
        )
        problem = Problem.of(frequent, rows, len(self.bias))
        known = in_small_tables(frequent, problem.importance(seed), self.most)
        ngrams = known.with_unseen(self.tokens, rows.flat, self.most).with_subwords(self.tokens)
        return dataclasses.replace(self, ngrams=ngrams)


def fit_linear_path(
    train: Source,
    validation: Source | np.ndarray,
    outputs: int,
    tokens: Sequence[str],
    seed: int,
    alone: bool = False,
) -> LinearPath | None:
    """Fits linear support vector machines on n-grams; n-grams, penalty and scale are chosen on validation rows.

    Args:
        train: The training rows.
        validation: The validation rows; or the fold of each training row, int [R], for cross-validation.
        outputs: Number of labels.
        tokens: All tokens, by id.
        seed: Random seed.
        alone: Whether the model has no encoder; then fewer n-grams are known.

    Returns:
        The path; None with too many labels, or without n-grams of several texts.
    """
    if outputs > MAX_LABELS:
        logger.info(f"no linear path: {outputs:,} labels are more than {MAX_LABELS:,}")
        return None
    folds = validation if isinstance(validation, np.ndarray) else None
    rows = Tokens.of(train, sample_rows(train, seed) if folds is None else None)
    checked = rows if isinstance(validation, np.ndarray) else Tokens.of(validation)
    most = most_ngrams(outputs, rows.targets.ndim == 2, alone)
    has_few_texts = folds is None and len(rows.lengths) < FEW_TEXTS
    min_texts = 1 if has_few_texts else MIN_TEXTS

    def attempt(ngrams: Ngrams) -> Attempt:
        problem = Problem.of(ngrams, rows, outputs)
        if folds is not None:
            return Attempt(ngrams, problem, list(problem.splits(folds)))
        return Attempt(ngrams, problem, ngrams.features(checked.flat, checked.lengths))

    def candidates(orders: tuple[int, ...]) -> Attempt:
        return attempt(known_ngrams(rows.flat, rows.lengths, orders, len(tokens), CANDIDATES, min_texts))

    def ranked(tried: Attempt) -> tuple[float, np.ndarray, list[np.ndarray]]:
        """The loss, and the importance of each n-gram to all training rows and to those of each split."""
        # Without scales: the most important n-grams are then spread more evenly over many labels.
        by_split = []
        if isinstance(tried.held_out, list):
            margins, by_split = predict_splits(tried.held_out, 1.0, seed, is_scaled=False)
            importance = tried.problem.importance(seed)
        else:
            margins, importance = tried.problem.margins(tried.held_out, 1.0, seed, is_scaled=False)
        return fit_scale(margins, checked.targets)[1], importance, by_split

    def own_split(ngrams: Ngrams, importance: np.ndarray, number: int) -> Split:
        """A split with the n-grams that are most important to its training rows."""
        columns = np.sort(np.argsort(-importance, kind="stable")[:most])
        own = dataclasses.replace(ngrams, keys=ngrams.keys[columns], idf=ngrams.idf[columns])
        problem = Problem.of(own.with_subwords(tokens), rows, outputs)
        assert folds is not None
        return next(itertools.islice(problem.splits(folds), number, None))

    def fitted(tried: Attempt, penalty: float) -> tuple[float, LinearPath]:
        kernel, bias = tried.problem.fit(penalty, seed)
        if isinstance(tried.held_out, list):
            margins, _ = predict_splits(tried.held_out, penalty, seed)
        else:
            margins = tried.held_out @ kernel + bias
        (scale, shift), loss = fit_scale(margins, checked.targets)
        last = int(tried.ngrams.keys[:, 0].max(initial=1))
        kind = f"1-{last}-grams" if last > 1 else "single tokens"
        description = f"{len(kernel):,} {kind}, C {penalty:g}, validation loss {loss:.3f}"
        return loss, LinearPath(
            tried.ngrams,
            kernel * scale,
            bias * scale + shift,
            penalty,
            (scale, shift),
            description,
            (margins * scale + shift).astype(np.float32),
            most,
            tokens,
            rows.targets.sum(axis=0) if rows.targets.ndim == 2 else None,
        )

    few = len(checked.targets) < FEWEST_TO_CHOOSE
    with ThreadPoolExecutor(intra_op_cores()) as pool:
        inputs = list(pool.map(candidates, ORDERS[1:2] if few else ORDERS))
    # One after the other: liblinear has one random generator for all threads.
    ranks = [ranked(each) for each in inputs]
    best = int(np.argmin([loss for loss, *_ in ranks]))
    frequent, (_, importance, by_split) = inputs[best].ngrams, ranks[best]
    del inputs, ranks
    chosen = in_small_tables(frequent, importance, most)
    if has_few_texts and len(chosen.keys):
        # Most words of new texts are other words.
        chosen = chosen.with_unseen(tokens, rows.flat, most)
    known = attempt(chosen.with_subwords(tokens))
    if by_split and len(frequent.keys) > most:
        # The labels of a fold must not decide which n-grams predict them.
        splits = [own_split(frequent, each, number) for number, each in enumerate(by_split)]
        known = known._replace(held_out=splits)
    if not len(known.ngrams.keys):
        return None
    found = [fitted(known, each) for each in (PENALTIES[:1] if few else PENALTIES)]
    path = min(found, key=lambda each: each[0])[1]
    if path.penalty in NEXT_PENALTIES:
        _, following = fitted(known, NEXT_PENALTIES[path.penalty])
        if is_certainly_better(following.validation_logits, path.validation_logits, checked.targets):
            return following
    return path


def sample_rows(source: Source, seed: int) -> np.ndarray:
    """The rows to fit on, int64 ascending: all, or as many random ones as time and memory allow."""
    total = len(source.rows)
    most = min(total, MAX_ROWS, int(MAX_TOKENS / max(1.0, source.lengths.mean())))
    if most == total:
        return np.arange(total)
    return np.sort(np.random.default_rng([seed, 19]).choice(total, most, replace=False))


def out_of_fold_logits(
    path: LinearPath, train: Source, seed: int, groups: np.ndarray | None = None
) -> np.ndarray:
    """The logits of each training row by a linear path that was not fitted on it, float32 [R, C].

    `groups`: equal for rows that stay in one fold, [R].
    """
    sampled = sample_rows(train, seed)
    problem = path.problem(Tokens.of(train, sampled))
    group = sampled if groups is None else groups[sampled]
    folds = random_folds(group, FOLDS, [seed, 23])
    margins, _ = predict_splits(problem.splits(folds), path.penalty, seed)
    (scale, shift), _ = fit_scale(margins, problem.targets)
    if len(sampled) == len(train.rows):
        return (margins * scale + shift).astype(np.float32)
    result = np.zeros((len(train.rows), len(path.bias)), np.float32)
    for first in range(0, len(result), CHUNK_ROWS):
        chunk = np.arange(first, min(first + CHUNK_ROWS, len(result)))
        result[chunk] = path.logits(train, chunk)
    result[sampled] = margins * scale + shift
    return result


def predict_splits(
    splits: Iterable[Split], penalty: float, seed: int, is_scaled: bool = True
) -> tuple[np.ndarray, list[np.ndarray]]:
    """Fits to the rows of all other folds; see `Problem.machines`.

    Returns:
        The margins of each row, float64 [R, C], and the importance of each feature in each of the fits, float64 [F].
    """
    rows, margins, importance = [], [], []
    for split in splits:
        found, each = split.others.margins(split.features, penalty, seed, is_scaled)
        rows.append(split.rows)
        margins.append(found)
        importance.append(each)
    return np.concatenate(margins)[np.argsort(np.concatenate(rows))], importance


def is_certainly_better(found: np.ndarray, before: np.ndarray, targets: np.ndarray) -> bool:
    """Whether logits of validation rows, [R, C], have a loss that is lower by more than `CERTAIN_ERRORS`.

    With one label, as many rows must be right too: with hundreds of labels the loss falls if probabilities become more
    cautious, and fewer texts get their label.
    """
    gain, error = mean_and_error(smoothed_losses(before, targets) - smoothed_losses(found, targets))
    if gain <= CERTAIN_ERRORS * error:
        return False
    if targets.ndim == 2:
        return True
    right, right_before = (int((each.argmax(axis=1) == targets).sum()) for each in (found, before))
    return right >= right_before


def feature_scales(
    features: scipy.sparse.csr_matrix, memberships: np.ndarray, weights: np.ndarray
) -> np.ndarray:
    """By what to multiply the features of each label, float64 [F, C]: the larger, the more it depends on the n-gram.

    The square root of the geometric mean of two measures. The log-ratio of the shares of texts with the n-gram, in
    texts with and without the label, is large for rare n-grams. The difference from the expected number of texts with
    both, in standard deviations, is large for frequent ones. The mean squared length of a text does not change.

    Source: Wang and Manning 2012, "Baselines and Bigrams: Simple, Good Sentiment and Topic Classification", for the
    log-ratio; docs/decisions/017-linear-path.md for the other measure and the exponents.

    Args:
        features: float64 [R, F].
        memberships: 0 or 1, [R, C].
        weights: Of the rows, [R].
    """
    weights = np.asarray(weights, np.float64)
    weighted = scipy.sparse.diags(weights) @ scipy.sparse.csr_matrix(memberships, dtype=np.float64)
    present = features.copy()
    present.data = np.ones_like(present.data)
    total, sizes = weights.sum(), np.asarray(weighted.sum(axis=0)).ravel()
    both, texts = (present.T @ weighted).toarray(), (present.T @ weights)[:, None]
    # Of a label of no row or of all rows, both logarithms stay finite.
    share = np.clip(sizes / total, 1e-6, 1 - 1e-6)
    # Smoothed as if one more text with the label, and one without it, had a share of the n-gram.
    inside = (both + share) / (sizes + 1)
    outside = (texts - both + 1 - share) / (total - sizes + 1)
    ratio = np.abs(np.log(inside / outside))
    expected = texts * share
    deviation = np.abs(both - expected) / np.sqrt(expected * (1 - share) + 1)
    scales = np.maximum((ratio * deviation) ** 0.25, SMALLEST_SCALE)
    squares = features.power(2)
    lengths = np.asarray(squares.sum(axis=0)) @ scales**2
    return scales * np.sqrt(squares.sum() / np.maximum(lengths, 1e-12))


def _machine(
    features: Any, targets: np.ndarray, penalty: float, seed: int, weights: np.ndarray
) -> tuple[np.ndarray, float]:
    with warnings.catch_warnings():
        # An approximate optimum is sufficient.
        warnings.simplefilter("ignore", ConvergenceWarning)
        fitted = LinearSVC(C=penalty, tol=TOLERANCE, random_state=seed, dual=True).fit(
            features, targets, sample_weight=weights
        )
    return fitted.coef_[0], float(fitted.intercept_[0])


class ResidualLoss:
    """The loss of encoder and linear path together, with the out-of-fold logits of the path in the targets.

    Args:
        task: The task of classification with one label per row.
        targets: Label ids, int [R].
        logits: Out-of-fold logits of the linear path, float32 [R, C].
    """

    def __init__(self, task: Any, targets: np.ndarray, logits: np.ndarray):
        # Smoothed labels would reward the encoder for weakening the linear path.
        self._row_losses = dataclasses.replace(task, label_smoothing=0.0).row_losses
        self.targets = np.concatenate([targets[:, None].astype(np.float32), logits], axis=1)

    def __call__(self, targets: Any, logits: Any) -> Any:
        """Loss of each row, float32 [B], from rows of `targets` and the encoder's logits float32 [B, C]."""
        from keras import ops

        return self._row_losses(ops.cast(targets[:, 0], "int32"), logits + targets[:, 1:])
