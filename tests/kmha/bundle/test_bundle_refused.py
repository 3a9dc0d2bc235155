"""Run folders that must be rejected: damaged, changed, of a newer format, or malicious."""

import hashlib
import io
import json
import os
import threading
import time
import zipfile

import h5py
import keras
import numpy as np
import pytest

from kmha.bundle.bundle import Bundle
from kmha.bundle.manifest import FORMAT, open_bundle
from kmha.bundle.model_file import read_model
from kmha.errors import InputError
from kmha.models.classifier import TextClassifier
from tests.bundles import make_bundle, one_label_bundle, several_label_bundle
from tests.changed_files import flip_bit
from tests.kmha.bundle.damaged_runs import change_manifest, put, refused


@pytest.mark.parametrize("name", ["model.keras", "vocab.txt"])
@pytest.mark.parametrize("place", [0.0, 0.5, 0.99])
def test_one_changed_byte_is_rejected(saved, name, place):
    flip_bit(saved / name, int(place * (saved / name).stat().st_size))
    message = refused(saved)
    assert f"{saved / name}: expected SHA-256" in message and "changed" in message


@pytest.mark.parametrize("name", ["model.keras", "vocab.txt"])
def test_a_missing_file_is_named(saved, name):
    (saved / name).unlink()
    assert f"expected the bundle's file {name}" in refused(saved)


@pytest.mark.parametrize("content", [b"no JSON", b"[1]", b"\xff"])
def test_an_invalid_sample_is_rejected(saved, content):
    put(saved, "sample.jsonl", content)
    assert f"{saved / 'sample.jsonl'}: expected a JSON string a line" in refused(saved)


@pytest.mark.parametrize("kind", ["absent", "empty folder", "file"])
def test_an_invalid_run_folder_is_rejected(tmp_path, kind):
    folder = tmp_path / "run"
    folder.mkdir() if kind == "empty folder" else folder.touch() if kind == "file" else None
    assert "expected a run folder with bundle.json" in refused(folder)


def test_a_newer_format_is_rejected(saved):
    change_manifest(saved, format=FORMAT + 1)
    assert f"expected bundle format {FORMAT} or older, got {FORMAT + 1}" in refused(saved)


@pytest.mark.parametrize("content", [b"", b"{", b"\xff{}", b"[]", b"null", b'"text"', b"{}"])
def test_a_damaged_manifest_is_rejected(saved, content):
    (saved / "bundle.json").write_bytes(content)
    assert "bundle.json" in refused(saved)


@pytest.mark.parametrize("name", ["format", "task", "labels", "multi_label", "thresholds", "text", "files"])
@pytest.mark.parametrize("value", ["absent", "other", 7.5, {"other": 1}, [], [[1]], True])
def test_a_wrong_or_missing_entry_of_the_manifest_is_rejected(saved, name, value):
    change_manifest(saved, **{name: value})
    assert refused(saved)


@pytest.mark.parametrize(
    "name", ["../x", "/etc/hostname", "a/b", "..", ".", "", "a\\b", "model.keras/../x", "\0"]
)
def test_names_that_leave_the_folder_are_rejected(saved, name):
    (saved.parent / "x").write_bytes(b"x")
    files = json.loads((saved / "bundle.json").read_text("utf-8"))["files"]
    change_manifest(saved, files=files | {name: hashlib.sha256(b"x").hexdigest()})
    assert "must be plain names" in refused(saved)


@pytest.mark.parametrize("name", ["model.keras", "vocab.txt"])
def test_a_file_without_a_hash_is_rejected(saved, name):
    files = json.loads((saved / "bundle.json").read_text("utf-8"))["files"]
    del files[name]
    change_manifest(saved, files=files)
    assert name in refused(saved)


@pytest.mark.parametrize(
    ("values", "words"),
    [
        ({"labels": ["a", "b"]}, "model with 3 outputs, got 2 labels"),
        ({"labels": ["a", "b", "c", "d"]}, "model with 3 outputs, got 4 labels"),
        ({"labels": ["a", "b", "a"]}, "labels"),
        ({"labels": ["a", "b", 3]}, "labels"),
        ({"multi_label": True}, "multi_label"),
        ({"thresholds": [0.5] * 3}, "thresholds"),
        ({"text": {"tokenization": "bytes", "lower_case": True, "max_length": 24}}, "tokenization"),
        ({"text": {"tokenization": "word", "lower_case": True, "max_length": 25}}, "max_length"),
        ({"text": {"tokenization": "word", "lower_case": True, "max_length": "24"}}, "max_length"),
        ({"text": {"tokenization": "word", "lower_case": True}}, "text"),
    ],
)
def test_a_manifest_that_does_not_fit_the_model_is_rejected(saved, values, words):
    change_manifest(saved, **values)
    assert words in refused(saved)


