import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kmha.tags import spans_of
from training.baselines import tagging as tag_baseline
from training.baselines.tagging import (
    FrequentTags,
    GreedyTagger,
    fit_chains,
    fit_greedy,
    fit_tag_baseline,
    has_chains,
    word_features,
    word_shape,
)
from training.metrics.spans import tag_scores

needs_crfsuite = pytest.mark.skipif(not has_chains(), reason="no python-crfsuite")

NAMES = ["Anna", "Bob", "Cleo", "Dora", "Emil", "Finn"]


def sentences(count: int, seed: int) -> tuple[list[list[str]], list[list[str]]]:
    """The tag of a word depends on the word before it: a name after "in" is a place."""
    generator = np.random.default_rng(seed)
    words, tags = [], []
    for _ in range(count):
        one, two, three = generator.choice([*NAMES, f"Name{generator.integers(99)}"], 3)
        words.append(["then", str(one), str(two), "lived", "in", str(three), "."])
        tags.append(["O", "B-PER", "I-PER", "O", "O", "B-LOC", "O"])
        if generator.random() < 0.5:
            words[-1], tags[-1] = words[-1][3:], tags[-1][3:]
    return words, tags


TRAIN, HELD = sentences(60, 0), sentences(20, 1)


@pytest.fixture(params=["chain", "greedy"])
def kind(request, monkeypatch):
    if request.param == "chain" and not has_chains():
        pytest.skip("no python-crfsuite")
    monkeypatch.setattr(tag_baseline, "has_chains", lambda: request.param == "chain")
    return request.param


def test_linear_model_wins_if_context_matters(kind):
    baseline = fit_tag_baseline(*TRAIN, *HELD, seed=0)
    assert ("CRF" in baseline.description) == (kind == "chain")
    assert baseline.description.endswith("60 training rows")
    predictions = baseline.predict(HELD[0])
    assert (
        tag_scores(HELD[1], predictions, "bio")["span_f1"] == baseline.validation_scores[baseline.description]
    )
    assert baseline.validation_scores[baseline.description] > 0.95
    assert min(baseline.validation_scores.values()) < 0.7
    assert baseline.predict([["lived", "in", "Bob", "."], []]) == [["O", "O", "B-LOC", "O"], []]


def test_baseline_is_reproducible(kind):
    first, second = (fit_tag_baseline(*TRAIN, *HELD, seed=1, max_words=200) for _ in "12")
    assert first.description == second.description and "a random" in first.description
    assert first.validation_scores == second.validation_scores
    assert first.predict(HELD[0]) == second.predict(HELD[0])


def test_most_frequent_tag_is_chosen_if_it_is_better(monkeypatch):
    monkeypatch.setattr(tag_baseline, "has_chains", lambda: False)
    monkeypatch.setattr(tag_baseline, "fit_greedy", lambda *_: FrequentTags({}, "nothing"))
    words, tags = [["a", "b"]], [["x", "y"]]
    baseline = fit_tag_baseline(words, tags, words, tags, seed=0)
    assert baseline.description == "most frequent tag of each word, 1 training rows"
    assert sorted(baseline.validation_scores.values()) == [0.0, 1.0]


def test_most_frequent_tags():
    tagger = FrequentTags({"a": "x"}, "y")
    assert tagger.predict([["a", "b"], []]) == [["x", "y"], []]
    baseline = tag_baseline._fit_frequent([["a", "a", "a", "b"]], [["x", "y", "y", "x"]])
    assert baseline == FrequentTags({"a": "y", "b": "x"}, "x")


def test_linear_model_is_chosen_without_validation_rows(kind):
    baseline = fit_tag_baseline(*TRAIN, [], [], seed=0)
    assert "most frequent" not in baseline.description


@pytest.mark.parametrize("scheme", ["bio", "none"])
def test_one_tag_only(kind, scheme):
    baseline = fit_tag_baseline([["a", "b"]], [["O", "O"]], [["a"]], [["O"]], seed=0, scheme=scheme)
    assert baseline.predict([["c", "d"], []]) == [["O", "O"], []]


@pytest.mark.parametrize("count", [2, 3])
def test_few_tags(kind, count):
    words, tags = [["ab", "cd", "ef"][:count]] * 3, [["x", "y", "z"][:count]] * 3
    baseline = fit_tag_baseline(words, tags, words, tags, seed=0)
    assert baseline.predict(words) == tags


def test_odd_words(kind):
    words = [["\0", "é\0é", ":", "\\", '"', "a b", "\u2028", "x" * 10_000, "😀", "=", "\r"]]
    tags = [["B-a:b"] + ["O"] * 10]
    baseline = fit_tag_baseline(words, tags, words, tags, seed=0)
    assert [len(each) for each in baseline.predict(words)] == [11]
    assert {tag for each in baseline.predict(words) for tag in each} <= {"B-a:b", "O"}


def test_greedy_tagger_uses_the_previous_tag():
    # The word is always the same: only the previous tag distinguishes the tags.
    words, tags = [["first", "x", "x", "x"]] * 5, [["A", "B", "A", "B"]] * 5
    tagger = fit_greedy(words, tags, seed=0)
    assert isinstance(tagger, GreedyTagger) and tagger.previous.shape == (3, 2)
    assert tagger.previous[0, 1] > tagger.previous[1, 1]


@needs_crfsuite
def test_chains_decode_whole_sentences():
    (_, first), (name, chain) = fit_chains(*TRAIN)
    assert "L-BFGS, at most 100 steps" in name
    for tagger in (first, chain):
        assert [spans_of(tags, "bio") for tags in tagger.predict(HELD[0])] == [
            spans_of(tags, "bio") for tags in HELD[1]
        ]


def test_sample_takes_whole_sentences_in_order():
    drawn = tag_baseline._sample([5, 0, 3, 4, 2], 0, 9)
    assert drawn == sorted(drawn) and sum([5, 0, 3, 4, 2][row] for row in drawn) <= 9
    assert tag_baseline._sample([5, 0, 3], 0, 8) == [0, 2]
    assert len(tag_baseline._sample([50, 50], 0, 8)) == 1


def test_mismatched_tags_raise():
    with pytest.raises(ValueError, match="one tag per word"):
        fit_tag_baseline([["a"]], [["O", "O"]], [], [], seed=0)
    with pytest.raises(ValueError, match="one tag per word"):
        fit_tag_baseline([["a"]], [["O"]], [["a"]], [], seed=0)
    with pytest.raises(ValueError, match="expected training words, got none"):
        fit_tag_baseline([[]], [[]], [], [], seed=0)


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
def test_features_of_a_word_are_distinct(sentence):
    rows = word_features(sentence)
    assert len(rows) == len(sentence)
    assert all(len(names) == len(set(names)) for names in rows)
    assert rows == word_features(sentence)


@given(sentence=words, more=words)
def test_words_far_away_do_not_matter(sentence, more):
    gap = ["x"] * 2
    alone, extended = word_features([*sentence, *gap]), word_features([*sentence, *gap, *more])
    assert alone[: len(sentence)] == extended[: len(sentence)]
