"""Runs that were trained elsewhere, asked the same test rows."""

import json
from pathlib import Path
from typing import Any

from kmha.bundle.bundle import Bundle
from kmha.config import EncoderConfig
from training.comparison.scoring import names
from training.comparison.trials import times_of_epoch
from training.data.load import Data
from training.evaluation.bundle_evaluation import predict_probabilities
from training.runs.run_folder import METRICS
from training.runtime.resource_usage import count_trainable_weights


def run_result(path: Path, bundle: Bundle, data: Data) -> dict[str, Any]:
    """The result of a run on the test rows, JSON values; its answers are places in `training.comparison.scoring.names`.

    Args:
        path: The run folder; its metrics.json tells the time of an epoch and the validation score.
        bundle: What stands there.
        data: The parts of the data.
    """
    part = data.test
    assert part is not None
    known = names(data)
    places = {name: place for place, name in enumerate(known)}
    best = predict_probabilities(bundle, part).argmax(axis=1)
    answers = [places.get(bundle.labels[number], len(known) - 1) for number in best.tolist()]
    encoder = bundle.model.encoder_config
    trained_on = (bundle.details.get("data") or {}).get("train") or {}
    same = trained_on.get("sha256") is not None and trained_on["sha256"] == data.origins["train"]["sha256"]
    return {
        "description": f"run: {described(encoder)}" + ("" if same else "; trained on other rows"),
        "weights": count_trainable_weights(bundle.model),
        **_from_metrics(path / METRICS),
        "answers": answers,
        "same_rows": same,
    }


def described(encoder: EncoderConfig) -> str:
    """The encoder of a run in a few words; of a pruned one the heads of each block."""
    counts = [encoder.layer_size(index)[0] for index in range(encoder.num_layers)]
    shown = str(counts[0]) if len(set(counts)) == 1 else " and ".join(map(str, counts))
    heads = f"{shown} head{'s' * (set(counts) != {1})}" if counts else "no heads"
    layers = f"{encoder.num_layers} layer{'s' * (encoder.num_layers != 1)} of {encoder.hidden_dim}"
    return f"attention, {heads}, {layers}{', n-grams' if encoder.ngram_buckets else ''}"


def _from_metrics(path: Path) -> dict[str, Any]:
    """Validation accuracy, epochs and time of an epoch, as far as the file tells them."""
    try:
        metrics = json.loads(path.read_text("utf-8"))
        history = metrics.get("history", [])
        counts = metrics["tokens"]["train"]
        # Rows held out of the training file were cut too.
        tokens = counts["tokens"] * metrics["data"]["train_rows"] / max(1, counts["rows"])
        validation = float(metrics["validation"]["accuracy"])
        return {"validation": validation, "epochs": len(history), **times_of_epoch(history, tokens)}
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        # A run need not have been written by this version's fit; it is judged all the same.
        return {}