@pytest.mark.parametrize("thresholds", [[0.5] * 3, [0.5] * 5, ["0.5"] * 4, [float("nan")] * 4, 0.5])
def test_thresholds_that_do_not_fit_are_rejected(tmp_path, thresholds):
    several_label_bundle().save(tmp_path)
    change_manifest(tmp_path, thresholds=thresholds)
    assert "thresholds" in refused(tmp_path)


def test_a_vocabulary_larger_than_the_model_is_rejected(saved):
    put(saved, "vocab.txt", (saved / "vocab.txt").read_bytes() + b"one-more\n")
    assert "vocabulary" in refused(saved)


def test_a_model_with_code_is_rejected(saved, tmp_path):
    hidden = keras.Sequential([keras.layers.Input([3]), keras.layers.Lambda(lambda x: x + 1)])
    hidden.save(tmp_path / "lambda.keras")
    put(saved, "model.keras", (tmp_path / "lambda.keras").read_bytes())
    message = refused(saved)
    assert "model.keras" in message and "Lambda" in message


@pytest.mark.parametrize("content", [b"", b"no archive", b"PK\x03\x04 half"])
def test_an_invalid_model_file_is_rejected(saved, content):
    put(saved, "model.keras", content)
    assert "model.keras" in refused(saved)


def test_another_kind_of_model_is_rejected(saved, tmp_path):
    keras.Sequential([keras.layers.Input([3]), keras.layers.Dense(3)]).save(tmp_path / "other.keras")
    put(saved, "model.keras", (tmp_path / "other.keras").read_bytes())
    assert "TextClassifier" in refused(saved)


def test_a_bundle_of_parts_that_do_not_fit_is_rejected():
    made = one_label_bundle()
    with pytest.raises(InputError, match="3 outputs, got 1 labels"):
        Bundle(made.model, made.preprocessor, ["a"])


def change_model(folder, change_config=None, change_weights=None) -> None:
    """Replaces the configuration or the weights in the model file, and records the new hash."""
    with zipfile.ZipFile(folder / "model.keras") as archive:
        files = {name: archive.read(name) for name in archive.namelist()}
    if change_config is not None:
        config = json.loads(files["config.json"])
        change_config(config)
        files["config.json"] = json.dumps(config).encode()
    if change_weights is not None:
        content = io.BytesIO(files["model.weights.h5"])
        with h5py.File(content, "r+") as weights:
            change_weights(weights)
        files["model.weights.h5"] = content.getvalue()
    content = io.BytesIO()
    with zipfile.ZipFile(content, "w") as archive:
        for name, each in files.items():
            archive.writestr(name, each)
    put(folder, "model.keras", content.getvalue())


def test_an_unchanged_model_file_is_read(saved):
    change_model(saved, lambda config: None, lambda weights: None)
    expected = one_label_bundle().probabilities(["bread"])
    np.testing.assert_allclose(Bundle.load(saved).probabilities(["bread"]), expected, atol=1e-6)


@pytest.mark.parametrize("value", ["absent", {}, None])
def test_a_model_that_keras_does_not_build_is_rejected(saved, value):
    """Keras would read no weights, and predictions would be those of random ones."""

    def unbuilt(config):
        config["build_config"] = value
        if value == "absent":
            del config["build_config"]

    change_model(saved, unbuilt)
    assert "model.keras: expected a saved TextClassifier, " in refused(saved)


@pytest.mark.parametrize("value", [float("nan"), float("inf"), -float("inf")])
def test_a_model_with_a_weight_that_is_no_number_is_rejected(saved, value):
    def damage(weights):
        weights["head/vars/0"][1, 1] = value

    change_model(saved, None, damage)
    assert "NaN or infinity in head/vars/0" in refused(saved)


@pytest.mark.parametrize("change", ["one more", "one less", "another shape", "a copy"])
def test_a_model_file_with_other_weights_is_rejected(saved, change):
    def damage(weights):
        layer = weights["head/vars"]
        if change == "one more":
            layer["2"] = np.zeros(3, "float32")
        elif change == "a copy":
            weights["other/vars/0"] = layer["0"][()]
        else:
            del layer["1"]
            if change == "another shape":
                layer["1"] = np.zeros(4, "float32")

    change_model(saved, None, damage)
    assert "model.keras: expected a saved TextClassifier, " in refused(saved)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("vocabulary_size", 20_000_000),
        ("vocabulary_size", 200_000),
        ("num_layers", 1_000_000),
        ("num_layers", 900),
        ("hidden_dim", 2**40),
        ("hidden_dim", 16_384),
        ("intermediate_dim", 60_000),
        ("max_length", 60_000),
        ("ngram_buckets", 200_000),
    ],
)
def test_a_model_larger_than_its_weights_is_rejected_before_it_is_built(saved, monkeypatch, name, value):
    monkeypatch.setattr(keras.saving, "load_model", None)
    change_model(saved, lambda config: config["config"]["encoder"].update({name: value}))
    assert "numbers" in refused(saved)


