"""Evaluates existing runs on the test rows of a comparison."""

import json
from pathlib import Path
from typing import Any

from kmha.bundle.bundle import Bundle
from kmha.config import EncoderConfig
from training.comparison.scoring import prediction_names
from training.comparison.trials import epoch_times
from training.data.load import Data
from training.evaluation.bundle_evaluation import predict_probabilities
from training.runs.run_folder import METRICS
from training.runtime.resource_usage import count_trainable_weights


def run_result(path: Path, bundle: Bundle, data: Data) -> dict[str, Any]:
    """Evaluates a run on the test rows.

    Returns:
        JSON values; "answers" are indices in `training.comparison.scoring.prediction_names`.
    """
    part = data.test
    assert part is not None
    names = prediction_names(data)
    places = {name: place for place, name in enumerate(names)}
    best = predict_probabilities(bundle, part).argmax(axis=1)
    predictions = [places.get(bundle.labels[number], len(names) - 1) for number in best.tolist()]
    encoder = bundle.model.encoder_config
    trained_on = (bundle.details.get("data") or {}).get("train") or {}
    same = trained_on.get("sha256") is not None and trained_on["sha256"] == data.origins["train"]["sha256"]
    return {
        "description": f"run: {describe_encoder(encoder)}" + ("" if same else "; trained on other rows"),
        "weights": count_trainable_weights(bundle.model),
        **_from_metrics(path / METRICS),
        "answers": predictions,
        "same_rows": same,
    }


def describe_encoder(encoder: EncoderConfig) -> str:
    """A short description of an encoder; for a pruned one with the heads of each block."""
    counts = [encoder.layer_size(index)[0] for index in range(encoder.num_layers)]
    shown = str(counts[0]) if len(set(counts)) == 1 else " and ".join(map(str, counts))
    heads = f"{shown} head{'s' * (set(counts) != {1})}" if counts else "no heads"
    layers = f"{encoder.num_layers} layer{'s' * (encoder.num_layers != 1)} of {encoder.hidden_dim}"
    return f"attention, {heads}, {layers}{', n-grams' if encoder.ngram_buckets else ''}"


def _from_metrics(path: Path) -> dict[str, Any]:
    """Validation accuracy, epochs and time of an epoch; empty if the file lacks them."""
    try:
        metrics = json.loads(path.read_text("utf-8"))
        history = metrics.get("history", [])
        counts = metrics["tokens"]["train"]
        # The count includes rows held out of the training file.
        tokens = counts["tokens"] * metrics["data"]["train_rows"] / max(1, counts["rows"])
        validation = float(metrics["validation"]["accuracy"])
        return {"validation": validation, "epochs": len(history), **epoch_times(history, tokens)}
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        # Runs of other versions are evaluated too.
        return {}
