"""Scales the logits of a linear path and weighs it and the encoder on validation rows."""

from collections.abc import Callable

import numpy as np
from scipy.optimize import minimize, minimize_scalar

from training.fewshot.linear_head import row_losses
from training.metrics.bootstrap import Resampling, resample_weights
from training.metrics.confusion import f1, indicator_counts
from training.metrics.thresholds import best_thresholds

# Of the logits to the margins of the support vector machines.
DEFAULT_SCALE = 1.65
# With fewer validation rows no gain of the encoder is trusted.
FEWEST_TO_TRUST = 10
# Of the logits that are added to those of the base, with several labels.
RATIOS = (0.0, 0.1, 0.25, 0.5, 1.0, 2.0)
RESAMPLES = 200


def smoothed_losses(logits: np.ndarray, targets: np.ndarray) -> np.ndarray:
    """Cross-entropy of each row, float64 [R], with targets that are smoothed as if two more of them were random.

    So no scale is infinite if all of a few rows are predicted correctly. With several labels the mean over the labels.

    Source: Platt 1999, "Probabilistic Outputs for Support Vector Machines", section 2.2.
    """
    share = 2 / (targets.size + 2)
    if targets.ndim == 2:
        return row_losses(logits, (1 - share) * targets + share / 2)
    of_target = logits[np.arange(len(targets)), targets]
    return row_losses(logits, targets) + share * (of_target - logits.mean(axis=1))


def smoothed_loss(logits: np.ndarray, targets: np.ndarray) -> float:
    """The mean of `smoothed_losses`."""
    return float(smoothed_losses(logits, targets).mean())


def log_prior(logarithm: float, rows: int) -> float:
    """What to add to the mean loss of some rows: a standard normal prior of the logarithm of a factor of logits.

    A dozen rows that are predicted wrongly would else make all logits 0, and each text would get the same label.
    """
    return logarithm**2 / (2 * rows)


def fit_scale(margins: np.ndarray, targets: np.ndarray) -> tuple[tuple[float, float], float]:
    """The scale, and with several labels the shift, that make logits of margins [R, C]; and their loss.

    See `log_prior`; the prior of the scale is around `DEFAULT_SCALE`.
    """
    several, default = targets.ndim == 2, float(np.log(DEFAULT_SCALE))

    def loss(values: np.ndarray) -> float:
        return smoothed_loss(margins * np.exp(values[0]) + (values[1] if several else 0.0), targets)

    found = minimize(
        lambda values: loss(values) + log_prior(values[0] - default, len(targets)),
        np.array([default, 0.0][: 1 + several]),
        method="Nelder-Mead",
        options={"maxiter": 100},
    )
    return (float(np.exp(found.x[0])), float(found.x[1]) if several else 0.0), loss(found.x)


def mean_and_error(gains: np.ndarray) -> tuple[float, float]:
    """The mean of gains on validation rows, float64 [R], and its standard error."""
    return float(gains.mean()), float(gains.std() / np.sqrt(len(gains)))


def macro_f1_gain(targets: np.ndarray, before: np.ndarray, after: np.ndarray) -> tuple[float, float]:
    """The gain in macro-F1 of predictions over others, all 0 or 1, [R, C], and its standard error by a bootstrap."""

    def gains(weights: np.ndarray) -> np.ndarray:
        first, second = (
            f1(indicator_counts(targets, each, weights)).mean(axis=1) for each in (before, after)
        )
        return second - first

    rows = np.ones(len(targets), np.int64)
    drawn = [gains(weights) for weights in resample_weights(rows, Resampling(resamples=RESAMPLES))]
    return float(gains(rows[None].astype(np.float64))[0]), float(np.concatenate(drawn).std())


def share_of_gain(gain: float, error: float, rows: int) -> float:
    """How much of a gain on validation rows, with a standard error, to expect on other rows: 0 to 1.

    1 - (e / g)^2 for a gain g above its error e, else 0, and 0 with a few rows, which may all be equal.

    Source: the positive part of the estimator of James and Stein 1961, "Estimation with Quadratic Loss".
    """
    return 1.0 - (error / gain) ** 2 if gain > error and rows >= FEWEST_TO_TRUST else 0.0


def trusted_share(gains: np.ndarray) -> float:
    """The `share_of_gain` of the mean of gains, float64 [R]."""
    return share_of_gain(*mean_and_error(gains), len(gains)) if len(gains) else 0.0


