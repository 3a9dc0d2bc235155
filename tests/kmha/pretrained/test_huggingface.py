import json
import shutil

import numpy as np
import pytest
import tensorflow as tf
from hypothesis import given, settings
from hypothesis import strategies as st

from kmha.errors import InputError
from kmha.pretrained.huggingface import (
    CONFIG,
    SETTINGS,
    TOKENIZER,
    read_huggingface,
    read_lower_case,
    read_vocabulary,
)
from kmha.pretrained.safetensors_file import WEIGHTS, read_safetensors, write_safetensors
from kmha.pretrained.sources import find_checkpoint
from kmha.text.vocabulary import SPECIAL_TOKENS
from tests.kmha.pretrained.folders import GOLDEN, TINY, changed, copied

QUERY = "encoder.layer.1.attention.self.query.weight"


def refusal(folder) -> str:
    with pytest.raises(InputError) as caught:
        read_huggingface(folder).read_weights()
    message = str(caught.value)
    assert message.startswith(str(folder)) and "\n" not in message
    return message.removeprefix(str(folder))


def rewritten(folder, change) -> None:
    tensors = {name: tensor.read() for name, tensor in read_safetensors(folder / WEIGHTS).items()}
    change(tensors)
    write_safetensors(folder / WEIGHTS, tensors)


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"model_type": "roberta"}, "model_type must be one of bert, electra, distilbert, got 'roberta'"),
        ({"model_type": None}, "model_type must be one of bert, electra, distilbert, got none"),
        ({"model_type": ["bert"]}, "model_type must be one of bert, electra, distilbert, got ['bert']"),
        ({"hidden_size": None}, "expected hidden_size, got None"),
        ({"hidden_size": "16"}, "expected hidden_size, got '16'"),
        ({"hidden_size": 16.0}, "expected hidden_size, got 16.0"),
        ({"num_hidden_layers": True}, "expected num_hidden_layers, got True"),
        ({"num_attention_heads": 0}, "num_heads must be at least 1, got 0"),
        ({"num_attention_heads": 3}, "num_heads must divide hidden_dim, got hidden_dim 16 and num_heads 3"),
        ({"hidden_act": "silu"}, "the activation must be one of gelu, gelu_python"),
        ({"hidden_act": 1}, "expected hidden_act, got 1"),
        ({"layer_norm_eps": 0}, "layer_norm_eps must be between 0 and 1, got 0"),
        ({"layer_norm_eps": float("nan")}, "expected finite numbers, got NaN"),
        ({"position_embedding_type": "relative_key"}, "position_embedding_type must be absolute, got 'relative_key'"),
        ({"is_decoder": True}, "is_decoder must be False, got True"),
        ({"pruned_heads": {"0": [1]}}, "pruned_heads must be {}, got {'0': [1]}"),
        ({"vocab_size": 41}, "vocab_size must be the number of tokens, 40, got 41"),
        ({"vocab_size": None}, "vocab_size must be the number of tokens, 40, got None"),
        ({"hidden_size": 2**40, "num_attention_heads": 1}, "must have shape [40, 1099511627776], got [40, 16]"),
        ({"max_position_embeddings": 25}, "position_embeddings.weight must have shape [25, 16], got [24, 16]"),
        ({"type_vocab_size": 1}, "token_type_embeddings.weight must have shape [1, 16], got [2, 16]"),
        ({"intermediate_size": 32}, "intermediate.dense.weight must have shape [32, 16], got [24, 16]"),
        ({"num_hidden_layers": 3}, "expected a tensor encoder.layer.2.attention.self.query.weight, got none"),
        ({"num_hidden_layers": 10**30}, "expected num_hidden_layers, got 1e+30"),
        ({"num_hidden_layers": 1}, "expected 1 blocks, got a tensor 'encoder.layer.1."),
    ],
)  # fmt: skip
def test_a_config_that_does_not_fit_is_rejected(tmp_path, values, message):
    folder = copied("bert", tmp_path)
    changed(folder / CONFIG, **values)
    assert message in refusal(folder)


@pytest.mark.parametrize("size", [8, None])
def test_an_electra_whose_embeddings_are_narrower_is_rejected(tmp_path, size):
    folder = copied("electra", tmp_path)
    changed(folder / CONFIG, embedding_size=size)
    assert f"embedding_size must be hidden_size, 16, got {size or 128}" in refusal(folder)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"[1]", "must be a JSON object, got list"),
        (b"", "not valid JSON"),
        (b"\xff\xfe\xfd", "not valid JSON"),
        (b"[" * 100_000, "not valid JSON"),
        (b'{"a":' * 100_000, "not valid JSON"),
    ],
)
def test_a_config_that_is_no_object_is_rejected(tmp_path, content, message):
    folder = copied("bert", tmp_path)
    (folder / CONFIG).write_bytes(content)
    assert refusal(folder).startswith(f"/{CONFIG}: {message}")


