import numpy as np
import pytest

from kmha.tags import spans_of
from training.baselines import tagging as tag_baseline
from training.baselines.tagging import FrequentTags, fit_tag_baseline
from training.baselines.tagging_linear import GreedyTagger, fit_chains, fit_greedy, has_chains
from training.metrics.spans import tag_scores

needs_crfsuite = pytest.mark.skipif(not has_chains(), reason="no python-crfsuite")

NAMES = ["Anna", "Bob", "Cleo", "Dora", "Emil", "Finn"]


def sentences(count: int, seed: int) -> tuple[list[list[str]], list[list[str]]]:
    """What a word is depends on the one before: a name behind "in" is a place."""
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


def test_a_linear_model_wins_where_neighbours_matter(kind):
    baseline = fit_tag_baseline(*TRAIN, *HELD, seed=0)
    assert ("CRF" in baseline.description) == (kind == "chain")
    assert baseline.description.endswith("60 training rows")
    answers = baseline.predict(HELD[0])
    assert tag_scores(HELD[1], answers, "bio")["span_f1"] == baseline.validation_scores[baseline.description]
    assert baseline.validation_scores[baseline.description] > 0.95
    assert min(baseline.validation_scores.values()) < 0.7
    assert baseline.predict([["lived", "in", "Bob", "."], []]) == [["O", "O", "B-LOC", "O"], []]


def test_it_is_the_same_each_time(kind):
    first, second = (fit_tag_baseline(*TRAIN, *HELD, seed=1, max_words=200) for _ in "12")
    assert first.description == second.description and "a random" in first.description
    assert first.validation_scores == second.validation_scores
    assert first.predict(HELD[0]) == second.predict(HELD[0])


def test_the_most_frequent_tag_is_picked_where_it_is_better(monkeypatch):
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


def test_without_validation_rows_a_linear_model_is_picked(kind):
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


def test_a_greedy_tagger_sees_the_tag_before():
    # The same word again and again: only what stands before tells the tags apart.
    words, tags = [["first", "x", "x", "x"]] * 5, [["A", "B", "A", "B"]] * 5
    tagger = fit_greedy(words, tags, seed=0)
    assert isinstance(tagger, GreedyTagger) and tagger.behind.shape == (3, 2)
    assert tagger.behind[0, 1] > tagger.behind[1, 1]


@needs_crfsuite
def test_chains_decode_whole_sentences():
    (_, first), (name, chain) = fit_chains(*TRAIN)
    assert "L-BFGS, at most 100 steps" in name
    for tagger in (first, chain):
        assert [spans_of(tags, "bio") for tags in tagger.predict(HELD[0])] == [
            spans_of(tags, "bio") for tags in HELD[1]
        ]


def test_a_draw_takes_whole_sentences_in_order():
    drawn = tag_baseline._draw([5, 0, 3, 4, 2], 0, 9)
    assert drawn == sorted(drawn) and sum([5, 0, 3, 4, 2][row] for row in drawn) <= 9
    assert tag_baseline._draw([5, 0, 3], 0, 8) == [0, 2]
    assert len(tag_baseline._draw([50, 50], 0, 8)) == 1


def test_what_does_not_fit():
    with pytest.raises(ValueError, match="a tag for each word"):
        fit_tag_baseline([["a"]], [["O", "O"]], [], [], seed=0)
    with pytest.raises(ValueError, match="a tag for each word"):
        fit_tag_baseline([["a"]], [["O"]], [["a"]], [], seed=0)
    with pytest.raises(ValueError, match="expected training words, got none"):
        fit_tag_baseline([[]], [[]], [], [], seed=0)
