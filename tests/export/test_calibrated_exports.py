"""A calibrated run: every export has its probabilities and its abstention threshold."""

import json

import numpy as np
import pytest
import tensorflow as tf

from export.batch.rows import predict
from export.device.files import tokenizer_values
from export.graph import input_names, tagger_function, window_features
from export.onnx.write import write_onnx
from export.savedmodel.endpoints import ClassifierEndpoints, MatcherEndpoints
from export.tflite.write import write_tflite
from export.verify import main
from kmha.calibration import Calibration, calibrate
from kmha.features import WORD_STARTS
from tests.bundles import PAIRS, SENTENCES, TEXTS, make_bundle, make_pair_bundle, make_tagger_bundle
from tests.command_runs import call, write_csv
from tests.export.conftest import unbounded

SOFTER = Calibration((2.5,), (0.0,))


@pytest.fixture(scope="module")
def bundle():
    made = make_bundle()
    before = made.probabilities(TEXTS)
    calibrate(made.model, SOFTER)
    after = made.probabilities(TEXTS)
    assert (after.max(axis=1) < before.max(axis=1)).all()
    made.abstain_below = float(np.median(after.max(axis=1)) + 1e-3)
    return made


@pytest.mark.second
def test_every_export_passes_verify(bundle, tmp_path):
    bundle.save(tmp_path / "run")
    labels = [prediction["label"] for prediction in bundle.predict(TEXTS)]
    rows = write_csv(tmp_path / "rows.csv", list(zip(TEXTS, labels, strict=True)))
    write_tflite(bundle, tmp_path / "a.tflite", [16], "none")
    write_onnx(bundle, tmp_path / "a.onnx")
    artifacts = [tmp_path / "a.tflite", tmp_path / "a.onnx"]
    outcome = call(main, tmp_path / "run", *artifacts, "--data", rows)
    assert outcome.status == 0, outcome.err


@pytest.mark.second
def test_calibration_costs_no_accuracy_in_8_bits(tmp_path):
    """A temperature scales the last weights and their range alike: their 8 bits stay the same."""
    from export.tflite.predictor import read

    found = {}
    for name, calibration in (("before", Calibration()), ("after", SOFTER)):
        bundle = make_bundle()
        calibrate(bundle.model, calibration)
        with unbounded():
            write_tflite(bundle, tmp_path / f"{name}.tflite", [16], "dynamic")
        texts = [text.encode() for text in TEXTS]
        found[name] = read(tmp_path / f"{name}.tflite").probabilities(texts)
    logits = np.log(found["before"].astype(np.float64)) / 2.5
    expected = np.exp(logits) / np.exp(logits).sum(axis=1, keepdims=True)
    np.testing.assert_allclose(found["after"], expected, atol=1e-5)


def test_served_predictions_abstain_as_the_run_does(bundle):
    served = ClassifierEndpoints(bundle).predict_text(tf.constant(TEXTS, tf.string))
    predictions = bundle.predict(TEXTS)
    abstained = [prediction["abstained"] for prediction in predictions]
    assert served["abstained"].numpy().tolist() == abstained and 0 < sum(abstained) < len(TEXTS)
    np.testing.assert_allclose(served["probabilities"].numpy(), bundle.probabilities(TEXTS), atol=1e-6)


def test_batch_predictions_abstain_too(bundle):
    endpoints = ClassifierEndpoints(bundle)
    found = predict(list(TEXTS), lambda texts: endpoints.predict_text(tf.constant(texts, tf.string)))
    assert [each["abstained"] for each in found] == [each["abstained"] for each in bundle.predict(TEXTS)]


def test_served_pairs_abstain_by_the_probability_of_the_decision():
    bundle = make_pair_bundle(form="bi")
    scores = bundle.probabilities(PAIRS)[:, 0]
    bundle.thresholds = [float(np.median(scores))]
    confidences = np.where(scores >= np.median(scores), scores, 1 - scores)
    # Midway between two adjacent confidences.
    ranked = np.unique(confidences)
    bundle.abstain_below = float(ranked[len(ranked) // 2 - 1 :][:2].mean())
    columns = [tf.constant(texts, tf.string) for texts in zip(*PAIRS, strict=True)]
    served = MatcherEndpoints(bundle).predict_text(*columns)
    abstained = [prediction["abstained"] for prediction in bundle.predict(PAIRS)]
    assert served["abstained"].numpy().tolist() == abstained == (confidences < bundle.abstain_below).tolist()
    assert 0 < sum(abstained) < len(PAIRS)
    assert tokenizer_values(bundle)["abstain_below"] == np.float32(bundle.abstain_below)


def test_files_contain_the_abstention_threshold(bundle, tmp_path):
    onnx = pytest.importorskip("onnx")
    assert tokenizer_values(bundle)["abstain_below"] == np.float32(bundle.abstain_below)
    write_onnx(bundle, tmp_path / "b.onnx")
    metadata = {entry.key: entry.value for entry in onnx.load(str(tmp_path / "b.onnx")).metadata_props}
    assert json.loads(metadata["abstain_below"]) == bundle.abstain_below
    never = make_bundle()
    assert "abstain_below" not in tokenizer_values(never)
    assert all("abstained" not in prediction for prediction in never.predict(TEXTS))
    assert "abstained" not in ClassifierEndpoints(never).predict_text(tf.constant(TEXTS, tf.string))


def test_an_exported_tagger_decodes_the_calibrated_scores():
    """Scores of words are decoded outside the model: they must fit the exported transition scores."""
    bundle = make_tagger_bundle()
    words = [sentence.split() for sentence in SENTENCES[:2]]
    before = bundle.tagger.tag(words)
    calibrate(bundle.model, SOFTER)
    features = window_features(bundle, words)
    found = tagger_function(bundle)(*(features[name] for name in input_names(bundle)))
    real = features[WORD_STARTS] > 0
    after = bundle.tagger.tag(words)
    np.testing.assert_array_equal(found["tag_ids"].numpy()[real], before.tag_ids)
    np.testing.assert_allclose(found["probabilities"].numpy()[real], after.probabilities, atol=1e-5)
    assert after.probabilities.max(axis=1).mean() < before.probabilities.max(axis=1).mean()
