"""Taggers as TFLite files."""

import json

import numpy as np
import pytest

from export.device.sentences import SentenceTokenizer
from export.graph import chosen_lengths, window_features
from export.predictors.token_batches import sentence_windows, window_inputs
from export.tflite.__main__ import main
from export.tflite.predictor import load_tflite, read
from export.tflite.write import check_ops, new_interpreter, write_tflite
from kmha.errors import InputError
from kmha.inference.tagger import PathDecoder
from tests.artifact_store import RUN
from tests.bundles import BIO, make_tagger_bundle, tagger_bundle
from tests.command_runs import call, run_script
from tests.export.conftest import unbounded
from tests.export.tagger_bundles import (
    KINDS,
    ROWS,
    TEXTS,
    WORDS,
    as_rows,
    check_decoding,
    check_nearly,
    every_kind,
    many_tags,
    predictions_for,
    predictions_of,
    written_by,
)

DEVICE = """
import json, sys
sys.modules["tensorflow"] = sys.modules["keras"] = None
from export.tflite.predictor import load_tflite
print(json.dumps(load_tflite(sys.argv[1])([["bread"] * 40, "old ferry"]).tolist()))
"""


@pytest.fixture(scope="module")
def files():
    """A file of each tagger of the run's longest length, with attention, as the command writes it."""
    return written_by(main, ".tflite", [("--length", "24")] * len(KINDS))


def runner_of(path, name="serving_default"):
    return new_interpreter(path.read_bytes()).get_signature_runner(name)


@every_kind
def test_sentences_are_predicted_as_by_the_run(files, kind):
    predict = load_tflite(files[kind])
    check_nearly(predict(ROWS), predictions_of(kind))
    assert predict([]).shape == predict([[]]).shape == (0, len(tagger_bundle(kind).labels) + 2)
    check_ops(files[kind].read_bytes())


@every_kind
def test_raw_texts_are_split_as_by_the_run(files, kind):
    check_nearly(load_tflite(files[kind])(TEXTS), predictions_for(tagger_bundle(kind), TEXTS))


@every_kind
def test_the_interface_has_the_names_of_the_features(files, kind):
    runner, tags = runner_of(files[kind]), len(tagger_bundle(kind).labels)
    inputs = {name: (d["dtype"], d["shape"].tolist()) for name, d in runner.get_input_details().items()}
    shapes = {"token_ids": [1, 24], "padding_mask": [1, 24], "word_starts": [1, 22], "word_mask": [1, 22]}
    if kind == "spelt":
        shapes["character_ids"] = [1, 22, 20]
    assert inputs == {name: (np.int32, shape) for name, shape in shapes.items()}
    outputs = {name: (d["dtype"], d["shape"].tolist()) for name, d in runner.get_output_details().items()}
    layers = tagger_bundle(kind).model.encoder_config.num_layers
    assert outputs == {
        "probabilities": (np.float32, [1, 22, tags]),
        "tag_ids": (np.int32, [1, 22]),
        "path_probabilities": (np.float32, [1, 22]),
        "scores": (np.float32, [1, 22, tags]),
        "attention": (np.float32, [1, layers, 2, 24, 24]),
    }


def test_scores_and_attention_are_those_of_the_model(files):
    bundle = tagger_bundle("spelt")
    features = window_features(bundle, WORDS[:1], 24)
    found = runner_of(files["spelt"])(**features)
    scores, weights = bundle.model(features, return_attention_weights=True, training=False)
    np.testing.assert_allclose(found["scores"], scores, atol=1e-4)
    np.testing.assert_allclose(found["attention"], np.stack(weights, axis=1), atol=1e-5)


@pytest.mark.second
@pytest.mark.parametrize("kind", ["spelt", "no scheme"])
def test_any_length(kind, tmp_path):
    write_tflite(tagger_bundle(kind), tmp_path / "any.tflite", [None])
    check_nearly(load_tflite(tmp_path / "any.tflite")(ROWS), predictions_of(kind))
    assert read(tmp_path / "any.tflite").facts()["lengths"] is None


@pytest.mark.second
def test_several_lengths(tmp_path):
    write_tflite(tagger_bundle("spelt"), tmp_path / "m.tflite", [8, 24])
    predictor = read(tmp_path / "m.tflite")
    check_nearly(predictor.probabilities(ROWS), predictions_of("spelt"))
    facts = predictor.facts()
    assert (facts["lengths"], facts["quantization"]) == ([8, 24], "none")
    assert facts["labels"] == tagger_bundle("spelt").labels
    assert predictor.sentences and predictor.num_texts == 1


