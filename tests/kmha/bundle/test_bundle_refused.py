"""Run folders that must be rejected: damaged, changed, of a newer format, or malicious."""

import hashlib
import json

import keras
import pytest

from kmha.bundle.bundle import Bundle
from kmha.bundle.manifest import FORMAT
from kmha.errors import InputError
from tests.bundles import one_label_bundle, several_label_bundle
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
def test_a_sample_of_something_else_is_rejected(saved, content):
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
