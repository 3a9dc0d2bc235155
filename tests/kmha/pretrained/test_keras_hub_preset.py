import json
import shutil

import numpy as np
import pytest

from kmha.errors import InputError
from kmha.pretrained.keras_hub_preset import preset_handle
from kmha.pretrained.sources import download_preset, find_checkpoint
from tests.kmha.pretrained.folders import changed, filled

keras_hub = pytest.importorskip("keras_hub")

TOKENS = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *(f"w{i}" for i in range(35))]
SIZES = {
    "vocabulary_size": 40,
    "num_layers": 2,
    "num_heads": 2,
    "hidden_dim": 16,
    "intermediate_dim": 24,
    "max_sequence_length": 12,
}
KINDS = ("Bert", "DistilBert")
every_kind = pytest.mark.parametrize("kind", KINDS)


def backbone(kind):
    made = getattr(keras_hub.models, f"{kind}Backbone")(**SIZES)
    generator = np.random.default_rng(3)
    for weight in made.weights:
        weight.assign(0.5 * generator.normal(size=weight.shape))
    return made


@pytest.fixture(scope="module")
def presets(tmp_path_factory):
    """A local preset of each kind, as KerasHub writes them."""
    folders = {}
    for kind in KINDS:
        folders[kind] = tmp_path_factory.mktemp("presets") / kind
        backbone(kind).save_to_preset(str(folders[kind]))
        tokenizer = getattr(keras_hub.models, f"{kind}Tokenizer")(vocabulary=TOKENS, lowercase=kind == "Bert")
        tokenizer.save_to_preset(str(folders[kind]))
    return folders


@pytest.fixture
def folder(presets, tmp_path):
    return shutil.copytree(presets["Bert"], tmp_path / "preset")


def refusal(folder) -> str:
    with pytest.raises(InputError) as caught:
        find_checkpoint(str(folder)).read_weights()
    assert str(caught.value).startswith(str(folder)) and "\n" not in str(caught.value)
    return str(caught.value).removeprefix(str(folder))


@every_kind
def test_a_preset_has_the_hidden_states_of_keras_hub(presets, kind):
    checkpoint = find_checkpoint(str(presets[kind]))
    assert checkpoint.lower_case == (kind == "Bert")
    assert checkpoint.vocabulary.tokens == tuple(TOKENS)
    ids = np.random.default_rng(0).integers(0, 40, (3, 12)).astype("int32")
    mask = (np.arange(12) < np.array([[12], [7], [1]])).astype("int32")
    given = {"token_ids": ids, "padding_mask": mask}
    if kind == "Bert":
        given["segment_ids"] = np.repeat([[0] * 5 + [1] * 7], 3, axis=0).astype("int32")
    expected = backbone(kind)(given)
    expected = np.asarray(expected["sequence_output"] if kind == "Bert" else expected)
    found = np.asarray(filled(checkpoint)(given))
    np.testing.assert_allclose(found, expected * mask[..., None], atol=1e-5)


@pytest.mark.parametrize(
    ("values", "message"),
    [
        (
            {"class_name": "GPT2Backbone"},
            "class_name must be one of BertBackbone, DistilBertBackbone, got 'GPT2",
        ),
        (
            {"class_name": {"a": 1}},
            "class_name must be one of BertBackbone, DistilBertBackbone, got {'a': 1}",
        ),
        ({"config": 3}, "config must be an object, got 3"),
        ({"config": {}}, "vocabulary_size must be that of the vocabulary, 40, got None"),
        ({"config": SIZES}, "expected num_segments, got None"),
        ({"config": SIZES | {"num_segments": 2, "num_layers": "2"}}, "expected num_layers, got '2'"),
        ({"config": SIZES | {"num_segments": 2, "num_heads": 3}}, "num_heads must divide hidden_dim"),
    ],
)
def test_a_config_that_does_not_fit_is_rejected(folder, values, message):
    changed(folder / "config.json", **values)
    assert refusal(folder).startswith(f"/config.json: {message}")


def test_a_too_large_config_is_rejected_before_building(folder):
    changed(folder / "config.json", config=SIZES | {"num_segments": 2, "hidden_dim": 2**30})
    assert "model.weights.h5: truncated: expected" in refusal(folder)


def test_other_sizes_are_rejected(folder):
    changed(folder / "config.json", config=SIZES | {"num_segments": 2, "intermediate_dim": 20})
    assert "/model.weights.h5: expected the weights of a BertBackbone" in refusal(folder)


@pytest.mark.parametrize("name", ["model.weights.h5", "tokenizer.json", "assets/tokenizer/vocabulary.txt"])
def test_a_missing_or_damaged_file_is_rejected(folder, name):
    content = (folder / name).read_bytes()
    (folder / name).write_bytes(content[: len(content) // 2])
    refusal(folder)
    (folder / name).unlink()
    assert name.rpartition("/")[2] in refusal(folder)


def test_numbers_that_are_not_finite_are_rejected(folder):
    made = backbone("Bert")
    made.get_layer("embeddings_layer_norm").gamma.assign([np.nan] * 16)
    made.save_weights(folder / "model.weights.h5", overwrite=True)
    assert "norm/gamma has numbers that are not finite" in refusal(folder)


def test_a_tokenizer_without_lowercase_setting_is_rejected(folder):
    (folder / "tokenizer.json").write_text(json.dumps({"config": {"lowercase": 1}}))
    assert refusal(folder) == "/tokenizer.json: lowercase must be true or false, got 1"


def test_a_preset_is_downloaded_by_name(presets, monkeypatch):
    kagglehub = pytest.importorskip("kagglehub")
    handles = []

    def fetch(handle):
        handles.append(handle)
        return str(presets["Bert"])

    monkeypatch.setattr(kagglehub, "model_download", fetch)
    assert find_checkpoint("bert_tiny_en_uncased").config.hidden_dim == 16
    assert len(handles) == 1 and handles[0].startswith("keras/bert/keras/bert_tiny_en_uncased/")


def test_a_failed_preset_download_is_rejected(monkeypatch):
    kagglehub = pytest.importorskip("kagglehub")

    def fail(handle):
        raise ConnectionError("no network")

    monkeypatch.setattr(kagglehub, "model_download", fail)
    message = "no such local folder, and it cannot be downloaded from Kaggle: ConnectionError: no network"
    with pytest.raises(InputError, match=message):
        find_checkpoint("bert_tiny_en_uncased")
    with pytest.raises(InputError, match="no network"):
        download_preset("bert_tiny_en_uncased", "kaggle://x")


@pytest.mark.parametrize("name", ["no_such_preset", "gpt2_base_en", "a/b", ""])
def test_other_names_are_not_presets(name):
    assert preset_handle(name) is None