@pytest.mark.parametrize("name", [CONFIG, WEIGHTS, "vocab.txt"])
def test_a_missing_file_or_a_directory_in_its_place_is_rejected(tmp_path, name):
    folder = copied("bert", tmp_path)
    (folder / name).unlink()
    assert name in refusal(folder)
    (folder / name).mkdir()
    assert "Is a directory" in refusal(folder)


def test_a_missing_tensor_is_named(tmp_path):
    folder = copied("bert", tmp_path)
    rewritten(folder, lambda tensors: tensors.pop(QUERY))
    assert refusal(folder) == f": expected a tensor {QUERY}, got none of that name"


def test_a_file_without_encoder_tensors_is_reported(tmp_path):
    folder = copied("bert", tmp_path)
    write_safetensors(folder / WEIGHTS, {"x\ny": np.zeros(1, "float32")})
    assert refusal(folder) == ": expected a tensor embeddings.word_embeddings.weight, got 'x\\ny', …"
    write_safetensors(folder / WEIGHTS, {})
    assert refusal(folder).endswith("got none")


def test_a_wrong_tensor_shape_is_reported_with_both_shapes(tmp_path):
    folder = copied("bert", tmp_path)
    rewritten(folder, lambda tensors: tensors.update({QUERY: tensors[QUERY][:, :-1]}))
    assert refusal(folder) == f"/{WEIGHTS}: tensor {QUERY} must have shape [16, 16], got [16, 15]"


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_numbers_that_are_not_finite_are_rejected(tmp_path, value):
    folder = copied("bert", tmp_path)
    rewritten(folder, lambda tensors: tensors[QUERY].__setitem__((3, 4), value))
    assert refusal(folder) == f"/{WEIGHTS}: tensor {QUERY} has numbers that are not finite"


def test_a_wrong_vocabulary_is_rejected(tmp_path):
    folder = copied("bert", tmp_path)
    tokens = (folder / "vocab.txt").read_text("utf-8").splitlines()
    (folder / "vocab.txt").write_text("\n".join(tokens[:-1]), "utf-8")
    assert refusal(folder) == "/config.json: vocab_size must be the number of tokens, 39, got 40"
    (folder / "vocab.txt").write_text("\n".join([*tokens[1:], "x"]), "utf-8")
    assert "expected the special tokens" in refusal(folder)


def test_tensors_may_have_the_name_of_the_model_before_theirs_and_old_ends(tmp_path):
    folder = copied("bert", tmp_path)
    expected = read_huggingface(folder).read_weights()

    def renamed(tensors):
        for name in list(tensors):
            old = name.replace("LayerNorm.weight", "LayerNorm.gamma").replace(
                "LayerNorm.bias", "LayerNorm.beta"
            )
            tensors[f"bert.{old}"] = tensors.pop(name)
        tensors["cls.predictions.bias"] = np.zeros(40, "float32")

    rewritten(folder, renamed)
    for path, weight in read_huggingface(folder).read_weights().items():
        np.testing.assert_array_equal(weight, expected[path])


@given(st.data())
@settings(max_examples=150)
@pytest.mark.parametrize("name", TINY)
def test_any_change_of_the_config_is_read_or_rejected(tmp_path_factory, name, data):
    folder = copied(name, tmp_path_factory.mktemp("fuzz"))
    values = json.loads((folder / CONFIG).read_text())
    if data.draw(st.booleans()):
        key = data.draw(st.sampled_from(sorted(values)))
        json_values = st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5)
        values[key] = data.draw(json_values | st.lists(json_values, max_size=2) | st.just({"a": 1}))
        content = json.dumps(values).encode()
    else:
        content = json.dumps(values).encode()
        place = data.draw(st.integers(0, len(content)))
        some = data.draw(st.binary(max_size=4))
        content = content[:place] + some + content[place + data.draw(st.integers(0, 4)) :]
    (folder / CONFIG).write_bytes(content)
    try:
        read_huggingface(folder).read_weights()
    except InputError as error:
        assert str(error).startswith(str(folder)) and "\n" not in str(error)


def test_the_golden_checkpoints_are_small():
    assert sum(path.stat().st_size for path in GOLDEN.rglob("*") if path.is_file()) < 150_000


# The tokenizer files.


@pytest.fixture
def folder(tmp_path):
    """As written by the reference: tokenizer.json and no vocab.txt."""
    return copied("distilbert", tmp_path)