def test_n_grams_of_any_length_are_rejected_before_they_are_computed(saved, monkeypatch):
    """Numbers of 19 digits are read as floats; Keras would read an integer and compute 10^18 hashes."""
    monkeypatch.setattr(keras.saving, "load_model", None)
    change_model(saved, lambda config: config["config"]["encoder"].update({"ngram_orders": [2, 10**18]}))
    assert "ngram_orders must be 2 to 64 each" in refused(saved)


def test_a_model_file_that_grows_when_unpacked_is_rejected(saved, monkeypatch):
    monkeypatch.setattr(keras.saving, "load_model", None)

    def compressed(weights):
        weights.create_dataset("other/vars/0", (1 << 22,), "float32", compression="gzip", fillvalue=0)

    change_model(saved, None, compressed)
    assert "bytes that unpack to" in refused(saved)
    content = io.BytesIO((saved / "model.keras").read_bytes())
    with zipfile.ZipFile(content, "a", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("metadata.json.", b"0" * 5_000_000)
    put(saved, "model.keras", content.getvalue())
    assert "got an archive of" in refused(saved)


@pytest.mark.parametrize("place", ["dtype", "pooling", "build_config"])
def test_another_class_is_rejected_before_keras_creates_it(saved, monkeypatch, place):
    monkeypatch.setattr(keras.saving, "load_model", None)
    layer = {"module": "keras.layers", "class_name": "TorchModuleWrapper", "config": {"module": "x"}}

    def add(config):
        (config if place == "build_config" else config["config"])[place] = [{"a": layer}]

    change_model(saved, add)
    assert "got one with the classes TorchModuleWrapper" in refused(saved)


@pytest.mark.parametrize("name", ["model.keras", "vocab.txt", "sample.jsonl"])
def test_a_pipe_in_place_of_a_file_is_rejected(saved, name):
    (saved / name).unlink()
    os.mkfifo(saved / name)
    assert f"expected the bundle's file {name}" in refused(saved)


@pytest.mark.second
def test_a_run_that_is_replaced_while_it_is_loaded_is_one_run_or_an_error(tmp_path):
    """Two runs of other weights and vocabularies are moved to the same path in turn."""
    first, second = one_label_bundle(), make_bundle(tokenization="word")
    bundles, expected = {"first": first, "second": second}, {}
    for name, each in bundles.items():
        each.save(tmp_path / name)
        expected[len(each.preprocessor.vocabulary)] = each.probabilities(["bread"])
    run, stop = tmp_path / "run", threading.Event()

    def swap():
        while not stop.is_set():
            for name in bundles:
                (tmp_path / name).rename(run)
                time.sleep(0.003)
                run.rename(tmp_path / name)

    swapping, loaded = threading.Thread(target=swap), 0
    swapping.start()
    try:
        for _ in range(12):
            try:
                bundle = Bundle.load(run)
            except InputError as error:
                assert str(run) in str(error)
            else:
                loaded += 1
                found = expected[len(bundle.preprocessor.vocabulary)]
                np.testing.assert_allclose(bundle.probabilities(["bread"]), found, atol=1e-6)
    finally:
        stop.set()
        swapping.join()
    assert loaded > 6


def test_a_model_file_that_is_replaced_after_it_was_opened_is_not_read(saved, tmp_path):
    expected = [each.numpy() for each in one_label_bundle().model.weights]
    with open_bundle(saved) as (_, files):
        make_bundle(tokenization="word").save(tmp_path / "other")
        (tmp_path / "other/model.keras").replace(saved / "model.keras")
        model = read_model(files["model.keras"], saved / "model.keras", TextClassifier)
    for weights, each in zip(model.weights, expected, strict=True):
        np.testing.assert_array_equal(weights.numpy(), each)


@pytest.mark.parametrize("text", ["NaN", "Infinity", "1e999", "-Infinity"])
def test_a_manifest_with_a_number_that_is_none_is_rejected(saved, text):
    manifest = (saved / "bundle.json").read_text("utf-8")
    (saved / "bundle.json").write_text(manifest.replace('"thresholds": null', f'"thresholds": {text}'))
    assert "bundle.json" in refused(saved)
    (saved / "bundle.json").write_text(manifest.replace('"p50": 9', f'"p50": {text}'))
    assert "expected finite numbers, got" in refused(saved)


def test_thresholds_of_any_size_are_compared(tmp_path):
    several_label_bundle().save(tmp_path)
    change_manifest(tmp_path, thresholds=[10**400] * 4)
    assert "thresholds" in refused(tmp_path)


def test_a_bundle_with_weights_that_are_no_numbers_cannot_be_made_or_predict():
    made = make_bundle()
    made.model.weights[-1].assign(np.full(3, np.nan, "float32"))
    with pytest.raises(InputError, match="the model returns NaN for text 1"):
        made.predict(["bread"])
    with pytest.raises(InputError, match="expected finite weights, got NaN or infinity in"):
        Bundle(made.model, made.preprocessor, made.labels)
    with pytest.raises(InputError, match="expected finite thresholds"):
        make_bundle(multi_label=True, thresholds=[0.5, float("nan"), 0.5])
