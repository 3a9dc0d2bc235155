"""Fits a small network on the overlap features of pairs and on the parts of a linear model's logits."""

import dataclasses
import warnings
from typing import Any

import numpy as np
from sklearn.exceptions import ConvergenceWarning
from sklearn.neural_network import MLPClassifier, MLPRegressor

from kmha.layers.linear_pairs import PARTS
from kmha.layers.overlap_network import LARGEST_INPUT, OverlapNetwork

# The mean of several networks, which is one with as many times the hidden units, depends less on the initial weights.
NETWORKS, UNITS = 4, 16
# The parts of more labels would take much memory.
MOST_LABELS = 50
# L2 penalty of the sum of the losses; see docs/decisions/017-linear-path.md.
PENALTY = 20.0
# An approximate optimum is sufficient.
MOST_STEPS = 100


@dataclasses.dataclass(frozen=True)
class FittedNetwork:
    """The weights of an `OverlapNetwork` with U hidden units, by name."""

    weights: dict[str, np.ndarray]

    @property
    def units(self) -> int:
        """U."""
        return len(self.weights["hidden_bias"])

    def assign(self, layer: OverlapNetwork) -> None:
        """Sets the weights of a built layer."""
        for name, values in self.weights.items():
            getattr(layer, name).assign(values)

    def scaled(self, path: float, network: float, bias: float) -> "FittedNetwork":
        """The logits of the linear model and of the network times a factor each, plus a bias."""
        kernel, own_bias = self.weights["kernel"], self.weights["bias"]
        changed = {
            "factors": np.full(len(own_bias), path),
            "kernel": network * kernel,
            "bias": network * own_bias + bias,
        }
        return FittedNetwork({**self.weights, **changed})

    def logits(self, features: np.ndarray, parts: np.ndarray) -> np.ndarray:
        """Those of an `OverlapNetwork`, float32 [R, C], from features [R, F] and parts [R, PARTS, C]."""
        layer = OverlapNetwork(parts.shape[2], features.shape[1] + PARTS * parts.shape[2], self.units)
        layer.build()
        self.assign(layer)
        return np.asarray(layer(features.astype(np.float32), parts.astype(np.float32)))


def fit_network(
    features: np.ndarray, parts: np.ndarray, values: np.ndarray, weights: np.ndarray, target: str, seed: int
) -> FittedNetwork | None:
    """Fits a network to rows; None if the rows lack a label, or with more than `MOST_LABELS` labels.

    Args:
        features: Overlap features, float64 [R, F].
        parts: Parts of the logits by linear models that were not fitted on the row, float64 [R, PARTS, C].
        values: Labels or grades [R].
        weights: Of the rows [R].
        target: "binary", "classes" or "graded".
        seed: Random seed.
    """
    outputs = parts.shape[2]
    if outputs > MOST_LABELS:
        return None
    inputs = np.hstack([features, parts.reshape(len(parts), -1)])
    mean, spread = inputs.mean(axis=0), inputs.std(axis=0)
    # Constant inputs are left out.
    factors = np.divide(1.0, spread, out=np.zeros_like(spread), where=spread > 1e-9)
    inputs = np.clip((inputs - mean) * factors, -LARGEST_INPUT, LARGEST_INPUT)
    center, scale, options = 0.0, 1.0, {"solver": "lbfgs", "alpha": PENALTY, "max_iter": MOST_STEPS}
    if target == "graded":
        center, scale = float(values.mean()), float(values.std())
        targets = (values - center) / max(scale, 1e-9)
        kind: Any = MLPRegressor
    else:
        targets = values.astype(np.int64) if target == "classes" else (values > 0).astype(np.int64)
        if len(np.unique(targets)) < max(2, outputs):
            return None
        kind = MLPClassifier
    hidden, hidden_bias, kernel, bias = [], [], [], np.zeros(outputs)
    for number in range(NETWORKS):
        network = kind(
            hidden_layer_sizes=(UNITS,), random_state=(seed * NETWORKS + number) % 2**32, **options
        )
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", ConvergenceWarning)
            network.fit(inputs, targets, sample_weight=weights)
        (first, last), (first_bias, last_bias) = network.coefs_, network.intercepts_
        if target == "classes" and outputs == 2:
            # One logit, of the second class.
            last, last_bias = np.hstack([-last, last]) / 2, np.array([-1, 1]) * last_bias / 2
        hidden.append(first)
        hidden_bias.append(first_bias)
        kernel.append(last * scale / NETWORKS)
        bias += (last_bias * scale + center) / NETWORKS
    return FittedNetwork(
        {
            "factors": np.zeros(outputs),
            "mean": mean,
            "input_scale": factors,
            "hidden_kernel": np.hstack(hidden),
            "hidden_bias": np.concatenate(hidden_bias),
            "kernel": np.concatenate(kernel),
            "bias": bias,
        }
    )
