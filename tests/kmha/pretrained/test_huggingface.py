import json

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kmha.errors import InputError
from kmha.pretrained.huggingface import CONFIG, read_huggingface
from kmha.pretrained.safetensors_file import WEIGHTS, read_safetensors, write_safetensors
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
    ("values", "said"),
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
        ({"layer_norm_eps": float("nan")}, "layer_norm_eps must be between 0 and 1, got nan"),
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
        ({"num_hidden_layers": 10**30}, "expected a tensor encoder.layer.2.attention.self.query.weight, got none"),
        ({"num_hidden_layers": 1}, "expected 1 blocks, got a tensor 'encoder.layer.1."),
    ],
)  # fmt: skip
def test_a_config_that_does_not_fit_is_refused(tmp_path, values, said):
    folder = copied("bert", tmp_path)
    changed(folder / CONFIG, **values)
    assert said in refusal(folder)


@pytest.mark.parametrize("size", [8, None])
def test_an_electra_whose_embeddings_are_narrower_is_refused(tmp_path, size):
    folder = copied("electra", tmp_path)
    changed(folder / CONFIG, embedding_size=size)
    assert f"embedding_size must be hidden_size, 16, got {size or 128}" in refusal(folder)


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (b"[1]", "must be a JSON object, got list"),
        (b"", "not valid JSON"),
        (b"\xff\xfe\xfd", "not valid JSON"),
        (b"[" * 100_000, "not valid JSON"),
        (b'{"a":' * 100_000, "not valid JSON"),
    ],
)
def test_a_config_that_is_no_object_is_refused(tmp_path, content, said):
    folder = copied("bert", tmp_path)
    (folder / CONFIG).write_bytes(content)
    assert refusal(folder).startswith(f"/{CONFIG}: {said}")


@pytest.mark.parametrize("name", [CONFIG, WEIGHTS, "vocab.txt"])
def test_a_missing_file_or_a_directory_in_its_place_is_refused(tmp_path, name):
    folder = copied("bert", tmp_path)
    (folder / name).unlink()
    assert name in refusal(folder)
    (folder / name).mkdir()
    assert "Is a directory" in refusal(folder)


def test_a_missing_tensor_is_named(tmp_path):
    folder = copied("bert", tmp_path)
    rewritten(folder, lambda tensors: tensors.pop(QUERY))
    assert refusal(folder) == f": expected a tensor {QUERY}, got none of that name"


def test_no_tensor_of_an_encoder_is_said(tmp_path):
    folder = copied("bert", tmp_path)
    write_safetensors(folder / WEIGHTS, {"x\ny": np.zeros(1, "float32")})
    assert refusal(folder) == ": expected a tensor embeddings.word_embeddings.weight, got 'x\\ny', …"
    write_safetensors(folder / WEIGHTS, {})
    assert refusal(folder).endswith("got none")


def test_a_misshapen_tensor_is_named_with_both_shapes(tmp_path):
    folder = copied("bert", tmp_path)
    rewritten(folder, lambda tensors: tensors.update({QUERY: tensors[QUERY][:, :-1]}))
    assert refusal(folder) == f"/{WEIGHTS}: tensor {QUERY} must have shape [16, 16], got [16, 15]"


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_numbers_that_are_not_finite_are_refused(tmp_path, value):
    folder = copied("bert", tmp_path)
    rewritten(folder, lambda tensors: tensors[QUERY].__setitem__((3, 4), value))
    assert refusal(folder) == f"/{WEIGHTS}: tensor {QUERY} has numbers that are not finite"


def test_a_wrong_vocabulary_is_refused(tmp_path):
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
def test_whatever_is_changed_in_its_config_it_is_read_or_refused(tmp_path_factory, name, data):
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
