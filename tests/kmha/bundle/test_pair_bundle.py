"""Bundles of matchers: saving and loading, predictions, and rejected input."""

import dataclasses
import json
import shutil

import numpy as np
import pytest

from kmha.bundle import bundle as module
from kmha.bundle.bundle import Bundle
from kmha.errors import InputError
from tests.bundles import EDGE_CASES, PAIRS, make_pair_bundle, one_label_bundle, pair_bundle
from tests.kmha.bundle.damaged_runs import change_manifest, put, refused

TWO = ("char", "wordpiece")


@pytest.fixture(scope="module")
def two_vocabularies(tmp_path_factory):
    folder = tmp_path_factory.mktemp("two") / "run"
    bundle = make_pair_bundle(TWO)
    bundle.details["data"] = {"train": "ü"}
    bundle.thresholds = [0.25]
    bundle.save(folder)
    return bundle, folder


@pytest.fixture
def saved(two_vocabularies, tmp_path):
    """A bundle of two vocabularies that the test may damage."""
    return shutil.copytree(two_vocabularies[1], tmp_path / "run")


@pytest.mark.second
def test_a_loaded_bundle_gives_the_same_predictions(two_vocabularies):
    bundle, folder = two_vocabularies
    loaded = Bundle.load(str(folder))
    pairs = [*PAIRS, *zip(EDGE_CASES, reversed(EDGE_CASES), strict=True)]
    found = loaded.probabilities(pairs)
    np.testing.assert_array_equal(found, bundle.probabilities(pairs))
    assert np.isfinite(found).all()
    assert loaded.predict(pairs) == bundle.predict(pairs)
    assert (loaded.task, loaded.labels, loaded.thresholds) == ("match", ["score"], [0.25])
    assert loaded.details == bundle.details and loaded.sample == list(PAIRS)
    assert loaded.preprocessor.get_config() == bundle.preprocessor.get_config()
    assert not loaded.multi_label


def test_each_granularity_has_a_separate_vocabulary(two_vocabularies):
    bundle, folder = two_vocabularies
    assert {path.name for path in folder.iterdir()} == {
        "bundle.json", "model.keras", "sample.jsonl", "vocab.txt", "vocab.wordpiece.txt"
    }  # fmt: skip
    tokens = [
        len((folder / name).read_text("utf-8").split("\n")) - 1
        for name in ("vocab.txt", "vocab.wordpiece.txt")
    ]
    assert tokens == [len(part.vocabulary) for part in bundle.preprocessor.parts]
    assert tokens[0] != tokens[1]
    manifest = json.loads((folder / "bundle.json").read_text("utf-8"))
    assert list(manifest["text"]) == list(TWO) and manifest["target"] == "binary"
    assert set(manifest["files"]) == {"model.keras", "sample.jsonl", "vocab.txt", "vocab.wordpiece.txt"}


@pytest.mark.second
def test_other_pairs_in_the_batch_never_change_a_prediction(two_vocabularies, monkeypatch):
    bundle, _ = two_vocabularies
    pairs = [*PAIRS[2:5], ("", ""), ("old", "bread " * 40), ("bread " * 40, "")]
    together = bundle.probabilities(pairs)
    alone = np.concatenate([bundle.probabilities([pair]) for pair in pairs])
    np.testing.assert_allclose(together, alone, atol=1e-5)
    monkeypatch.setattr(module, "CHUNK_ROWS", 2)
    np.testing.assert_allclose(bundle.probabilities(pairs), together, atol=1e-5)
    assert together.std() > 1e-3


def test_pairs_match_from_the_threshold_on():
    scores = pair_bundle().probabilities(PAIRS)[:, 0]
    threshold = float(np.sort(scores)[3])
    predictions = dataclasses.replace(pair_bundle(), thresholds=[threshold]).predict(PAIRS)
    assert [prediction["score"] for prediction in predictions] == pytest.approx(scores.tolist())
    # A score equal to the threshold is a match; both are compared in float32.
    assert [prediction["match"] for prediction in predictions] == (scores >= np.float32(threshold)).tolist()
    assert sum(prediction["match"] for prediction in predictions) == len(PAIRS) - 3
    assert pair_bundle().thresholds == [0.5]


