"""Correct exports of matchers pass; broken ones fail, and the wrong layer is named."""

import dataclasses
from pathlib import Path

import numpy as np
import pytest
import tensorflow as tf

from export.onnx.write import write_onnx
from export.savedmodel.endpoints import MatcherEndpoints, concrete_function
from export.savedmodel.predictor import read
from export.savedmodel.write import write_savedmodel
from export.tflite.write import write_tflite
from export.verify import main
from kmha.text.preprocessor import PairPreprocessor, Preprocessor
from kmha.text.vocabulary import Vocabulary
from tests.bundles import EDGE_CASES, PAIRS, TEXTS, make_pair_bundle
from tests.command_runs import call, write_csv
from tests.export.conftest import unbounded

ROWS = [*PAIRS, *((a, f"{a} {b}") for a, b in PAIRS), ("bread", "bread"), ("", "old harbour"), ("", "")]
BYTES = [
    *((a.encode(), b.encode()) for a, b in ROWS),
    *((text, TEXTS[0].encode()) for text in EDGE_CASES[:12]),
    *((text, text) for text in EDGE_CASES[:12]),
]


def rows_file(bundle, path: Path, columns=("text_a", "text_b", "label")) -> Path:
    """Writes rows labeled by the bundle itself, the last one wrongly where labels are names."""
    if bundle.model.target == "graded":
        labels = [str(score) for score in bundle.probabilities(ROWS)[:, 0]]
    else:
        labels = [str(int(prediction["match"])) for prediction in bundle.predict(ROWS)]
        labels[-1] = str(1 - int(labels[-1]))
    return write_csv(path, [(*pair, label) for pair, label in zip(ROWS, labels, strict=True)], columns)