def tokenizer_refusal(folder, read) -> str:
    with pytest.raises(InputError) as caught:
        read(folder)
    assert str(caught.value).startswith(str(folder)) and "\n" not in str(caught.value)
    return str(caught.value).removeprefix(str(folder))


def test_the_vocabulary_is_that_of_vocab_txt(folder, tmp_path):
    assert read_vocabulary(folder).tokens == read_vocabulary(copied("bert", tmp_path)).tokens


def test_vocab_txt_takes_precedence(folder):
    (folder / "vocab.txt").write_text("\n".join([*SPECIAL_TOKENS, "a"]))
    assert read_vocabulary(folder).tokens == (*SPECIAL_TOKENS, "a")


def test_added_tokens_behind_the_vocabulary_belong_to_it(folder):
    values = json.loads((folder / TOKENIZER).read_text("utf-8"))
    changed(folder / TOKENIZER, added_tokens=[*values["added_tokens"], {"id": 40, "content": "[NEW]"}])
    assert read_vocabulary(folder).tokens[39:] == ("港", "[NEW]")


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"model": None}, "model must be an object, got None"),
        ({"model": {"type": "Unigram", "vocab": []}}, "type of the model must be WordPiece, got 'Unigram'"),
        ({"model": {"type": "WordPiece"}}, "continuing_subword_prefix of the model must be ##, got None"),
        ({"model": {"type": "WordPiece", "continuing_subword_prefix": "##", "vocab": 1}}, "vocab must be an object"),
        ({"added_tokens": [{"id": 41, "content": "x"}]}, "ids of the vocabulary must be 0 to 40, each once"),
        ({"added_tokens": [{"id": 3, "content": "x"}]}, "ids of the vocabulary must be 0 to 40, each once"),
        ({"added_tokens": [{"id": "x", "content": "x"}]}, "ids of the vocabulary must be 0 to 40, each once"),
        ({"added_tokens": [{"id": 1, "content": "[PAD]"}]}, "added token '[PAD]' must have the id 0"),
        ({"added_tokens": ["x"]}, "added_tokens must be a list of objects, got ['x']"),
        ({"added_tokens": {"x": 1}}, "added_tokens must be a list of objects"),
    ],
)  # fmt: skip
def test_another_tokenizer_is_rejected(folder, values, message):
    changed(folder / TOKENIZER, **values)
    assert tokenizer_refusal(folder, read_vocabulary).startswith(f"/{TOKENIZER}: {message}")


def test_a_missing_special_token_is_named(folder):
    values = json.loads((folder / TOKENIZER).read_text("utf-8"))
    vocab = {("[NO]" if token == "[MASK]" else token): i for token, i in values["model"]["vocab"].items()}
    changed(folder / TOKENIZER, model=values["model"] | {"vocab": vocab}, added_tokens=None)
    assert "missing [MASK]" in tokenizer_refusal(folder, read_vocabulary)


@pytest.mark.parametrize(
    ("settings", "normalizer", "expected"),
    [
        ({}, None, True),
        ({}, {"lowercase": False}, False),
        ({}, {"lowercase": False, "strip_accents": False}, False),
        ({"do_lower_case": False}, {"lowercase": True}, False),
        ({"do_lower_case": None}, {"lowercase": False}, False),
        ({"do_lower_case": True, "strip_accents": True, "tokenize_chinese_chars": True}, None, True),
        ({"tokenizer_class": "BertTokenizerFast"}, None, True),
        (None, None, True),
    ],
)
def test_settings_take_precedence_over_the_tokenizer(tmp_path, settings, normalizer, expected):
    if settings is not None:
        (tmp_path / SETTINGS).write_text(json.dumps(settings))
    if normalizer is not None:
        (tmp_path / TOKENIZER).write_text(
            json.dumps({"normalizer": {"type": "BertNormalizer", **normalizer}})
        )
    assert read_lower_case(tmp_path) is expected


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"do_lower_case": "yes"}, "do_lower_case must be true or false, got 'yes'"),
        ({"do_lower_case": True, "strip_accents": False}, "strip_accents must be as do_lower_case, True, got False"),
        ({"do_lower_case": False, "strip_accents": True}, "strip_accents must be as do_lower_case, False, got True"),
        ({"tokenize_chinese_chars": False}, "tokenize_chinese_chars must be true, got False"),
        ({"tokenizer_class": "BertJapaneseTokenizer"}, "tokenizer_class must be BertTokenizer, got 'BertJapanese"),
        ({"tokenizer_class": ["x"]}, "tokenizer_class must be BertTokenizer, got ['x']"),
    ],
)  # fmt: skip
def test_unsupported_tokenizer_settings_are_rejected(tmp_path, settings, message):
    (tmp_path / SETTINGS).write_text(json.dumps(settings))
    assert tokenizer_refusal(tmp_path, read_lower_case).startswith(f"/{SETTINGS}: {message}")


