"""Scores of candidates and of existing runs on the same test rows, and their latency."""

import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import tensorflow as tf

from kmha.bundle.bundle import Bundle
from kmha.config import EncoderConfig
from kmha.features import PADDING_MASK, SEGMENT_IDS, TOKEN_IDS
from kmha.input_files import read_json
from kmha.text.preprocessor import Preprocessor
from training.comparison.candidates import HEADS
from training.data.load import Data
from training.evaluation.evaluator import predict_probabilities
from training.io.examples import label_ids
from training.metrics.bootstrap import single_label_resampled
from training.metrics.classification import single_label_prediction_scores
from training.metrics.paired import compare_resampled
from training.runs.run_folder import METRICS
from training.runtime.resource_usage import count_trainable_weights
from training.runtime.round_robin import time_in_turns

_OTHER = "(a label that these rows do not have)"

# The fastest of several calls counts.
CALLS = 3
# From a length to a call that predicts one text; None if the candidate cannot read so many tokens.
Caller = Callable[[int], Callable[[], Any] | None]


def prediction_names(data: Data) -> list[str]:
    """Possible predictions: the labels of the training rows, labels of test rows only, and any other label."""
    assert data.test is not None
    return [*label_ids(data.test.examples, data.test.rows, data.labels)[1], _OTHER]


def score_predictions(predictions: Mapping[str, list[int]], data: Data) -> dict[str, dict[str, Any]]:
    """Scores the predictions for the test rows by candidate, as indices in `prediction_names`.

    Returns:
        "accuracy", "macro_f1", their "intervals", and except for the reference "difference": accuracy minus that of the
        "reference" on the same rows, as "value", "interval", "verdict" and "mcnemar"; see `compare_resampled`.
    """
    assert data.test is not None
    true, _ = label_ids(data.test.examples, data.test.rows, data.labels)
    resampled = {
        name: single_label_resampled(true, np.asarray(ids, np.int64)) for name, ids in predictions.items()
    }
    labels, found = prediction_names(data), {}
    for name, each in resampled.items():
        scores = single_label_prediction_scores(true, each.rows[:, 1], labels, num_classes=len(data.labels))
        found[name] = {
            "accuracy": scores["accuracy"],
            "macro_f1": scores["macro_f1"],
            "intervals": each.intervals(),
        }
    reference = reference_of({name: scores["accuracy"] for name, scores in found.items()})
    for name, each in resampled.items():
        if name != reference:
            compared = compare_resampled([each], [resampled[reference]], reference, name)["accuracy"]
            found[name]["difference"] = {
                "value": compared.pop("difference"),
                **compared,
                "reference": reference,
            }
    return found


def reference_of(accuracies: Mapping[str, float]) -> str:
    """The reference: attention with several heads, or the best candidate if that is missing."""
    return HEADS if HEADS in accuracies else max(accuracies, key=lambda name: accuracies[name])


def model_caller(model: Any, vocabulary_size: int, max_tokens: int) -> Caller:
    """Calls a model with token ids, in one graph for all lengths."""
    spec = tf.TensorSpec([1, None], tf.int32)

    @tf.function(input_signature=[spec, spec], autograph=False)
    def predict(ids, mask):
        features = {TOKEN_IDS: ids, SEGMENT_IDS: tf.zeros_like(ids), PADDING_MASK: mask}
        return model.probabilities(model(features, training=False))

    def caller(length: int) -> Callable[[], Any] | None:
        if length > max_tokens:
            return None
        generator, lowest = np.random.default_rng(length), min(5, vocabulary_size - 1)
        ids = tf.constant(generator.integers(lowest, vocabulary_size, (1, length)), tf.int32)
        mask = tf.ones([1, length], tf.int32)
        return lambda: predict(ids, mask).numpy()

    return caller


def linear_caller(fitted: Any, preprocessor: Preprocessor, texts: Sequence[str]) -> Caller:
    """Calls a linear model with text: splitting it into words is most of its work."""

    def caller(length: int) -> Callable[[], Any]:
        text = [text_of_length(preprocessor, texts, length)]
        return lambda: fitted.predict(text)

    return caller


def text_of_length(preprocessor: Preprocessor, texts: Sequence[str], length: int) -> str:
    """Joins texts and truncates them to about so many tokens, special tokens included."""
    whole = " ".join(texts)
    while whole.strip() and _tokens(preprocessor, whole[: 64 * length]) < length and len(whole) < 64 * length:
        whole = f"{whole} {whole}"
    low, high = 0, min(len(whole), 64 * length)
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if _tokens(preprocessor, whole[:middle]) <= length else (low, middle)
    return whole[:low]


def _tokens(preprocessor: Preprocessor, text: str) -> int:
    return int(preprocessor.tokenize(tf.constant([text.encode()])).row_lengths()[0]) + 2


def latencies(
    callers: Mapping[str, Caller],
    lengths: Sequence[int],
    rounds: int,
    clock: Callable[[], float] = time.perf_counter,
) -> dict[str, dict[int, float]]:
    """Milliseconds of one text by candidate and length: median of the rounds, in each the fastest of three calls."""
    calls = {name: [caller(length) for length in lengths] for name, caller in callers.items()}
    # The untimed call warms the caches, and traces in the first round.
    seconds = time_in_turns(calls, rounds, warm_ups=1, repeats=CALLS, clock=clock)
    return {
        name: {
            length: 1e3 * statistics.median(each)
            for length, each in zip(lengths, by_length, strict=True)
            if each
        }
        for name, by_length in seconds.items()
    }


def run_result(path: Path, bundle: Bundle, data: Data) -> dict[str, Any]:
    """Evaluates a run on the test rows: JSON values, of which "answers" are indices in `prediction_names`."""
    assert data.test is not None
    names = prediction_names(data)
    places = {name: place for place, name in enumerate(names)}
    best = predict_probabilities(bundle, data.test).argmax(axis=1)
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


def epoch_times(history: Sequence[dict[str, Any]], tokens: float) -> dict[str, float]:
    """Times of the training steps of an epoch of so many real tokens, from the median speeds that the history has."""
    names = {"seconds_per_epoch": "tokens_per_second", "cpu_seconds_per_epoch": "tokens_per_cpu_second"}
    speeds = {name: [epoch[key] for epoch in history if epoch.get(key)] for name, key in names.items()}
    return {name: tokens / statistics.median(values) for name, values in speeds.items() if values}


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
        metrics = read_json(path)
        history = metrics.get("history", [])
        counts = metrics["tokens"]["train"]
        # The count includes rows held out of the training file.
        tokens = counts["tokens"] * metrics["data"]["train_rows"] / max(1, counts["rows"])
        validation = float(metrics["validation"]["accuracy"])
        return {"validation": validation, "epochs": len(history), **epoch_times(history, tokens)}
    except (ValueError, KeyError, TypeError, AttributeError):
        # Runs of other versions are evaluated too.
        return {}
