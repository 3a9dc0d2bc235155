"""Calibration: logits divided by a temperature, so that of answers given with 80 % about 80 % are right.

It is put into the last weights of a model, in which its outputs are linear. So every copy of the model has it, whatever
its format, and none computes anything more.

Source: Guo et al. 2017, arXiv:1706.04599; with a bias, of yes and no: Platt 1999.
"""

import dataclasses
import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from kmha.bundle.manifest import TAG

# Half of the step below 1 in float32: a probability past it is rounded to 1.
_NEARLY_ONE = 1.0 - 2.0**-25


@dataclasses.dataclass(frozen=True)
class Calibration:
    """What becomes of logits: divided by the temperatures, then the biases are added.

    Attributes:
        temperatures: One for all outputs or one for each, above 0.
        biases: As many; 0 wherever the outputs exclude each other.
    """

    temperatures: tuple[float, ...] = (1.0,)
    biases: tuple[float, ...] = (0.0,)

    def apply(self, logits: np.ndarray) -> np.ndarray:
        """The calibrated logits, float64 [..., C]."""
        return np.asarray(logits, np.float64) / np.array(self.temperatures) + np.array(self.biases)

    def compose(self, before: "Calibration") -> "Calibration":
        """One calibration that does what `before` does, then this one."""
        temperatures = np.array(before.temperatures) * np.array(self.temperatures)
        biases = np.array(before.biases) / np.array(self.temperatures) + np.array(self.biases)
        return Calibration(tuple(temperatures.tolist()), tuple(biases.tolist()))

    def inverse(self) -> "Calibration":
        """The one that takes this one back."""
        back = -np.array(self.biases) * np.array(self.temperatures)
        return Calibration(tuple(1.0 / t for t in self.temperatures), tuple(back.tolist()))

    def thresholds(self, before: Sequence[float]) -> list[float]:
        """The thresholds of calibrated probabilities that decide as `before` did, one a label.

        Args:
            before: Of the probabilities as they were; what is not in (0, 1) stays.
        """
        inside = np.clip(np.asarray(before, np.float64), 2.0**-126, _NEARLY_ONE)
        moved = self.apply(np.log(inside) - np.log1p(-inside))
        # The logarithm of a sigmoid, which overflows nowhere; at 0 a threshold would let everything in.
        found = np.maximum(np.exp(-np.logaddexp(0.0, -moved)), 2.0**-126).astype(np.float32)
        kept = [not 0.0 < value <= 1.0 for value in before]
        return [float(old if keep else new) for old, new, keep in zip(before, found, kept, strict=True)]

    def values(self) -> dict[str, list[float]]:
        """As JSON values."""
        return {"temperatures": list(self.temperatures), "biases": list(self.biases)}

    @classmethod
    def of(cls, details: dict[str, Any]) -> "Calibration":
        """The one that a bundle's details tell of; none was done where they tell of none that could be."""
        found = details.get("calibration")
        found = found if isinstance(found, dict) else {}
        temperatures, biases = _numbers(found.get("temperatures")), _numbers(found.get("biases"))
        if not temperatures or len(temperatures) != len(biases) or min(temperatures) <= 0:
            return cls()
        return cls(temperatures, biases)


def calibrate(model: Any, calibration: Calibration) -> None:
    """Changes the last weights of a model so that it gives calibrated logits.

    Of a tagger, whose paths are weighed as a whole, the scores of words and those of neighbours are divided alike: the
    best path stays the best one.

    Args:
        model: A built classifier, matcher or tagger, in float32.
        calibration: With one temperature, or as many as the model has outputs.

    Raises:
        ValueError: A tagger was to get biases, or several temperatures.
    """
    temperatures, biases = np.array(calibration.temperatures), np.array(calibration.biases)
    # Imported late: the models need Keras, and the rest of this file does not.
    from kmha.bundle.files import task_of

    if task_of(model) == TAG:
        if len(temperatures) != 1 or biases.any():
            raise ValueError(f"a tagger takes one temperature and no bias, got {calibration}")
        for weights in (model.head.kernel, model.head.bias, *_orders(model)):
            _assign(weights, _read(weights) / temperatures[0])
        return
    if model.head is None:
        kernel, bias = model.cosine_scale, model.cosine_bias
        # Numbers of no axis.
        temperatures, biases = temperatures[0], biases[0]
    else:
        kernel, bias = model.head.kernel, model.head.bias
    _assign(kernel, _read(kernel) / temperatures)
    _assign(bias, _read(bias) / temperatures + biases)


def _orders(model: Any) -> tuple[Any, Any, Any]:
    return model.crf.transitions, model.crf.start, model.crf.end


def _read(weights: Any) -> np.ndarray:
    return np.asarray(weights.numpy(), np.float64)


def _assign(weights: Any, values: np.ndarray) -> None:
    weights.assign(values.astype(np.float32))


def _numbers(values: Any) -> tuple[float, ...]:
    """The finite numbers of a list; none where it holds anything else."""
    if not isinstance(values, list) or not all(type(v) in (int, float) and math.isfinite(v) for v in values):
        return ()
    return tuple(values)