@pytest.mark.parametrize("normalizer", [{"type": "Lowercase"}, [1], "x"])
def test_another_normalizer_is_rejected(folder, normalizer):
    changed(folder / TOKENIZER, normalizer=normalizer)
    assert "normalizer must be" in tokenizer_refusal(folder, read_lower_case)


ENDINGS = {
    "LayerNorm.weight": "LayerNorm/gamma",
    "LayerNorm.bias": "LayerNorm/beta",
    "embeddings.weight": "embeddings",
}


def first_name(name: str) -> str:
    """The first release's name of a tensor of the reference: encoder.layer.0.output.dense.weight -> bert/encoder/…"""
    for new, old in ENDINGS.items():
        if name.endswith(new):
            name = name.removesuffix(new) + old
    name = name.replace("layer.", "layer_").replace(".", "/")
    return f"bert/{name.removesuffix('/weight')}/kernel" if name.endswith("/weight") else f"bert/{name}"


@pytest.fixture(scope="module")
def written(tmp_path_factory):
    """The tiny BERT in the format of the first release, with additional tensors of training."""
    first_folder = tmp_path_factory.mktemp("first") / "bert"
    first_folder.mkdir()
    shutil.copy(GOLDEN / "bert" / "config.json", first_folder / "bert_config.json")
    changed(first_folder / "bert_config.json", model_type=None, architectures=None, layer_norm_eps=None)
    shutil.copy(GOLDEN / "bert" / "vocab.txt", first_folder)
    tensors = {"global_step": np.int64(3), "cls/predictions/output_bias": np.zeros(40, "float32")}
    for name, tensor in read_safetensors(GOLDEN / "bert" / "model.safetensors").items():
        value = tensor.read()
        tensors[first_name(name)] = value.T if first_name(name).endswith("kernel") else value
    tf.raw_ops.SaveV2(
        prefix=str(first_folder / "bert_model.ckpt"),
        tensor_names=list(tensors),
        shape_and_slices=[""] * len(tensors),
        tensors=[tf.constant(value) for value in tensors.values()],
    )
    return first_folder


@pytest.fixture
def first_folder(written, tmp_path):
    return shutil.copytree(written, tmp_path / "bert")


def test_a_first_release_checkpoint_has_the_weights_of_hugging_face(written):
    assert (written / "bert_model.ckpt.index").exists()
    found, expected = find_checkpoint(str(written)), find_checkpoint(str(GOLDEN / "bert"))
    weights = expected.read_weights()
    assert found.read_weights().keys() == weights.keys()
    for path, weight in found.read_weights().items():
        np.testing.assert_array_equal(weight, weights[path])
    assert found.vocabulary.tokens == expected.vocabulary.tokens and found.config.norm_epsilon == 1e-12


def test_a_vocabulary_with_capitals_is_cased(first_folder):
    assert not find_checkpoint(str(first_folder)).lower_case
    text = (first_folder / "vocab.txt").read_text("utf-8").replace("Old", "olden").replace("Bread", "breads")
    (first_folder / "vocab.txt").write_text(text, "utf-8")
    assert find_checkpoint(str(first_folder)).lower_case


@pytest.mark.parametrize(
    "name", ["bert_model.ckpt.index", "bert_model.ckpt.data-00000-of-00001", "vocab.txt"]
)
@pytest.mark.parametrize("damage", ["gone", "cut", "flipped"])
def test_a_damaged_file_is_rejected(first_folder, name, damage):
    path = first_folder / name
    content = path.read_bytes()
    if damage == "gone":
        path.unlink()
    elif damage == "cut":
        path.write_bytes(content[: len(content) // 2])
    else:
        path.write_bytes(content[: len(content) // 2] + b"\xff\xff\xff" + content[len(content) // 2 + 3 :])
    with pytest.raises(InputError) as caught:
        find_checkpoint(str(first_folder)).read_weights()
    assert str(caught.value).startswith(str(first_folder)) and "\n" not in str(caught.value)


def test_a_config_of_the_first_release_that_does_not_fit_is_rejected(first_folder):
    changed(first_folder / "bert_config.json", intermediate_size=25)
    with pytest.raises(
        InputError, match=r"intermediate.dense.weight must have shape \[25, 16\], got \[24, 16\]"
    ):
        find_checkpoint(str(first_folder))