def test_predictions_of_graded_pairs_have_only_a_score():
    bundle = make_pair_bundle(target="graded")
    assert bundle.thresholds is None
    predictions = bundle.predict(PAIRS)
    assert all(set(prediction) == {"score"} for prediction in predictions)
    # Graded scores are not limited to [0, 1].
    assert (
        min(prediction["score"] for prediction in predictions) < 0
        or max(prediction["score"] for prediction in predictions) > 1
    )
    with pytest.raises(
        InputError, match="thresholds belong to a model of several labels, got one of a graded"
    ):
        dataclasses.replace(bundle, thresholds=[0.5])


def test_pairs_with_classes_have_label_predictions():
    bundle = make_pair_bundle(labels=["no", "yes", "maybe"], target="classes")
    probabilities = bundle.probabilities(PAIRS)
    np.testing.assert_allclose(probabilities.sum(axis=1), 1, rtol=1e-5)
    prediction = bundle.predict(PAIRS)[0]
    assert set(prediction) == {"label", "probability", "probabilities"}
    assert prediction["label"] == ["no", "yes", "maybe"][probabilities[0].argmax()]
    with pytest.raises(InputError, match="thresholds belong to a model of several labels"):
        dataclasses.replace(bundle, thresholds=[0.5] * 3)
    with pytest.raises(InputError, match="expected as many labels as the model with 3 outputs"):
        dataclasses.replace(bundle, labels=["no", "yes"])


@pytest.mark.parametrize(
    ("rows", "message"),
    [
        ("ab", "texts must be a list of strings, got one string"),
        (["ab"], "rows must be pairs of texts, got one text"),
        ([("a", "b"), b"ab"], "rows must be pairs of texts, got one text"),
        ([("a",)], "rows must be pairs of texts, got tuple"),
        ([("a", "b", "c")], "rows must be pairs of texts, got tuple"),
        ([None], "rows must be pairs of texts, got NoneType"),
        ([{"text_a": "a", "text_b": "b"}], "rows must be pairs of texts, got dict"),
        ([("a", None)], "texts must be strings, got NoneType"),
        ([(1, "b")], "texts must be strings, got int"),
    ],
)
def test_rows_that_are_not_pairs_are_rejected(rows, message):
    with pytest.raises(InputError) as caught:
        pair_bundle().predict(rows)
    assert str(caught.value) == message


def test_no_pairs_have_no_predictions():
    assert pair_bundle().predict([]) == []
    assert pair_bundle().probabilities([]).shape == (0, 1)


def test_rows_before_a_rejected_row_have_predictions(monkeypatch):
    def rows(count):
        yield from PAIRS[:count]
        raise InputError("no pair")

    for chunk in (2, 3, 100):
        monkeypatch.setattr(module, "CHUNK_ROWS", chunk)
        predictions = pair_bundle().predict_stream(rows(4))
        assert [next(predictions)["score"] for _ in range(4)] == pytest.approx(
            pair_bundle().probabilities(PAIRS[:4])[:, 0].tolist(), abs=1e-5
        )
        with pytest.raises(InputError, match="no pair"):
            next(predictions)


# Features by name.


def test_features_have_the_probabilities_of_their_texts(two_vocabularies):
    bundle, _ = two_vocabularies
    columns = [list(column) for column in zip(*PAIRS, strict=True)]
    features = {name: value.numpy() for name, value in bundle.preprocessor(*columns).items()}
    expected = bundle.probabilities(PAIRS)
    np.testing.assert_allclose(bundle.probabilities_of_features(features), expected, atol=1e-5)
    ids = {name: value for name, value in features.items() if "token_ids" in name}
    np.testing.assert_allclose(bundle.probabilities_of_features(ids), expected, atol=1e-5)
    assert len(ids) == 4
    for name in ids:
        with pytest.raises(InputError, match=f"expected {name}, got"):
            bundle.probabilities_of_features({key: value for key, value in ids.items() if key != name})
        with pytest.raises(InputError, match="must be in"):
            bundle.probabilities_of_features(ids | {name: ids[name] + 10_000})


