"""Initializes the head of a matcher with a linear model of the overlap features."""

from typing import Any

import numpy as np
import tensorflow as tf
from sklearn.linear_model import LogisticRegression, Ridge

BATCH_TOKENS = 16_384
MOST_ROWS = 256
# Limits the scale of nearly constant features.
SMALLEST_SPREAD = 1e-3
# With scikit-learn's default, 1e-4, results depend on the order of the rows by several 1e-4.
TOLERANCE = 1e-6
# Of the inputs of a head of few labels; see docs/decisions/016-few-labels.md.
COSINE_SCALE, DIFFERENCES_SCALE, PRODUCTS_SCALE, SHARES_SCALE = 3.0, 3.0, 10.0, 0.1


def initialize_from_overlap(model: Any, source: Any, target: str) -> None:
    """Fits a linear model to the overlap features of all training pairs and copies it to the head of a `TextMatcher`.

    The model needs token rarities; the target is "binary", "classes" or "graded".
    """
    shares, values = training_shares(model, source)
    mean, spread = shares.mean(axis=0), shares.std(axis=0)
    scale = 1.0 / np.maximum(spread, SMALLEST_SPREAD)
    kernel, bias = fit_linear((shares - mean) * scale, values, target, model.num_labels)
    set_linear_head(model, mean, scale, kernel, bias)


def set_linear_head(
    model: Any, mean: np.ndarray, scale: np.ndarray, kernel: np.ndarray, bias: np.ndarray
) -> None:
    """Sets the head of a `TextMatcher` to ((shares - mean [S]) * scale [S]) @ kernel [S, C] + bias [C]."""
    model.share_scale.assign(mean, scale)
    head = np.zeros(model.head.kernel.shape, np.float32)
    # The overlap features are the last inputs of the head.
    head[len(head) - len(kernel) :] = kernel
    model.head.kernel.assign(head)
    model.head.bias.assign(np.asarray(bias, np.float32))


def head_bases(model: Any) -> list[np.ndarray]:
    """Inputs of a linear head of few labels as linear functions of its W inputs, few to many: float32 [W, Z] each.

    Without rounds the sum of a · b is the cosine. The factors are the relative scales before one L2 penalty; the shares
    are standardized.
    """
    width, shares = model.head.kernel.shape[0], np.arange(model.vector_width, model.head.kernel.shape[0])
    identity, cosine = np.eye(width, dtype=np.float32), np.zeros((width, 1), np.float32)
    differences, products, start = [], [], 0
    for pair in model.pairs:
        dim = pair.config.hidden_dim
        start += dim * (3 if model.symmetric else 4)
        differences.append(identity[:, start - 2 * dim : start - dim])
        products.append(identity[:, start - dim : start])
        cosine[start - dim : start] = COSINE_SCALE / len(model.pairs)
    overlap = np.hstack([cosine, SHARES_SCALE * identity[:, shares]])
    vectors = [DIFFERENCES_SCALE * each for each in differences] + [
        PRODUCTS_SCALE * each for each in products
    ]
    return [cosine, overlap, np.hstack([overlap, *vectors])]


def training_shares(model: Any, source: Any) -> tuple[np.ndarray, np.ndarray]:
    """`TextMatcher.shares` of every pair of a source, float64 [R, S], and the values of the pairs, float32 [R]."""
    compute = tf.function(model.shares, reduce_retracing=True, autograph=False)
    shares, values = [], []
    for plan in source.plans(source.buckets([]), BATCH_TOKENS, MOST_ROWS, rng=None):
        batch = source.batch(plan)
        # Padding rows of a batch have query -1.
        real = batch["targets"][:, 1] >= 0
        shares.append(compute(batch["features"]).numpy()[real])
        values.append(batch["targets"][real, 0])
    return np.concatenate(shares).astype(np.float64), np.concatenate(values)


def fit_linear(
    features: Any,
    values: np.ndarray,
    target: str,
    outputs: int,
    penalty: float = 1.0,
    tolerance: float = TOLERANCE,
    weights: np.ndarray | None = None,
) -> tuple[np.ndarray, np.ndarray]:
    """Kernel [S, C] and bias [C] of a logistic regression, for graded pairs of a ridge regression.

    Args:
        features: Dense or sparse float [R, S].
        values: Labels or grades [R].
        target: "binary", "classes" or "graded".
        outputs: C.
        penalty: C of the logistic regression, 1 / alpha of the ridge regression.
        tolerance: Of the optimum.
        weights: Of the rows, float [R]; None: all 1.
    """
    if target == "graded":
        ridge = Ridge(alpha=1.0 / penalty).fit(features, values, sample_weight=weights)
        return ridge.coef_[:, None], np.atleast_1d(ridge.intercept_)
    labels = values.astype(np.int64) if target == "classes" else (values > 0).astype(np.int64)
    if len(np.unique(labels)) == 1:
        return np.zeros((features.shape[1], outputs)), np.zeros(outputs)
    machine = LogisticRegression(C=penalty, tol=tolerance, max_iter=1000)
    machine.fit(features, labels, sample_weight=weights)
    kernel, bias = machine.coef_.T, machine.intercept_
    if target == "binary":
        return kernel, bias
    if len(machine.classes_) == 2:
        kernel, bias = np.hstack([-kernel, kernel]) / 2, np.hstack([-bias, bias]) / 2
    # A class without training rows gets the lowest bias.
    kernels, biases = np.zeros((features.shape[1], outputs)), np.full(outputs, bias.min())
    kernels[:, machine.classes_], biases[machine.classes_] = kernel, bias
    return kernels, biases
