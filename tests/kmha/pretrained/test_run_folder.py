import json
import shutil

import numpy as np
import pytest

from kmha.bundle.bundle import Bundle
from kmha.bundle.manifest import MANIFEST, write_manifest
from kmha.errors import InputError
from kmha.models.encoder import TransformerEncoder
from kmha.pretrained.checkpoint import shorten_config
from kmha.pretrained.sources import find_checkpoint
from kmha.pretrained.weights import assign_weights
from tests.bundles import one_label_bundle, pair_bundle, tagger_bundle
from tests.changed_files import flip_bit
from tests.pruned_models import SIZES, uneven_bundle, uneven_pair_bundle

RUNS = {"classify": one_label_bundle, "match": pair_bundle, "tag": tagger_bundle}


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    folders = {task: tmp_path_factory.mktemp("runs") / task for task in RUNS}
    for task, make in RUNS.items():
        make().save(folders[task])
    return folders


def with_text(run, folder, text):
    """A run whose manifest says something else of its texts, with all hashes right."""
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


def test_sizes_of_rounds_stay_with_their_matcher(tmp_path):
    uneven_pair_bundle().save(tmp_path / "run")
    config = find_checkpoint(str(tmp_path / "run")).config
    assert (config.layer_sizes, config.round_sizes) == (((2, 9),), ())
