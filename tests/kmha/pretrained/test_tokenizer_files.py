import json

import pytest

from kmha.errors import InputError
from kmha.pretrained.huggingface import SETTINGS, TOKENIZER, read_lower_case, read_vocabulary
from kmha.text.vocabulary import SPECIAL_TOKENS
from tests.kmha.pretrained.folders import changed, copied


@pytest.fixture
def folder(tmp_path):
    """As the reference writes it: tokenizer.json and no vocab.txt."""
    return copied("distilbert", tmp_path)


def refusal(folder, read) -> str:
    with pytest.raises(InputError) as caught:
        read(folder)
    assert str(caught.value).startswith(str(folder)) and "\n" not in str(caught.value)
    return str(caught.value).removeprefix(str(folder))


def test_the_vocabulary_is_that_of_vocab_txt(folder, tmp_path):
    assert read_vocabulary(folder).tokens == read_vocabulary(copied("bert", tmp_path)).tokens


def test_vocab_txt_goes_before(folder):
    (folder / "vocab.txt").write_text("\n".join([*SPECIAL_TOKENS, "a"]))
    assert read_vocabulary(folder).tokens == (*SPECIAL_TOKENS, "a")


def test_added_tokens_behind_the_vocabulary_belong_to_it(folder):
    values = json.loads((folder / TOKENIZER).read_text("utf-8"))
    changed(folder / TOKENIZER, added_tokens=[*values["added_tokens"], {"id": 40, "content": "[NEW]"}])
    assert read_vocabulary(folder).tokens[39:] == ("港", "[NEW]")


@pytest.mark.parametrize(
    ("values", "said"),
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
def test_another_tokenizer_is_refused(folder, values, said):
    changed(folder / TOKENIZER, **values)
    assert refusal(folder, read_vocabulary).startswith(f"/{TOKENIZER}: {said}")


def test_a_missing_special_token_is_named(folder):
    values = json.loads((folder / TOKENIZER).read_text("utf-8"))
    vocab = {("[NO]" if token == "[MASK]" else token): i for token, i in values["model"]["vocab"].items()}
    changed(folder / TOKENIZER, model=values["model"] | {"vocab": vocab}, added_tokens=None)
    assert "missing [MASK]" in refusal(folder, read_vocabulary)


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
def test_case_is_as_the_settings_say_then_as_the_tokenizer_says(tmp_path, settings, normalizer, expected):
    if settings is not None:
        (tmp_path / SETTINGS).write_text(json.dumps(settings))
    if normalizer is not None:
        (tmp_path / TOKENIZER).write_text(
            json.dumps({"normalizer": {"type": "BertNormalizer", **normalizer}})
        )
    assert read_lower_case(tmp_path) is expected


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"do_lower_case": "yes"}, "do_lower_case must be true or false, got 'yes'"),
        ({"do_lower_case": True, "strip_accents": False}, "strip_accents must be as do_lower_case, True, got False"),
        ({"do_lower_case": False, "strip_accents": True}, "strip_accents must be as do_lower_case, False, got True"),
        ({"tokenize_chinese_chars": False}, "tokenize_chinese_chars must be true, got False"),
        ({"tokenizer_class": "BertJapaneseTokenizer"}, "tokenizer_class must be BertTokenizer, got 'BertJapanese"),
        ({"tokenizer_class": ["x"]}, "tokenizer_class must be BertTokenizer, got ['x']"),
    ],
)  # fmt: skip
def test_what_our_tokenizer_does_not_do_is_refused(tmp_path, settings, said):
    (tmp_path / SETTINGS).write_text(json.dumps(settings))
    assert refusal(tmp_path, read_lower_case).startswith(f"/{SETTINGS}: {said}")


@pytest.mark.parametrize("normalizer", [{"type": "Lowercase"}, [1], "x"])
def test_another_normalizer_is_refused(folder, normalizer):
    changed(folder / TOKENIZER, normalizer=normalizer)
    assert "normalizer must be" in refusal(folder, read_lower_case)
