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
)
from kmha.text.tokenizers import normalizer


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