# Rejected.


@pytest.mark.parametrize("name", ["vocab.txt", "vocab.wordpiece.txt"])
def test_a_missing_or_changed_vocabulary_is_reported(saved, name):
    content = (saved / name).read_bytes()
    (saved / name).unlink()
    assert f"expected the bundle's file {name}" in refused(saved)
    (saved / name).write_bytes(content + b"more\n")
    assert f"{saved / name}: expected SHA-256" in refused(saved)
    (saved / name).write_bytes(content)
    files = json.loads((saved / "bundle.json").read_text("utf-8"))["files"]
    del files[name]
    change_manifest(saved, files=files)
    assert f"files must contain the SHA-256 of {name}, got none" in refused(saved)


def test_exchanged_vocabularies_are_rejected(saved):
    first, second = ((saved / name).read_bytes() for name in ("vocab.txt", "vocab.wordpiece.txt"))
    put(saved, "vocab.txt", second)
    put(saved, "vocab.wordpiece.txt", first)
    assert "expected a vocabulary of at most the model's" in refused(saved)


@pytest.mark.parametrize(
    "content", [b'"a text"\n', b'["a"]\n', b'["a", "b", "c"]\n', b'["a", 1]\n', b"{}\n", b"[1", b"\xff"]
)
def test_a_sample_that_is_not_of_pairs_is_rejected(saved, content):
    put(saved, "sample.jsonl", content)
    assert f"{saved / 'sample.jsonl'}: expected a JSON list of two strings a line" in refused(saved)


def test_a_task_that_is_not_the_models_is_rejected(saved, tmp_path):
    change_manifest(saved, task="classify", multi_label=False)
    assert "expected a saved TextClassifier, got TextMatcher" in refused(saved)
    one_label_bundle().save(tmp_path / "classifier")
    change_manifest(tmp_path / "classifier", task="match", target="binary")
    assert "expected a saved TextMatcher, got TextClassifier" in refused(tmp_path / "classifier")


@pytest.mark.parametrize(
    ("values", "words"),
    [
        ({"target": "graded"}, "target must be binary as in model.keras"),
        ({"target": "other"}, "target must be one of binary, classes, graded"),
        ({"target": None}, "target must be one of"),
        ({"labels": ["a", "b"], "thresholds": None}, "model with 1 outputs, got 2 labels"),
        ({"thresholds": [0.5, 0.5]}, "expected 1 thresholds, one for each label, got 2"),
        ({"thresholds": ["half"]}, "thresholds must be null or finite numbers"),
        ({"text": {}}, "text or labels cannot be used"),
        ({"text": {"char": {}}}, "text or labels cannot be used"),
        ({"text": {"char": [], "wordpiece": []}}, "text or labels cannot be used"),
        ({"text": {"../x": {}, "/etc/hostname": {}}}, "text or labels cannot be used"),
        ({"text": {"char": {}, "../x": {}}}, "text or labels cannot be used"),
    ],
)
def test_a_manifest_that_does_not_fit_the_model_is_rejected(saved, values, words):
    change_manifest(saved, **values)
    assert words in refused(saved)


def test_granularities_in_another_order_are_rejected(saved):
    manifest = json.loads((saved / "bundle.json").read_text("utf-8"))
    text = dict(reversed(manifest["text"].items()))
    names = {"vocab.txt": "vocab.txt", "vocab.wordpiece.txt": "vocab.char.txt"}
    content = {new: (saved / old).read_bytes() for old, new in names.items()}
    change_manifest(saved, text=text)
    for name, data in content.items():
        put(saved, name, data)
    assert "expected texts tokenized as char, wordpiece as by the model, got wordpiece, char" in refused(
        saved
    )


def test_texts_longer_than_the_model_reads_are_rejected(saved):
    manifest = json.loads((saved / "bundle.json").read_text("utf-8"))
    text = {name: {**settings, "max_length": 25} for name, settings in manifest["text"].items()}
    change_manifest(saved, text=text)
    assert "max_length must be at most the model's 24, got 25" in refused(saved)
