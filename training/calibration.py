"""Finding temperatures: the ones under which right answers would have surprised the least, on rows not trained on.

A temperature is found a posteriori: the loss of all rows, in nats, plus half the square of the temperature's logarithm.
With hundreds of rows that says nothing; where a handful of rows happen to be all right, it keeps a model from being
sure of everything. What a label with few rows finds is held near what all labels together say, in the same way.
"""

import numpy as np
from scipy.optimize import minimize, minimize_scalar
from scipy.special import expit, logsumexp

from kmha.calibration import Calibration

# Fewer say too little.
LEAST_ROWS = 100
LOWEST, HIGHEST = 0.05, 20.0
_MOST_BIAS = 10.0
# How far the logarithm of a label's temperature, and its bias, are likely to be from those of all labels together.
OWN_SPREAD = 0.5
_BOUNDS = (-np.log(HIGHEST), -np.log(LOWEST))


def fit_temperature(logits: np.ndarray, true_ids: np.ndarray) -> Calibration | None:
    """The temperature of labels that exclude each other.

    Args:
        logits: float [R, C].
        true_ids: int [R], in [0, C).

    Returns:
        None where the rows are too few, or no temperature lowers their loss.
    """
    logits = np.asarray(logits, np.float64)
    if len(logits) < LEAST_ROWS:
        return None
    picked = logits[np.arange(len(logits)), true_ids]
    return lowest_loss(lambda scale: float((logsumexp(logits * scale, axis=1) - picked * scale).sum()))


def lowest_loss(loss) -> Calibration | None:
    """The temperature T with the lowest loss of 1 / T, a function that gives the sum over all rows in nats.

    Returns:
        None where T = 1 has no higher one.
    """
    found = minimize_scalar(
        lambda rate: loss(np.exp(rate)) + rate**2 / 2,
        bounds=_BOUNDS,
        method="bounded",
        options={"xatol": 1e-4},
    )
    scale = float(np.exp(found.x))  # pyright: ignore  (scipy's result has it)
    return Calibration((1.0 / scale,)) if loss(scale) < loss(1.0) else None


def fit_each(logits: np.ndarray, true: np.ndarray) -> Calibration | None:
    """A temperature and a bias for each of some labels that may hold together.

    Args:
        logits: float [R, C].
        true: 0 or 1, [R, C].

    Returns:
        None where the rows are too few, or nothing lowers their loss.
    """
    logits, true = np.asarray(logits, np.float64), np.asarray(true) != 0
    if len(logits) < LEAST_ROWS:
        return None
    shared = _yes_or_no(logits.ravel(), true.ravel(), np.zeros(2), 1.0)
    own = [shared]
    if logits.shape[1] > 1:
        own = [_yes_or_no(*column, shared, OWN_SPREAD) for column in zip(logits.T, true.T, strict=True)]
    rates, biases = np.array(own).T
    found = Calibration(tuple(np.exp(-rates).tolist()), tuple(biases.tolist()))
    return found if _loss(found.applied(logits), true) < _loss(logits, true) else None


def _yes_or_no(logits: np.ndarray, true: np.ndarray, middle: np.ndarray, spread: float) -> np.ndarray:
    """The logarithm of 1 / temperature, and the bias, that lie near `middle` and have the lowest loss."""

    def penalised(point):
        scaled = logits * np.exp(point[0])
        away = (point - middle) / spread
        wrong = expit(scaled + point[1]) - true
        gradient = np.array([(wrong * scaled).sum(), wrong.sum()]) + away / spread
        return _loss(scaled + point[1], true) + (away**2).sum() / 2, gradient

    bounds = [_BOUNDS, (-_MOST_BIAS, _MOST_BIAS)]
    return minimize(penalised, middle, jac=True, method="L-BFGS-B", bounds=bounds).x


def _loss(logits: np.ndarray, true: np.ndarray) -> float:
    """Binary cross-entropy in nats, over all."""
    return float((np.logaddexp(0.0, logits) - true * logits).sum())
