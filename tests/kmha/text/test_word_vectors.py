import re

import keras
import numpy as np
import pytest

from kmha.errors import InputError
from kmha.text.vocabulary import SPECIAL_TOKENS, Vocabulary
from kmha.text.word_vectors import assign_vectors, read_vectors

VOCABULARY = Vocabulary([*SPECIAL_TOKENS, "bread", "harbour", "new york", "7", "Paris", "3 4"])


def read(tmp_path, content: str | bytes, width=3, lower_case=True, vocabulary=VOCABULARY):
    path = tmp_path / "vectors.txt"
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    found = read_vectors(path, vocabulary, width, lower_case)
    assert all(vector.shape == (width,) and vector.dtype == np.float32 for vector in found.values())
    return {vocabulary.tokens[index]: list(vector) for index, vector in found.items()}


def refused(tmp_path, content: str | bytes, **given) -> str:
    with pytest.raises(InputError) as error:
        read(tmp_path, content, **given)
    assert "\n" not in str(error.value)
    return str(error.value)


@pytest.mark.parametrize("header", ["", "2 3\n", "400000 3 \r\n"])
@pytest.mark.parametrize("end", ["\n", " \n", "\r\n"])
def test_glove_and_word2vec_text_forms(tmp_path, header, end):
    content = f"{header}bread 1 -2.5 3e-1{end}stone 0 0 0{end}harbour 4 5 6"
    assert read(tmp_path, content) == {"bread": [1, -2.5, np.float32(0.3)], "harbour": [4, 5, 6]}


def test_empty_lines_and_an_empty_file(tmp_path):
    assert read(tmp_path, "") == {}
    assert read(tmp_path, "\nbread 1 2 3\n\n") == {"bread": [1, 2, 3]}


def test_the_first_line_of_a_word_is_used(tmp_path):
    assert read(tmp_path, "bread 1 2 3\nbread 7 8 9\n") == {"bread": [1, 2, 3]}
    assert read(tmp_path, "BREAD 1 2 3\nBread 7 8 9\n") == {"bread": [1, 2, 3]}


@pytest.mark.parametrize("lines", ["Bread 1 1 1\nbread 2 2 2\n", "bread 2 2 2\nBread 1 1 1\n"])
def test_an_exact_word_has_priority_over_its_lower_case(tmp_path, lines):
    assert read(tmp_path, lines) == {"bread": [2, 2, 2]}


def test_lower_case_words_are_looked_up_only_with_lower_case(tmp_path):
    assert read(tmp_path, "Bread 1 2 3\nparis 4 5 6\n", lower_case=False) == {}
    assert read(tmp_path, "Bread 1 2 3\nParis 4 5 6\n") == {"bread": [1, 2, 3], "Paris": [4, 5, 6]}


@pytest.mark.parametrize("word", ["new york", "7", ". . .", "at x@y.z", "3 x"])
def test_words_may_contain_spaces_or_be_numbers(tmp_path, word):
    found = read(tmp_path, f"{word} 1 2 3\nbread 4 5 6\n")
    assert found == ({word: [1, 2, 3]} if word in VOCABULARY.ids else {}) | {"bread": [4, 5, 6]}


@pytest.mark.parametrize("odd", ["\u2028", "\x85", "\u00a0", "\x1c"])
def test_only_the_line_feed_ends_a_line_and_only_the_space_a_field(tmp_path, odd):
    vocabulary = Vocabulary([*SPECIAL_TOKENS, odd, f"a{odd}b", "bread"])
    content = f"{odd} 1 2 3\na{odd}b 4 5 6\nbread 7 8 9\n"
    found = read(tmp_path, content, vocabulary=vocabulary)
    assert found == {odd: [1, 2, 3], f"a{odd}b": [4, 5, 6], "bread": [7, 8, 9]}


@pytest.mark.parametrize(
    ("content", "line", "got"),
    [
        ("bread 1 2\n", 1, "got 2"),
        ("bread 1 2 3\nstone 1 2 3 4\n", 2, "got 4"),
        ("bread 1 2 3\nstone\n", 2, "got 0"),
        ("2 4\nbread 1 2 3 4\n", 2, "got 4"),
        ("bread " + "1 " * 300, 1, "got 300"),
    ],
)
def test_another_width_is_rejected_by_line_and_flag(tmp_path, content, line, got):
    message = refused(tmp_path, content)
    assert f"vectors.txt:{line}: expected vectors of 3 numbers (--encoder.hidden-dim)" in message
    assert message.endswith(got)


@pytest.mark.parametrize("value", ["x", "nan", "inf", "-inf", "1e99", "1,5", ""])
def test_non_finite_numbers_are_rejected(tmp_path, value):
    message = refused(tmp_path, f"stone 1 2 3\nbread 1 {value} 3\n")
    assert "vectors.txt:2: expected 3 numbers after 'bread'" in message


def test_invalid_utf8_is_rejected_by_line(tmp_path):
    assert "vectors.txt:2: expected UTF-8" in refused(tmp_path, b"bread 1 2 3\ncaf\xe9 1 2 3\n")


@pytest.mark.parametrize("name", ["absent.txt", ""])
def test_a_missing_file_or_a_folder_is_rejected(tmp_path, name):
    with pytest.raises(
        InputError, match=f"^{re.escape(str(tmp_path / name))}: expected a file of word vectors"
    ):
        read_vectors(tmp_path / name, VOCABULARY, 3, True)


def table(values: np.ndarray):
    return keras.Variable(values.astype("float32"))


def test_only_the_rows_with_a_vector_change():
    generator = np.random.default_rng(0)
    before = 0.02 * generator.normal(size=(len(VOCABULARY), 4)).astype("float32")
    weights = table(before)
    vectors = {6: np.array([1, 2, 3, 4], "float32"), 9: np.array([-4, 0, 2, 1], "float32")}
    assign_vectors(weights, vectors)
    after = keras.ops.convert_to_numpy(weights)
    others = [row for row in range(len(VOCABULARY)) if row not in vectors]
    np.testing.assert_array_equal(after[others], before[others])
    scale = after[6] / vectors[6]
    np.testing.assert_allclose(scale, scale[0], rtol=1e-6)
    np.testing.assert_allclose(after[9], vectors[9] * scale[0], rtol=1e-6)
    assert after[list(vectors)].std() == pytest.approx(before.std(), rel=1e-4)


def test_without_vectors_the_table_does_not_change():
    before = np.ones((3, 2))
    weights = table(before)
    assign_vectors(weights, {})
    np.testing.assert_array_equal(keras.ops.convert_to_numpy(weights), before)


@pytest.mark.parametrize("row", [[1, 1], [0, 0], [5, 5]])
@pytest.mark.parametrize("fill", [0.0, 0.5])
def test_constant_vectors_are_not_scaled(row, fill):
    weights = table(np.full((3, 2), fill))
    assign_vectors(weights, {1: np.array(row, "float32")})
    after = keras.ops.convert_to_numpy(weights)
    np.testing.assert_array_equal(after, [[fill, fill], row, [fill, fill]])