@pytest.mark.second
def test_a_short_length_reads_shorter_windows(tmp_path):
    bundle = tagger_bundle("spelt")
    write_tflite(bundle, tmp_path / "m.tflite", [9])
    predictor, features = read(tmp_path / "m.tflite"), window_features(bundle, WORDS, 9)
    windows = [ids for row in predictor.token_ids(WORDS) for ids in row]
    pairs = zip(features["token_ids"], features["padding_mask"], strict=True)
    expected = [ids[: mask.sum()].tolist() for ids, mask in pairs]
    assert windows == expected and len(windows) > 10
    # The concatenated scores of its windows.
    scores = bundle.model(features, training=False).numpy()
    counts = features["word_mask"].sum(axis=1)
    flat = np.concatenate([each[:count] for each, count in zip(scores, counts, strict=True)])
    tagged = PathDecoder(bundle.model)(flat, np.array([len(words) for words in WORDS]))
    check_nearly(predictor.probabilities(WORDS), as_rows(tagged))


@every_kind
def test_the_predictor_reports_its_ids_of_sentences(files, kind):
    predictor, bundle = read(files[kind]), tagger_bundle(kind)
    features = window_features(bundle, ROWS)
    windows = [ids for row in predictor.token_ids(ROWS) for ids in row]
    for window, ids in enumerate(windows):
        assert ids == features["token_ids"][window, : features["padding_mask"][window].sum()].tolist()
    assert len(windows) == len(features["token_ids"])
    values = list(predictor.tensors(WORDS[:2]))
    assert len(values) > 100


@pytest.mark.second
@pytest.mark.parametrize(
    ("quantize", "tolerance", "labels"), [("float16", 0.01, BIO), ("dynamic", 0.2, many_tags())]
)
def test_quantized_files_predict_nearly_the_same_and_decode_exactly(quantize, tolerance, labels, tmp_path):
    bundle = make_tagger_bundle(labels, characters=True)
    path = tmp_path / "m.tflite"
    with unbounded():
        assert write_tflite(bundle, path, [24], quantize)["max_difference"] < tolerance
    assert read(path).facts()["quantization"] == quantize
    found, expected = load_tflite(path)(ROWS), predictions_for(bundle, ROWS)
    assert 0 < np.abs(found - expected)[:, :-2].max() < tolerance
    assert (found[:, -1] == expected[:, -1]).mean() > 0.9
    # In float16 the transitions are rounded, each by itself.
    check_decoding(path, lambda inputs: runner_of(path)(**inputs), 1e-5 if quantize == "dynamic" else 1e-3)


def test_a_file_runs_without_tensorflow(files):
    printed = run_script(DEVICE, files["spelt"])
    expected = predictions_for(tagger_bundle("spelt"), [["bread"] * 40, ["old", "ferry"]])
    check_nearly(np.array(json.loads(printed), np.float32), expected)


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (("--quantize=int8",), "--quantize: expected none, float16 or dynamic for a tagger, got int8"),
        (("--with-tokenizer",), "--with-tokenizer: expected a run of single texts, got one of sentences"),
        (("--length", "7"), "--length: expected 8 to the run's 24, got 7"),
    ],
)
def test_impossible_options_of_a_tagger_are_rejected_in_one_line(files, flags, message, tmp_path):
    outcome = call(main, files["spelt"].with_name(RUN), tmp_path / "m.tflite", *flags)
    assert (outcome.status, outcome.out, outcome.err) == (2, "", f"error: {message}\n")
    assert not list(tmp_path.iterdir())


def test_the_last_default_length_is_the_longest():
    bundle = make_tagger_bundle()
    bundle.details["lengths"] = {"p50": 5, "p90": 6, "p99": 12, "p100": 13}
    assert chosen_lengths(bundle) == [8, 16, 24]
    assert chosen_lengths(tagger_bundle("spelt"), (20, 8)) == [8, 20]


@pytest.mark.parametrize(
    ("rows", "message"),
    [
        ([["a"], 7], "sentence 2: expected a text or a list of words, got int"),
        ([["a", None]], "sentence 1: expected a text or a list of words, got list"),
        ([["a"] * 2049], "sentence 1: expected at most 2048 words a sentence, got 2049"),
    ],
)
def test_rows_that_are_not_sentences_are_rejected(files, rows, message):
    with pytest.raises(InputError, match=message):
        load_tflite(files["spelt"])(rows)


def test_windows_together_are_padded_to_the_longest(files):
    tokenizer = SentenceTokenizer.read(files["spelt"].with_suffix(".tokenizer.json"))
    parts = [
        part for words in (["bread"], ["old", "new", "bread"]) for part in sentence_windows(tokenizer, words)
    ]
    shapes = {name: values.shape for name, values in window_inputs(tokenizer, parts).items()}
    assert shapes["word_starts"] == (2, 3) and shapes["character_ids"] == (2, 3, 20)
    assert window_inputs(tokenizer, sentence_windows(tokenizer, []))["word_mask"].tolist() == [[0]]
