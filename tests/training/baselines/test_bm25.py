import math
from collections import Counter

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import training.baselines.bm25 as bm25
from training.baselines.bm25 import Bm25, best_rows, character_terms, choose_analyzer, word_terms

_COLLECTION = ["red car", "red red house", "blue car", ""]
_TEXTS = st.lists(st.text(alphabet="ab c,", max_size=12), max_size=6)


def reference(query: str, document: str, collection: list[str]) -> float:
    """The sum of the module's docstring, one term after the other."""
    terms = [word_terms(text) for text in collection]
    mean_length = sum(map(len, terms)) / len(terms) if terms else 0.0
    words = word_terms(document)
    total = 0.0
    for term in word_terms(query):
        holding = sum(term in each for each in terms)
        idf = math.log(1 + (len(terms) - holding + 0.5) / (holding + 0.5))
        count = Counter(words)[term]
        if count:
            total += idf * count / (count + 1.2 * (0.25 + 0.75 * len(words) / (mean_length or 1.0)))
    return total


def test_bm25_scores_by_hand():
    collection = Bm25.fit(_COLLECTION, word_terms)
    # 7 words in 4 documents: a mean of 1.75. Two hold "red", one "house".
    assert collection.mean_length == 1.75
    red = math.log(1 + 2.5 / 2.5)
    house = math.log(1 + 3.5 / 1.5)
    long = 1.2 * (0.25 + 0.75 * 3 / 1.75)
    expected = [red * 2 / (2 + long) + house * 1 / (1 + long), red * 2 / (2 + long), 0.0]
    scores = collection.scores(["Red house", "red", "green"], ["red red house"] * 3)
    np.testing.assert_allclose(scores, expected, rtol=1e-12)


def test_unseen_terms_have_the_highest_weight():
    collection = Bm25.fit(_COLLECTION, word_terms)
    unseen, seen = collection.scores(["green", "house"], ["green door", "house door"])
    penalty = 1.2 * (0.25 + 0.75 * 2 / 1.75)
    assert unseen == pytest.approx(math.log(1 + 4.5 / 0.5) / (1 + penalty), rel=1e-12)
    assert unseen > seen > 0


def test_repeated_query_term_counts_twice():
    once, twice = Bm25.fit(_COLLECTION, word_terms).scores(["car", "car car"], ["red car"] * 2)
    assert twice == pytest.approx(2 * once)


@settings(max_examples=60, deadline=None)
@given(_TEXTS, _TEXTS, st.data())
def test_pair_scores_equal_the_plain_sum(collection, queries, data):
    documents = data.draw(
        st.lists(st.text(alphabet="ab c,", max_size=12), min_size=len(queries), max_size=len(queries))
    )
    found = Bm25.fit(collection, word_terms).scores(queries, documents)
    expected = [reference(*pair, collection) for pair in zip(queries, documents, strict=True)]
    np.testing.assert_allclose(found, expected, rtol=1e-9, atol=1e-12)


def top(index: Bm25, queries: list[str], k: int) -> tuple[list[np.ndarray], list[np.ndarray]]:
    k = min(k, index.weights.shape[1])
    scores = [row for chunk in index.score_chunks(queries) for row in chunk]
    rows = [best_rows(each, k) if k else np.zeros(0, int) for each in scores]
    return rows, [each[found] for each, found in zip(scores, rows, strict=True)]


@settings(max_examples=60, deadline=None)
@given(_TEXTS, _TEXTS, st.integers(0, 8), st.integers(1, 20))
def test_top_equals_sorting_all_plain_sums(collection, queries, k, at_once):
    index = Bm25.fit(collection, word_terms)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(bm25, "SCORES_AT_ONCE", at_once)
        indices, scores = top(index, queries, k)
    assert [len(rows) for rows in indices] == [min(k, len(collection))] * len(queries)
    for query, rows, found in zip(queries, indices, scores, strict=True):
        expected = sorted((reference(query, text, collection) for text in collection), reverse=True)
        np.testing.assert_allclose(found, expected[: len(rows)], rtol=1e-5, atol=1e-6)
        assert len(set(rows.tolist())) == len(rows)
        of_rows = [reference(query, collection[row], collection) for row in rows]
        np.testing.assert_allclose(found, of_rows, rtol=1e-5, atol=1e-6)


def test_ties_keep_the_order_of_the_documents():
    index = Bm25.fit(["red", "blue", "red", "red", "blue"], word_terms)
    rows, _ = top(index, ["red", "blue", "green"], 4)
    assert [each.tolist() for each in rows] == [[0, 2, 3, 1], [1, 4, 0, 2], [0, 1, 2, 3]]


@given(st.lists(st.integers(0, 4), min_size=1, max_size=12), st.data())
def test_best_rows_equal_a_stable_sort(values, data):
    k = data.draw(st.integers(1, len(values)))
    expected = np.argsort(-np.array(values), kind="stable")[:k]
    assert best_rows(np.array(values, np.float32), k).tolist() == expected.tolist()


def test_empty_collection_and_empty_queries():
    for collection in ([], ["", "  "]):
        index = Bm25.fit(collection, word_terms)
        assert np.isfinite(index.scores(["red", ""], ["red car", ""])).all()
        assert [each.tolist() for each in top(index, ["red"], 3)[1]] == [[0.0] * len(collection)]
    index = Bm25.fit(_COLLECTION, word_terms)
    assert index.scores([], []).shape == (0,)
    assert top(index, [], 3)[0] == []


def test_unequal_lengths_raise():
    with pytest.raises(ValueError, match="got 2 and 1"):
        Bm25.fit(_COLLECTION, word_terms).scores(["red", "car"], ["red"])


def test_terms():
    assert word_terms("What's NEW, Ämter?") == ["what", "'", "s", "new", ",", "ämter", "?"]
    assert character_terms("iP 手机。") == ["i", "p", "手", "机", "。", "ip", "p手", "手机", "机。"]
    assert character_terms("") == word_terms("") == []
    assert choose_analyzer(["这是中文", "也是"]) is character_terms
    assert choose_analyzer(["plain words"]) is word_terms


def test_characters_match_in_scripts_without_spaces():
    index = Bm25.fit(["小明打碎了一个杯子", "树上飞来一只鸟", "他看了一场电影"], character_terms)
    indices, scores = top(index, ["杯子被打碎了"], 3)
    assert indices[0][0] == 0 and scores[0][0] > 2 * scores[0][1]
