"""Calibration by temperature scaling: of the predictions with probability 80 %, about 80 % are correct.

The temperature is folded into the last weights of the model, in which the outputs are linear. Every export of the model
has it, at no cost.

Source: Guo et al. 2017, arXiv:1706.04599; with a bias, for binary outputs: Platt 1999.
"""

import dataclasses
import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from kmha.bundle.manifest import MATCH, TAG

# Half of the step below 1 in float32: a larger probability is rounded to 1.
_NEARLY_ONE = 1.0 - 2.0**-25


@dataclasses.dataclass(frozen=True)
class Calibration:
    """Calibrated logits = logits / temperatures + biases."""

    temperatures: tuple[float, ...] = (1.0,)  # one for all outputs or one for each output, above 0
    biases: tuple[float, ...] = (0.0,)  # as many; 0 if the outputs exclude each other

    def apply(self, logits: np.ndarray) -> np.ndarray:
        """The calibrated logits, float64 [..., C]."""
        return np.asarray(logits, np.float64) / np.array(self.temperatures) + np.array(self.biases)

    def compose(self, before: "Calibration") -> "Calibration":
        """One calibration equal to `before` followed by this one."""
        temperatures = np.array(before.temperatures) * np.array(self.temperatures)
        biases = np.array(before.biases) / np.array(self.temperatures) + np.array(self.biases)
        return Calibration(tuple(temperatures.tolist()), tuple(biases.tolist()))

    def inverse(self) -> "Calibration":
        """The inverse calibration."""
        back = -np.array(self.biases) * np.array(self.temperatures)
        return Calibration(tuple(1.0 / t for t in self.temperatures), tuple(back.tolist()))

    def thresholds(self, before: Sequence[float]) -> list[float]:
        """Thresholds that give the same decisions for calibrated probabilities; values outside (0, 1) are unchanged."""
        inside = np.clip(np.asarray(before, np.float64), 2.0**-126, _NEARLY_ONE)
        moved = self.apply(np.log(inside) - np.log1p(-inside))
        # A sigmoid without overflow; above 0, because a threshold of 0 would accept everything.
        found = np.maximum(np.exp(-np.logaddexp(0.0, -moved)), 2.0**-126).astype(np.float32)
        return [float(new if 0.0 < old <= 1.0 else old) for old, new in zip(before, found, strict=True)]

    def values(self) -> dict[str, list[float]]:
        """As JSON values, for the details of a bundle."""
        return {"temperatures": list(self.temperatures), "biases": list(self.biases)}

    @classmethod
    def of(cls, details: dict[str, Any]) -> "Calibration":
        """The calibration in a bundle's details; the identity if there is none or it is invalid."""
        found = details.get("calibration")
        found = found if isinstance(found, dict) else {}
        temperatures, biases = _numbers(found.get("temperatures")), _numbers(found.get("biases"))
        if not temperatures or len(temperatures) != len(biases) or min(temperatures) <= 0:
            return cls()
        return cls(temperatures, biases)


def calibrate(model: Any, calibration: Calibration) -> None:
    """Changes the last weights of a built classifier, matcher or tagger so that it gives calibrated logits.

    In a tagger the scores of words and the transition scores are divided by the same temperature: the best path stays
    the same. Raises ValueError for a tagger and biases or several temperatures.
    """
    temperatures, biases = np.array(calibration.temperatures), np.array(calibration.biases)
    # Imported late: only this function needs Keras.
    from kmha.bundle.bundle import task_of

    if task_of(model) == TAG:
        if len(temperatures) != 1 or biases.any():
            raise ValueError(f"a tagger takes one temperature and no bias, got {calibration}")
        crf = model.crf
        for weights in (model.head.kernel, model.head.bias, crf.transitions, crf.start, crf.end):
            _assign(weights, _read(weights) / temperatures[0])
        if getattr(model, "linear", None) is not None:
            model.linear.scale(1 / temperatures[0])
        return
    if model.head is None:
        kernel, bias = model.cosine_scale, model.cosine_bias
        # Scalars.
        temperatures, biases = temperatures[0], biases[0]
    else:
        kernel, bias = model.head.kernel, model.head.bias
    if getattr(model, "linear", None) is not None:
        scale = model.scale_overlap if task_of(model) == MATCH else model.linear.scale
        scale((1 / temperatures).astype(np.float32))
    _assign(kernel, _read(kernel) / temperatures)
    _assign(bias, _read(bias) / temperatures + biases)


def _read(weights: Any) -> np.ndarray:
    return np.asarray(weights.numpy(), np.float64)


def _assign(weights: Any, values: np.ndarray) -> None:
    weights.assign(values.astype(np.float32))


def _numbers(values: Any) -> tuple[float, ...]:
    """The numbers of a list; empty if it contains anything else than finite numbers."""
    if not isinstance(values, list) or not all(type(v) in (int, float) and math.isfinite(v) for v in values):
        return ()
    return tuple(values)
