"""A comparison as `training.comparison.run.compare` returns it."""

from typing import Any


def _row(name: str, accuracy: float, low: float, high: float, **more: Any) -> dict[str, Any]:
    intervals = {"accuracy": [low, high]}
    return {"name": name, "weights": 1234, "accuracy": accuracy, "intervals": intervals, **more}


COMPARISON: dict[str, Any] = {
    "rows": {"train": 900, "validation": 100, "test": 200},
    "reference": "heads",
    "weights": {"target": 1234, "largest_distance": 0.004},
    "candidates": [
        _row(
            "heads",
            0.9,
            0.85,
            0.94,
            description="attention",
            rate=0.003,
            validation=0.8,
            seconds_per_epoch=12.5,
            cpu_seconds_per_epoch=3.5,
            latency_ms={"8": 0.5, "64": 1.25},
        ),
        _row(
            "linear",
            0.8,
            0.75,
            0.84,
            description="TF-IDF",
            validation=0.7,
            seconds_in_all=0.21,
            cpu_seconds_in_all=0.11,
            difference={
                "value": -0.1,
                "interval": [-0.15, -0.04],
                "verdict": "heads wins",
                "reference": "heads",
            },
            latency_ms={"8": 0.1, "64": 0.11},
        ),
        _row(
            "run small",
            0.85,
            0.8,
            0.9,
            description="run: attention",
            difference={
                "value": -0.05,
                "interval": [-0.09, -0.01],
                "verdict": "heads wins",
                "reference": "heads",
            },
            latency_ms={"8": 0.7},
        ),
    ],
}