def binary(**options):
    """A bundle by which some of the rows match and others do not, none of them at the threshold itself."""
    bundle = make_pair_bundle(**options)
    scores = np.unique(bundle.probabilities(ROWS).round(3))
    bundle.thresholds = [float(scores[len(scores) // 2 - 1 :][:2].mean())]
    bundle.details["metric"] = "accuracy"
    return bundle


def quick_savedmodel(bundle, folder: Path) -> Path:
    """With the signature of texts only: the others take most of the time to write."""
    served = MatcherEndpoints(bundle)
    texts = [tf.TensorSpec([None], tf.string, name) for name in ("text_a", "text_b")]
    tf.saved_model.save(
        served, str(folder), signatures={"serving_default": concrete_function(served.predict_text, *texts)}
    )
    return folder


@pytest.mark.parametrize(
    "options",
    [
        {"target": "classes", "labels": ("entails", "neutral", "contradicts"), "form": "joint"},
        {"form": "bi", "share_weights": False},
    ],
)
def test_the_predictor_gives_the_predictions_of_the_bundle(tmp_path, options):
    bundle = make_pair_bundle(**options)
    predictor = read(quick_savedmodel(bundle, tmp_path / "served"))
    assert predictor.num_texts == 2 and predictor.facts()["labels"] == bundle.labels
    assert predictor.token_ids(BYTES) is None
    np.testing.assert_allclose(predictor.probabilities(BYTES), bundle.probabilities(BYTES), atol=1e-5)
    assert predictor.probabilities([]).shape == (0, len(bundle.labels))


@pytest.mark.second
def test_a_correct_export_passes(tmp_path):
    bundle = binary()
    bundle.save(tmp_path / "run")
    served, light, onnx = write_savedmodel(bundle, tmp_path / "s"), tmp_path / "m.tflite", tmp_path / "m.onnx"
    write_tflite(bundle, light, [16], "none")
    write_onnx(bundle, onnx)
    data = rows_file(bundle, tmp_path / "rows.csv", ("left", "right", "same"))
    wrong = call(main, tmp_path / "run", served, "--data", data)
    assert wrong.status == 2 and "'text_a'" in wrong.err
    flags = ["--text-column=left", "--text-b-column=right", "--label-column=same"]
    outcome = call(main, tmp_path / "run", served, light, onnx, "--data", data, *flags)
    assert outcome.status == 0, outcome.err
    assert outcome.json["rows"] == len(ROWS)
    assert outcome.json["accuracy"] == pytest.approx(1 - 1 / len(ROWS))
    reports = {report["format"]: report for report in outcome.json["artifacts"]}
    for report in reports.values():
        assert report["edge_case_rows"] > 50 and report["max_difference"] < 1e-5
        assert report["label_agreement"] == 1 and report["set_agreement"] is None
        assert report["accuracy_rounding"] == 0
    assert f"{len(ROWS)} rows of {data} and {report['edge_case_rows']} edge-case pairs" in outcome.err
    # The file of 16 tokens a text truncates some that the run reads whole.
    assert reports["tflite"]["lengths"] == [16] and reports["tflite"]["rows_longer"] > 5
    assert reports["tflite"]["rows_with_other_ids"] == reports["onnx"]["rows_with_other_ids"] == 0


@pytest.mark.slow
def test_graded_scores_are_compared_by_their_size(tmp_path):
    bundle = make_pair_bundle(("char", "word"), target="graded", symmetric=True)
    # Scores of about a thousand, whose float32 rounding error is above 1e-4.
    head = bundle.model.head.kernel
    head.assign(head * 1000)
    bundle.details["metric"] = "spearman"
    bundle.save(tmp_path / "run")
    served = quick_savedmodel(bundle, tmp_path / "served")
    outcome = call(main, tmp_path / "run", served, "--data", rows_file(bundle, tmp_path / "rows.csv"))
    assert outcome.status == 0, outcome.err
    assert outcome.json["spearman"] == pytest.approx(1)
    (report,) = outcome.json["artifacts"]
    assert report["label_agreement"] is None and report["max_difference"] < 1e-5
    assert report["spearman_change"] == pytest.approx(0, abs=1e-6)


def other_round(bundle):
    kernel = bundle.model.pairs[0].rounds_b[0].feed_forward.trainable_variables[0]
    kernel.assign(kernel * 1.1)
    return bundle


def other_rarity(bundle):
    table = bundle.model.pairs[0].token_overlap.rarity
    table.assign(table * 0.5)
    return bundle


def other_words(bundle):
    part = bundle.preprocessor.parts[0]
    tokens = list(part.vocabulary.tokens)
    tokens[5:] = np.random.default_rng(1).permutation(np.array(tokens[5:], object)).tolist()
    other = Preprocessor(Vocabulary(tokens), **part.get_config())
    return dataclasses.replace(bundle, preprocessor=PairPreprocessor({"wordpiece": other}))


def without_mask(bundle):
    block = bundle.model.pairs[0].rounds_a[1]
    whole = block.call
    block.call = lambda x, context, attention_mask=None, **rest: whole(x, context, **rest)
    return bundle


BREAKS = {
    "a round's weights": (other_round, ["b round_0"]),
    "vocabulary": (other_words, ["tokenizer a"]),
    # Which of both texts shares a token depends on the rows.
    "rarities": (other_rarity, ["a overlap marks", "b overlap marks"]),
    "mask": (without_mask, ["a round_1 attention weights"]),
}


def deep(how: str = ""):
    bundle = make_pair_bundle(rounds=2, share_weights=False)
    bundle.details["metric"] = "accuracy"
    return BREAKS[how][0](bundle) if how else bundle


def written(bundle, suffix: str, path: Path) -> Path:
    if suffix == ".onnx":
        with unbounded():
            write_onnx(bundle, path)
    elif suffix == ".tflite":
        with unbounded():
            write_tflite(bundle, path, [16], "none")
    else:
        quick_savedmodel(bundle, path)
    return path


@pytest.mark.slow
@pytest.mark.parametrize(
    ("suffix", "how"),
    [
        ("", "a round's weights"),
        *(pytest.param("", how, marks=pytest.mark.slow) for how in list(BREAKS)[1:]),
        *(pytest.param(".onnx", how, marks=pytest.mark.slow) for how in BREAKS),
        *(pytest.param(".tflite", how, marks=pytest.mark.slow) for how in BREAKS),
    ],
)
def test_a_broken_export_fails_and_its_layer_is_named(tmp_path, suffix, how):
    correct = deep()
    correct.save(tmp_path / "run")
    path = written(deep(how), suffix, tmp_path / f"model{suffix}")
    outcome = call(main, tmp_path / "run", path, "--data", rows_file(correct, tmp_path / "rows.csv"))
    assert outcome.status == 1, outcome.err
    (report,) = outcome.json["artifacts"]
    # Device files have a tokenizer of their own; in a SavedModel the ids are tensors of the graph.
    expected = ["tokenizer"] if suffix and how == "vocabulary" else BREAKS[how][1]
    assert not report["passed"] and report["failures"]
    assert report["first_divergent_layer"] in expected, report
    assert f"differs first in {report['first_divergent_layer']}" in outcome.err
