import hashlib
import json
import subprocess
import sys

import pytest

from kmha.bundle import manifest
from kmha.bundle.manifest import FORMAT, open_bundle, read_consistent, read_manifest, write_manifest
from kmha.errors import InputError
from tests.command_runs import ROOT

VALUES = {
    "task": "classify",
    "labels": ["ja", "nein"],
    "multi_label": False,
    "thresholds": None,
    "text": {},
    "more": [1, "ü"],
}

FILES = ("model.keras", "vocab.txt")


@pytest.fixture
def folder(tmp_path):
    for name in FILES:
        (tmp_path / name).write_bytes(name.encode())
    write_manifest(tmp_path, VALUES, FILES)
    return tmp_path


def test_a_written_manifest_is_read_back(folder):
    manifest = read_manifest(folder)
    assert VALUES.items() <= manifest.items()
    assert (manifest["format"], manifest["task"]) == (FORMAT, "classify")
    assert manifest["files"]["vocab.txt"] == hashlib.sha256(b"vocab.txt").hexdigest()
    with open_bundle(folder) as (opened, files):
        assert opened == manifest and {name: file.read() for name, file in files.items()} == {
            name: name.encode() for name in FILES
        }


def test_a_masked_language_model_has_no_labels(folder):
    values = {**VALUES, "task": "masked-lm", "labels": [], "vocabulary_size": 9}
    write_manifest(folder, values, FILES)
    assert read_manifest(folder)["labels"] == []
    for wrong, message in (
        ({"labels": ["a"]}, "labels must be an empty list"),
        ({"vocabulary_size": 0}, "vocabulary_size must be a number of tokens, got 0"),
        ({"vocabulary_size": True}, "vocabulary_size must be a number of tokens, got true"),
    ):
        write_manifest(folder, values | wrong, FILES)
        with pytest.raises(InputError, match=message):
            read_manifest(folder)


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"lengths": [9]}, "lengths must be numbers of tokens by percentile, got"),
        ({"lengths": {"p50": 9.5}}, "lengths must be numbers of tokens by percentile, got"),
        ({"lengths": {"p50": None}}, "lengths must be numbers of tokens by percentile, got"),
        ({"given_scheme": ["bio"]}, "given_scheme must be one of"),
        ({"abstain_below": 2}, "abstain_below must be a number from 0 to 1, got 2"),
    ],
)
def test_other_values_of_the_training_are_checked_too(folder, values, message):
    write_manifest(folder, VALUES | values, FILES)
    with pytest.raises(InputError, match=message):
        read_manifest(folder)


def test_values_cannot_override_format_or_hashes(folder):
    write_manifest(folder, VALUES | {"format": 99, "files": {}}, FILES)
    with open_bundle(folder) as (manifest, files):
        assert manifest["format"] == FORMAT and set(files) == set(FILES)


def test_non_ascii_letters_are_not_escaped(folder):
    assert '"ü"' in (folder / "bundle.json").read_text("utf-8")


def test_all_recorded_files_are_checked(folder):
    manifest = read_manifest(folder)
    manifest["files"]["more.txt"] = hashlib.sha256(b"a").hexdigest()
    (folder / "bundle.json").write_text(json.dumps(manifest))
    with pytest.raises(InputError, match="expected the bundle's file more.txt"), open_bundle(folder):
        pytest.fail("opened")
    (folder / "more.txt").write_bytes(b"b")
    with pytest.raises(InputError, match="more.txt: expected SHA-256"), open_bundle(folder):
        pytest.fail("opened")


def test_a_long_invalid_value_is_truncated_in_the_message(folder):
    (folder / "bundle.json").write_text(json.dumps(read_manifest(folder) | {"task": "x" * 9999}))
    with pytest.raises(InputError) as error:
        read_manifest(folder)
    assert len(str(error.value)) < 300


def test_the_manifest_module_imports_no_tensorflow():
    program = (
        "import kmha.bundle.manifest, sys; assert not {'keras', 'tensorflow', 'numpy'} & set(sys.modules)"
    )
    subprocess.run([sys.executable, "-c", program], cwd=ROOT, check=True)


def test_a_folder_that_is_missing_for_a_moment_is_read(folder, tmp_path, monkeypatch):
    """As between the two renames that replace a run."""
    aside = folder.rename(tmp_path.with_name(f"{tmp_path.name}.aside"))
    with pytest.raises(InputError, match="expected a run folder with bundle.json"):
        read_consistent(folder, lambda: read_manifest(folder))
    monkeypatch.setattr(manifest.time, "sleep", lambda _: aside.rename(folder))
    assert read_consistent(folder, lambda: read_manifest(folder))["labels"] == VALUES["labels"]