def shrunk(both: np.ndarray, alone: np.ndarray, losses: Callable[[np.ndarray], np.ndarray]) -> np.ndarray:
    """Factors between those of both paths and those of the base alone, float64 [F] each; see `trusted_share`.

    Both the loss and the probability of the right label must gain: the loss alone also falls if probabilities become
    more cautious, and no prediction becomes right by that.

    `losses` gives the cross-entropy of each validation row for factors, float64 [R].
    """
    with_both, with_one = losses(both), losses(alone)
    share = min(trusted_share(with_one - with_both), trusted_share(np.exp(-with_both) - np.exp(-with_one)))
    return share * both + (1 - share) * alone


def fit_factors(
    base: np.ndarray, added: np.ndarray, losses_of: Callable[[np.ndarray], np.ndarray]
) -> tuple[float, float]:
    """The factors, at least 0, of two logits [R, C] whose sum has the lowest mean loss, `shrunk`.

    The size of the sum, as a share of that of the base, has a prior; see `log_prior`. `losses_of` gives the
    cross-entropy of rows, or of groups of rows, for logits.
    """

    def joined(values: np.ndarray) -> np.ndarray:
        return values[0] * base + values[1] * added

    def size(logits: np.ndarray) -> float:
        return max(1e-9, float((logits - logits.mean(axis=1, keepdims=True)).std()))

    base_size = size(base)

    def objective(values: np.ndarray) -> float:
        logits = joined(values)
        found = losses_of(logits)
        count = max(1, len(found))
        return float(found.sum()) / count + log_prior(float(np.log(size(logits) / base_size)), count)

    both, alone = (
        minimize(objective, np.ones(2), method="L-BFGS-B", bounds=bounds).x
        for bounds in ([(0.0, 10.0)] * 2, [(0.0, 10.0), (0.0, 0.0)])
    )
    found = shrunk(both, alone, lambda values: losses_of(joined(values)))
    return float(found[0]), float(found[1])


def query_losses(scores: np.ndarray, is_right: np.ndarray, queries: np.ndarray) -> np.ndarray:
    """Cross-entropy of the right candidates among all candidates of each query, float64 [Q].

    It is the loss of `training.losses.pairs.listwise_softmax`, without a matrix of all pairs of rows.

    Args:
        scores: Of the candidates [R].
        is_right: bool [R].
        queries: The query of each candidate, int [R]; those with only right or only wrong ones are left out.
    """
    right, of_query = np.bincount(queries, is_right), np.bincount(queries)
    highest = np.full(len(of_query), -np.inf)
    np.maximum.at(highest, queries, scores)
    shifted = scores - highest[queries]
    compared = (right > 0) & (right < of_query)
    total, of_right = (np.bincount(queries, each)[compared] for each in (np.exp(shifted), shifted * is_right))
    return np.log(total) - of_right / right[compared]


def weigh(
    base: np.ndarray,
    added: np.ndarray,
    targets: np.ndarray,
    queries: np.ndarray | None = None,
    few_rows: bool = False,
) -> tuple[float, float]:
    """The factors, at least 0, of two logits [R, C]: with one label those of `fit_factors`.

    The loss of candidates, whose `queries`, int [R], are given, also falls if a model predicts how many right
    candidates a query has, and no order changes by that. So the ratio is the one with the lowest `query_losses`, and
    the loss of the rows decides on the scale.

    With several labels, the loss hardly depends on rare labels. So the ratio is the one with the best macro-F1 at
    thresholds for each label, and the loss decides on the scale. With `few_rows` this ratio is multiplied by the
    `share_of_gain` of its gain: on two dozen rows, random logits have a gain half of the time.
    """
    if targets.ndim == 1:
        if queries is None:
            return fit_factors(base, added, lambda logits: smoothed_losses(logits, targets))
        first, second = fit_factors(
            base, added, lambda logits: query_losses(logits[:, 1] - logits[:, 0], targets > 0, queries)
        )
        logits = first * base + second * added
        scale, _ = weigh(logits, np.zeros_like(logits), targets)
        return scale * first, scale * second

    predicted = {}
    for ratio in RATIOS:
        logits = base + ratio * added
        predicted[ratio] = logits >= best_thresholds(targets, logits, default=0.0)
    ratio = max(RATIOS, key=lambda ratio: f1(indicator_counts(targets, predicted[ratio])).mean())
    if few_rows:
        ratio *= share_of_gain(*macro_f1_gain(targets, predicted[0.0], predicted[ratio]), len(targets))
    logits = base + ratio * added
    scale = minimize_scalar(lambda value: smoothed_loss(value * logits, targets), bounds=(0.01, 10.0)).x
    return float(scale), float(scale * ratio)
