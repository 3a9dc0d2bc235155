import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import training.tasks.match.hard_negatives as mining
from tests.pair_rows import ranking_rows
from training.baselines.bm25 import Bm25, word_terms
from training.tasks.match.hard_negatives import bm25_negatives, vector_negatives

_QUERIES = ["who repairs the old bridge", "ferry in winter", "unanswered question"]
_CANDIDATES = [
    "the sailor repairs the old bridge",
    "the old bridge is red",
    "in winter no ferry leaves",
    "a winter market",
    "bread",
]
_TEXTS = st.lists(st.sampled_from(["a", "b", "a b", "c", "a c", "", "d d"]), min_size=1, max_size=7)


def by_vectors(queries, candidates, *arguments, **more):
    """Bags of words as vectors."""
    words = sorted({word for text in [*queries, *candidates] for word in text.split()})

    def vectors(texts):
        rows = [[text.split().count(word) for word in words] for text in texts]
        return np.array(rows, float).reshape(len(texts), len(words))

    return vector_negatives(vectors(queries), vectors(candidates), queries, candidates, *arguments, **more)


either = pytest.mark.parametrize("miner", [bm25_negatives, by_vectors])


@either
def test_the_nearest_wrong_candidates_are_mined(miner):
    found = miner(_QUERIES, _CANDIDATES, [(0, 0), (1, 2)], 1, 0)
    assert found.dtype == np.int64 and found.tolist() == [[0, 1], [1, 3]]


@either
def test_known_pairs_are_left_out(miner):
    found = miner(_QUERIES, _CANDIDATES, {(0, 0)}, 1, 0, known=np.array([[0, 1], [1, 0], [2, 4]]))
    assert found[:, 0].tolist() == [0] and found[0, 1] in (2, 3, 4)


@either
def test_equal_texts_count_as_one(miner):
    queries = [_QUERIES[0], _QUERIES[1], _QUERIES[0]]
    candidates = [*_CANDIDATES, _CANDIDATES[1], _CANDIDATES[0], "old bridge in winter", _QUERIES[0]]
    # The text of candidate 1 is right for query 2, whose text is query 0's; candidate 8 is the query itself.
    found = miner(queries, candidates, [(0, 6), (2, 5)], 2, 0)
    assert found[:, 0].tolist() == [0, 0] and found[0, 1] == 7
    assert found[1, 1] in (2, 3, 4)


@either
@settings(max_examples=60, deadline=None)
@given(queries=_TEXTS, candidates=_TEXTS, count=st.integers(0, 5), data=st.data())
def test_right_and_known_pairs_are_never_mined(miner, queries, candidates, count, data):
    pairs = st.sets(
        st.tuples(st.integers(0, len(queries) - 1), st.integers(0, len(candidates) - 1)), max_size=5
    )
    right, known = data.draw(pairs), data.draw(pairs)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(mining, "SCORES_AT_ONCE", 3)
        found = miner(queries, candidates, right, count, 1, known=known).tolist()
    forbidden = {(queries[query], candidates[candidate]) for query, candidate in right | known}
    forbidden |= {(text, text) for text in queries}
    texts = [(queries[query], candidates[candidate]) for query, candidate in found]
    assert not forbidden & set(texts)
    assert len(set(texts)) == len(texts)
    for text in set(queries):
        answered = any(queries[query] == text for query, _ in right)
        allowed = {candidate for candidate in candidates if (text, candidate) not in forbidden}
        assert sum(text == query for query, _ in texts) == (min(count, len(allowed)) if answered else 0)


def test_mined_scores_are_the_highest_allowed():
    rows = ranking_rows(12, 6, 0)
    queries = list(dict.fromkeys(row[0] for row in rows))
    candidates = [row[1] for row in rows]
    right = [(queries.index(a), index) for index, (a, _, label, _) in enumerate(rows) if label]
    found = bm25_negatives(queries, candidates, right, 4, 0)
    assert len(found) == 4 * len(queries)
    distinct = list(dict.fromkeys(candidates))
    index = Bm25.fit(distinct, word_terms)
    for query, text in enumerate(queries):
        barred = {candidates[candidate] for number, candidate in right if number == query}
        allowed = [candidate for candidate in distinct if candidate not in barred]
        expected = np.sort(index.scores([text] * len(allowed), allowed))[::-1][:4]
        mined = [candidates[candidate] for candidate in found[found[:, 0] == query, 1]]
        np.testing.assert_allclose(index.scores([text] * 4, mined), expected, rtol=1e-5)


@either
def test_the_seed_decides_between_equal_scores(miner):
    candidates = ["red car", *(f"word{number}" for number in range(50))]
    runs = [miner(["red car there"], candidates, [(0, 0)], 3, seed).tolist() for seed in (0, 0, 1)]
    assert runs[0] == runs[1] != runs[2]


def test_vectors_of_any_length_and_zeros_are_compared_by_direction():
    texts = [f"text {number}" for number in range(4)]
    candidates = np.array([[0.1, 0.0], [9.0, 9.0], [0.0, 0.0], [-1.0, 0.0]])
    found = vector_negatives(np.array([[5.0, 0.0]]), candidates, ["query"], texts, [(0, 3)], 3, 0)
    assert found.tolist() == [[0, 0], [0, 1], [0, 2]]


def test_scripts_without_spaces():
    candidates = ["小明打碎了一个杯子", "杯子在桌子上", "树上飞来一只鸟", "他看了一场电影"]
    assert bm25_negatives(["杯子被小明打碎了"], candidates, [(0, 0)], 1, 0).tolist() == [[0, 1]]


@either
def test_nothing_right_gives_nothing(miner):
    assert miner(_QUERIES, _CANDIDATES, [], 3, 0).shape == (0, 2)
    assert miner([], [], [], 3, 0).shape == (0, 2)
    assert miner(["a"], ["a b"], [(0, 0)], 3, 0).shape == (0, 2)


@either
@pytest.mark.parametrize("pair", [(3, 0), (0, 5), (-1, 0)])
def test_indices_outside_are_refused(miner, pair):
    with pytest.raises(ValueError, match="3 queries and 5 candidates"):
        miner(_QUERIES, _CANDIDATES, [pair], 1, 0)


def test_a_vector_is_needed_for_each_text():
    with pytest.raises(ValueError, match="got 1 and 5"):
        vector_negatives(np.ones((1, 2)), np.ones((5, 2)), _QUERIES, _CANDIDATES, [(0, 0)], 1, 0)
