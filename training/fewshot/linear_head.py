"""A linear head on fixed vectors: logistic regression, as the kernel and bias of a dense layer."""

import numpy as np

# Inverse strengths of the L2 penalty, as scikit-learn's C, for vectors of mean length 1.
STRENGTHS = (0.1, 0.3, 1.0, 3.0, 10.0, 30.0, 100.0)
_MAX_ITERATIONS = 1000


def fit_head(
    vectors: np.ndarray, targets: np.ndarray, outputs: int, strength: float, weights: np.ndarray | None = None
) -> tuple[np.ndarray, np.ndarray]:
    """Fits a head.

    Args:
        vectors: float32 [R, D].
        targets: Label ids int [R]; with several labels 0 or 1, int [R, C].
        outputs: C. A label without rows gets the logit of its frequency, for each vector.
        strength: scikit-learn's C.
        weights: Of the rows, float [R]; None: all 1.

    Returns:
        Kernel float32 [D, C] and bias float32 [C].
    """
    scale = max(float(np.sqrt((vectors.astype(np.float64) ** 2).sum(axis=1).mean())), 1e-9)
    inputs = vectors / scale
    fit = _softmax if targets.ndim == 1 else _sigmoids
    kernel, bias = fit(inputs, targets, outputs, strength, weights)
    return (kernel / scale).astype(np.float32), bias.astype(np.float32)


def _softmax(
    inputs: np.ndarray, targets: np.ndarray, outputs: int, strength: float, weights: np.ndarray | None
) -> tuple[np.ndarray, np.ndarray]:
    known, counts = np.unique(targets, return_counts=True)
    kernel = np.zeros((inputs.shape[1], outputs))
    # Labels that no row has are as likely as half a row.
    bias = np.full(outputs, np.log(0.5 / (len(targets) + 1)))
    if len(known) == 1:
        bias[known] = np.log(counts[0] / (len(targets) + 1))
        return kernel, bias
    coefficients, intercepts = _regression(inputs, targets, strength, weights)
    if len(known) == 2:
        # Of two labels scikit-learn has the difference of the logits.
        coefficients, intercepts = (
            np.concatenate([-part / 2, part / 2]) for part in (coefficients, intercepts)
        )
    # The mean of the known logits is 0, so that a label without rows is below them.
    kernel[:, known], bias[known] = coefficients.T, intercepts
    return kernel, bias


def _sigmoids(
    inputs: np.ndarray, targets: np.ndarray, outputs: int, strength: float, weights: np.ndarray | None
) -> tuple[np.ndarray, np.ndarray]:
    kernel, bias = np.zeros((inputs.shape[1], outputs), inputs.dtype), np.zeros(outputs)
    for label, column in enumerate(targets.T):
        if column.min() == column.max():
            share = (column.sum() + 0.5) / (len(column) + 1)
            bias[label] = np.log(share / (1 - share))
        else:
            coefficients, intercepts = _regression(inputs, column, strength, weights)
            kernel[:, label], bias[label] = coefficients[0], intercepts[0]
    return kernel, bias


def _regression(
    inputs: np.ndarray, targets: np.ndarray, strength: float, weights: np.ndarray | None
) -> tuple[np.ndarray, np.ndarray]:
    from sklearn.linear_model import LogisticRegression

    fitted = LogisticRegression(C=strength, max_iter=_MAX_ITERATIONS).fit(
        inputs, targets, sample_weight=weights
    )
    return fitted.coef_, fitted.intercept_


def apply_head(vectors: np.ndarray, head: tuple[np.ndarray, np.ndarray]) -> np.ndarray:
    """Logits float32 [R, C]."""
    return vectors @ head[0] + head[1]


def row_losses(logits: np.ndarray, targets: np.ndarray) -> np.ndarray:
    """Cross-entropy of each row, float64 [R]; with several labels the mean over the labels."""
    from scipy.special import logsumexp

    logits = np.asarray(logits, np.float64)
    if targets.ndim == 2:
        return (np.logaddexp(0.0, logits) - targets * logits).mean(axis=1)
    return logsumexp(logits, axis=1) - logits[np.arange(len(logits)), targets]
