import json

import numpy as np
import pytest
import tensorflow as tf

from export.device.files import (
    CODE_POINTS,
    changes,
    character_classes,
    hangul_letters,
    normalization,
    ranges,
    tokenizer_json,
    tokenizer_values,
)
from kmha.errors import InputError
from kmha.text.preprocessor import Preprocessor, normalizer
from kmha.text.vocabulary import SPECIAL_TOKENS, Vocabulary
from tests.bundles import make_bundle, one_label_bundle, several_label_bundle


def test_the_file_has_all_values(tmp_path):
    bundle = several_label_bundle()
    (tmp_path / "t.json").write_bytes(tokenizer_json(bundle))
    values = json.loads((tmp_path / "t.json").read_text("utf-8"))
    assert values == json.loads(json.dumps(tokenizer_values(bundle)))
    assert values["vocabulary"] == list(bundle.preprocessor.vocabulary.tokens)
    assert values["labels"] == bundle.labels and values["thresholds"] == bundle.thresholds
    assert (values["format"], values["max_length"], values["max_bytes"]) == (1, 24, 24 * 64)
    assert values["special_ids"] == {"padding": 0, "unknown": 1, "start": 2, "end": 3, "mask": 4}
    # Small enough to send to a page with every model.
    assert (tmp_path / "t.json").stat().st_size < 100_000


def test_the_same_bundle_gives_the_same_bytes(tmp_path):
    for name in "ab":
        (tmp_path / name).write_bytes(tokenizer_json(one_label_bundle()))
    assert (tmp_path / "a").read_bytes() == (tmp_path / "b").read_bytes()


@pytest.mark.parametrize(
    ("token", "lower_case", "is_refused"),
    [("new york", True, True), ("\u3000", False, True), ("\u3000", True, False), ("a\x85b", True, False)],
)
def test_white_space_in_a_token_is_rejected(token, lower_case, is_refused):
    bundle = make_bundle()
    vocabulary = Vocabulary([*SPECIAL_TOKENS, "bread", token])
    bundle.preprocessor = Preprocessor(vocabulary, "wordpiece", lower_case, 24)
    if not is_refused:
        assert tokenizer_values(bundle)["vocabulary"][-1] == token
        return
    with pytest.raises(InputError, match="vocabulary:7: expected tokens without white space"):
        tokenizer_values(bundle)
    bundle.preprocessor = Preprocessor(vocabulary, "char", lower_case, 24)
    assert tokenizer_values(bundle)["vocabulary"][-1] == token


def expanded(bounds: list[int]) -> list[int]:
    return [
        code for first, last in zip(bounds[::2], bounds[1::2], strict=True) for code in range(first, last + 1)
    ]


@pytest.mark.parametrize(
    ("codes", "expected"),
    [([], []), ([7], [7, 7]), ([1, 2, 3, 9, 10, 20], [1, 3, 9, 10, 20, 20])],
)
def test_ranges(codes, expected):
    assert ranges(codes) == expected
    assert expanded(expected) == codes


def test_hangul_by_the_examples_of_the_standard():
    assert hangul_letters(ord("가")) == "\u1100\u1161"
    assert hangul_letters(ord("퓛")) == "\u1111\u1171\u11b6"


@pytest.mark.parametrize("lower_case", [True, False])
def test_the_compact_form_is_equivalent(lower_case):
    compact = normalization(lower_case)
    found = {code: after for after, bounds in compact["replaced"].items() for code in expanded(bounds)}
    for first, last, step, shift in compact["shifted"]:
        moved = {code: chr(code + shift) for code in range(first, last + 1, step)}
        assert not moved.keys() & found.keys()
        found |= moved
    if compact["hangul"]:
        found |= {code: hangul_letters(code) for code in range(0xAC00, 0xD7A4)}
    assert found == changes(lower_case)


@pytest.mark.parametrize("lower_case", [True, False])
def test_each_character_is_normalized_independently_and_once(lower_case):
    changed = changes(lower_case)
    assert not {ord(character) for after in changed.values() for character in after} & changed.keys()
    generator = np.random.default_rng(3)
    some, any_code = np.array(list(changed)), np.array(CODE_POINTS)
    codes = np.concatenate([generator.choice(some, (5000, 6)), generator.choice(any_code, (5000, 4))], axis=1)
    texts = ["".join(map(chr, row)) for row in generator.permuted(codes, axis=1)]
    together = normalizer(lower_case)(tf.constant(texts)).numpy()
    assert [text.decode() for text in together] == [text.translate(changed) for text in texts]


def test_character_classes_of_common_characters():
    words, characters = character_classes("word"), character_classes("char")
    assert character_classes("wordpiece") == words and characters["isolated"] == []
    white, alone = set(map(chr, expanded(words["white_space"]))), set(map(chr, expanded(words["isolated"])))
    assert set(" \t\n\r\u3000\u2029") <= white and set("!,-[]$渡。、") <= alone
    assert not (white | alone) & set("aZ0éяあ🚢") and not white & alone
    assert set(" \u3000\u2029") <= set(map(chr, expanded(characters["white_space"])))
