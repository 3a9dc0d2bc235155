"""Taggers as ONNX files."""

import json

import numpy as np
import pytest

from export.graph import OUTPUTS, input_names, window_features
from export.onnx.__main__ import main
from export.onnx.predictor import read
from export.onnx.write import write_onnx
from kmha.errors import InputError
from tests.bundles import make_tagger_bundle, tagger_bundle
from tests.command_runs import run_script
from tests.export.conftest import unbounded
from tests.export.tagger_bundles import (
    FIRST,
    ROWS,
    TEXTS,
    WORDS,
    check_decoding,
    check_nearly,
    every_kind,
    many_tags,
    predictions_for,
    predictions_of,
    written_by,
)
from tests.stages import with_stages

onnx = pytest.importorskip("onnx")
onnxruntime = pytest.importorskip("onnxruntime")

DEVICE = """
import json, sys
sys.modules["tensorflow"] = sys.modules["keras"] = None
from pathlib import Path
from export.onnx.predictor import read
print(json.dumps(read(Path(sys.argv[1])).probabilities([["bread"] * 40, "old ferry"]).tolist()))
"""
OPSETS = (17, 13, 18)


@pytest.fixture(scope="module")
def files():
    """A file of each tagger, each in another version of ONNX' operators, with attention, as the command writes it."""
    return written_by(main, ".onnx", [(f"--opset={opset}",) for opset in OPSETS])


def session(path):
    return onnxruntime.InferenceSession(str(path), providers=["CPUExecutionProvider"])


def outputs_of(loaded, inputs):
    names = [output.name for output in loaded.get_outputs()]
    return dict(zip(names, loaded.run(names, inputs), strict=True))


@every_kind
def test_sentences_are_predicted_as_by_the_run(files, kind):
    predictor = read(files[kind])
    check_nearly(predictor.probabilities(ROWS), predictions_of(kind))
    assert predictor.probabilities([]).shape == (0, len(tagger_bundle(kind).labels) + 2)
    assert predictor.sentences and predictor.num_texts == 1


@every_kind
def test_raw_texts_are_split_as_by_the_run(files, kind):
    check_nearly(read(files[kind]).probabilities(TEXTS), predictions_for(tagger_bundle(kind), TEXTS))


def test_the_interface(files):
    loaded = session(files["spelt"])
    assert [(i.name, i.type, i.shape) for i in loaded.get_inputs()] == [
        ("token_ids", "tensor(int32)", ["batch", "length"]),
        ("padding_mask", "tensor(int32)", ["batch", "length"]),
        ("word_starts", "tensor(int32)", ["batch", "words"]),
        ("word_mask", "tensor(int32)", ["batch", "words"]),
        ("character_ids", "tensor(int32)", ["batch", "words", 20]),
    ]
    assert [(o.name, o.type, o.shape) for o in loaded.get_outputs()] == [
        ("probabilities", "tensor(float)", ["batch", "words", 5]),
        ("tag_ids", "tensor(int32)", ["batch", "words"]),
        ("path_probabilities", "tensor(float)", ["batch", "words"]),
        ("scores", "tensor(float)", ["batch", "words", 5]),
        ("attention", "tensor(float)", ["batch", 1, 2, "length", "length"]),
    ]


@every_kind
def test_padding_and_batch_composition_change_no_prediction(files, kind):
    bundle, loaded = tagger_bundle(kind), session(files[kind])
    assert [given.name for given in loaded.get_inputs()] == input_names(bundle)
    whole = outputs_of(loaded, window_features(bundle, WORDS, 24))
    begin = 0
    for words in WORDS[:4]:
        alone = window_features(bundle, [words])
        found, count = outputs_of(loaded, alone), alone["word_mask"].sum(axis=1)
        for row in range(len(count)):
            for name in OUTPUTS:
                expected = whole[name][begin + row, : count[row]]
                np.testing.assert_allclose(found[name][row, : count[row]], expected, atol=1e-4)
        begin += len(count)


@pytest.mark.parametrize("kind", with_stages(["spelt", "characters"], FIRST))
def test_scores_and_attention_are_those_of_the_model(files, kind):
    bundle = tagger_bundle(kind)
    features = window_features(bundle, WORDS)
    found = outputs_of(session(files[kind]), features)
    scores, weights = bundle.model(features, return_attention_weights=True, training=False)
    np.testing.assert_allclose(found["scores"], scores, atol=1e-4)
    np.testing.assert_allclose(found["attention"], np.stack(weights, axis=1), atol=1e-5)


def test_the_metadata_describes_the_outputs(files):
    values = session(files["spelt"]).get_modelmeta().custom_metadata_map
    found = {name: json.loads(value) for name, value in values.items() if name != "versions"}
    bundle = tagger_bundle("spelt")
    size = len(bundle.preprocessor.vocabulary)
    assert found == {
        "labels": bundle.labels,
        "task": "tag",
        "scheme": "bio",
        "max_length": 24,
        "vocabulary_size": size,
    }


@pytest.mark.second
def test_quantized_files_predict_nearly_the_same_and_decode_exactly(tmp_path):
    bundle = make_tagger_bundle(many_tags(), characters=True)
    path = tmp_path / "m.onnx"
    with unbounded():
        assert 1e-6 < write_onnx(bundle, path, quantize="dynamic")["max_difference"] < 0.2
    predictor = read(path)
    assert predictor.facts()["quantization"] == "dynamic"
    found, expected = predictor.probabilities(ROWS), predictions_for(bundle, ROWS)
    assert (found[:, -1] == expected[:, -1]).mean() > 0.9
    loaded = session(path)
    check_decoding(path, lambda inputs: outputs_of(loaded, inputs))


@every_kind
def test_the_predictor_reports_its_ids_of_sentences(files, kind):
    predictor, bundle = read(files[kind]), tagger_bundle(kind)
    facts = predictor.facts()
    assert (facts["labels"], facts["lengths"], facts["quantization"]) == (bundle.labels, None, "none")
    features = window_features(bundle, ROWS)
    windows = [ids for row in predictor.token_ids(ROWS) for ids in row]
    for window, ids in enumerate(windows):
        assert ids == features["token_ids"][window, : features["padding_mask"][window].sum()].tolist()
    assert len(list(predictor.tensors(WORDS[:2]))) > 100


def test_a_file_runs_without_tensorflow(files):
    printed = run_script(DEVICE, files["spelt"])
    expected = predictions_for(tagger_bundle("spelt"), [["bread"] * 40, ["old", "ferry"]])
    check_nearly(np.array(json.loads(printed), np.float32), expected)


def test_rows_that_are_not_sentences_are_rejected(files):
    with pytest.raises(InputError, match="sentence 2: expected a text or a list of words, got int"):
        read(files["spelt"]).probabilities(["bread", 7])
