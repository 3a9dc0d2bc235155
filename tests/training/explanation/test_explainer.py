"""Words, their tokens, and texts without them."""

import pytest

from training.explanation.explainer import TextWords, align_tokens, white_space_bounds


def words_of(*texts: str) -> TextWords:
    spans = ((number, *span) for number, text in enumerate(texts) for span in white_space_bounds(text))
    return TextWords(texts, tuple(spans))


def test_both_texts_share_one_numbering():
    words = words_of("old bread", " new  ferry")
    assert words.names == ["old", "bread", "new", "ferry"]
    assert words.of(1) == [2, 3]
    assert words.gaps(0) == [False, True] and words.gaps(1) == [True, True]


@pytest.mark.parametrize(
    ("dropped", "expected"),
    [
        ((), ("old bread", "new ferry.")),
        ({0}, (" bread", "new ferry.")),
        ({1, 2}, ("old ", " ferry.")),
        ({0, 1, 2, 3}, (" ", " ")),
    ],
)
def test_dropping_words_keeps_the_rest(dropped, expected):
    assert words_of("old bread", "new ferry.").without(dropped) == expected


def test_unread_words_are_truncated():
    read = words_of("a b c d").truncated_to({0, 1})
    assert read.texts == ("a b",) and read.names == ["a", "b"]


@pytest.mark.parametrize(
    ("tokens", "pieces", "gaps", "expected"),
    [
        ("fer ##ry at", [["fer", "##ry"], ["at"]], [False, True], [0, 0, 1]),
        # White space that is a token, and white space that is unknown.
        ("a|_|b", [["a"], ["b"]], [False, True], [0, -1, 1]),
        ("a [UNK] b", [["a"], ["b"]], [False, True], [0, -1, 1]),
        # Truncated within a word, and before one.
        ("fer", [["fer", "##ry"], ["at"]], [False, True], [0]),
        ("a", [["a"], ["b"]], [False, True], [0]),
        ("a _", [["a"], ["b"]], [False, True], [0, -1]),
        # A word without tokens.
        ("a b", [["a"], [], ["b"]], [False, True, True], [0, 2]),
        ("a b", [["a"], ["c"]], [False, False], None),
        ("a b", [["a"]], [False], None),
        ("", [], [], []),
    ],
)
def test_tokens_are_aligned_to_words(tokens, pieces, gaps, expected):
    assert align_tokens(tokens.replace("|", " ").split(), pieces, gaps) == expected
