from hypothesis import given
from hypothesis import strategies as st

from training.baselines.tagging_linear import word_features, word_shape

words = st.lists(st.text(st.characters(exclude_categories=["Cs"]), min_size=1), max_size=6)


def test_shapes():
    assert [word_shape(word) for word in ("McDonald's", "NASA", "3.14", "é", "中文", "B-2", "")] == [
        "XxXx'x",
        "X",
        "d.d",
        "x",
        "x",
        "X-d",
        "",
    ]


def test_features_of_a_word():
    names = word_features(["The", "Well-known", "3", "."])[1]
    expected = {
        "word=Well-known",
        "low=well-known",
        "shape=Xx-x",
        "begin=wel",
        "end=nown",
        "in=l-k",
        "hyphen",
    }
    assert expected <= set(names)
    assert {"-1=the", "+1=3", "-1+0=the\nwell-known", "+0+1=well-known\n3", "shapes=Xx\nXx-x\nd"} <= set(
        names
    )
    assert "digit" not in names and "digit" in word_features(["4th"])[0]


@given(sentence=words)
def test_each_word_has_its_features_once(sentence):
    rows = word_features(sentence)
    assert len(rows) == len(sentence)
    assert all(len(names) == len(set(names)) for names in rows)
    assert rows == word_features(sentence)


@given(sentence=words, more=words)
def test_words_far_away_do_not_matter(sentence, more):
    gap = ["x"] * 2
    alone, beside = word_features([*sentence, *gap]), word_features([*sentence, *gap, *more])
    assert alone[: len(sentence)] == beside[: len(sentence)]
