import functools
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import training.tasks.match.hard_negatives as mining
from kmha.errors import InputError
from kmha.inference.retrieval import TextVectors
from tests.bundles import TEXTS, make_pair_bundle, one_label_bundle, pair_bundle
from tests.pair_rows import ranking_rows
from training.baselines.bm25 import Bm25, word_terms
from training.io.examples import Example, Subset, write_examples
from training.losses.pairs import in_batch_contrastive, listwise_softmax, triplet
from training.tasks.match.hard_negatives import (
    add_hard_negatives,
    bm25_negatives,
    comparable_rows,
    vector_negatives,
)
from training.tasks.match.task import MatchTask

PAIRS = [
    ("who repairs the old bridge", "the sailor repairs the old bridge", "1"),
    ("who repairs the old bridge", "bread", "0"),
    ("ferry in winter", "in winter no ferry leaves", "1"),
    ("what is red", "the old bridge is red", "1"),
    ("unanswered question", "a winter market", "0"),
]
TASK = MatchTask(target="binary", loss="cross-entropy", best_by="accuracy", negatives=1)


@pytest.fixture
def part(tmp_path) -> Subset:
    examples = write_examples(
        (Example((a, b), (label,), f"a:{number}") for number, (a, b, label) in enumerate(PAIRS)),
        tmp_path / "rows",
        num_texts=2,
    )
    return Subset(examples, np.arange(len(PAIRS)))


def mined(part: Subset, how: str, count: int = 1) -> tuple[np.ndarray, np.ndarray]:
    rows = np.stack([part.rows, part.rows], axis=1).astype(np.int64)
    return add_hard_negatives(part, rows, TASK.targets(part, ["score"]), how, count, seed=0)


def added(part: Subset, how: str, count: int = 1) -> list[tuple[str, str]]:
    rows, targets = mined(part, how, count)
    assert rows[: len(PAIRS)].tolist() == [[row, row] for row in part.rows]
    assert rows.dtype == np.int64 and targets.dtype == np.float32 and len(rows) == len(targets)
    assert not targets[len(PAIRS) :, 0].any()
    a, b = part.examples.read_texts(rows[:, 0], 0), part.examples.read_texts(rows[:, 1], 1)
    # Each negative belongs to the query it was found for.
    queries = dict(zip(a, TASK.targets(part, ["score"])[:, 1], strict=False))
    assert [queries[text] for text in a] == targets[:, 1].tolist()
    return list(zip(a, b, strict=True))[len(PAIRS) :]


def test_bm25_finds_the_most_similar_wrong_candidate(part, capsys):
    found = added(part, "bm25")
    # No candidate is similar to the third query, which gets a wrong candidate nevertheless.
    assert found[:2] == [
        ("who repairs the old bridge", "the old bridge is red"),
        ("ferry in winter", "a winter market"),
    ]
    assert found[2][0] == "what is red" and found[2] != PAIRS[3][:2]
    assert capsys.readouterr().err.startswith("3 hard negatives added for 3 queries")


def test_labeled_pairs_are_not_mined(part):
    found = added(part, "bm25", count=9)
    assert not set(found) & {(a, b) for a, b, _ in PAIRS}
    assert len(found) == len(set(found)) == 3 + 4 + 4


def test_only_texts_of_the_subset_are_mined(part):
    some = Subset(part.examples, part.rows[:4])
    rows, _ = add_hard_negatives(
        some, np.stack([some.rows] * 2, 1), TASK.targets(some, ["score"]), "bm25", 9, seed=0
    )
    assert rows.max() == 3


@pytest.fixture(scope="module")
def bi_folder(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("bi") / "run"
    make_pair_bundle(form="bi", share_weights=False).save(folder)
    return folder


def test_run_of_the_bi_form_finds_the_nearest_vectors(part, bi_folder):
    bundle = make_pair_bundle(form="bi", share_weights=False)
    found = added(part, str(bi_folder))
    assert [query for query, _ in found] == [PAIRS[0][0], PAIRS[2][0], PAIRS[3][0]]
    candidates = [b for _, b, _ in PAIRS]
    cosines = TextVectors(bundle, "a")([query for query, _ in found]) @ TextVectors(bundle, "b")(candidates).T
    given = {(a, b) for a, b, _ in PAIRS}
    for (query, candidate), row in zip(found, cosines, strict=True):
        others = [text for text in candidates if (query, text) not in given]
        assert candidate == max(others, key=lambda text: row[candidates.index(text)])


def test_each_text_is_encoded_once(part, bi_folder, monkeypatch):
    read: list[int] = []
    call = TextVectors.__call__
    monkeypatch.setattr(
        TextVectors, "__call__", lambda self, texts: (read.append(len(texts)), call(self, texts))[1]
    )
    added(part, str(bi_folder))
    assert read == [4, 5]


@pytest.mark.parametrize(
    ("bundle", "got"),
    [
        (pair_bundle, "a matcher of the cross form"),
        (functools.partial(make_pair_bundle, form="joint"), "a matcher of the joint form"),
        (one_label_bundle, "a classifier"),
    ],
    ids=["cross", "joint", "classifier"],
)
def test_run_without_vectors_raises(part, tmp_path, bundle, got):
    run = tmp_path / "run"
    bundle().save(run)
    with pytest.raises(InputError) as caught:
        mined(part, str(run))
    assert str(caught.value) == (
        f"--match.hard-negatives {run}: expected a matcher of the bi form, which has text vectors, got {got}"
    )


def test_invalid_run_folder_names_its_flag(part, tmp_path):
    with pytest.raises(InputError, match="--match.hard-negatives .*: expected a run folder with bundle.json"):
        mined(part, str(tmp_path / "none"))


@pytest.mark.parametrize("loss", ["cross-entropy", "triplet", "listwise", "contrastive"])
def test_training_set_includes_hard_negatives(part, loss):
    from dataclasses import replace

    task = replace(TASK, hard_negatives="bm25", loss=loss, form="bi", negatives=2)
    training_set = task.training_set(part, ["score"], seed=0)
    # Three queries get two each. Rows of the query without a right candidate are used by the cross-entropy only.
    assert len(training_set.rows) == (5 if loss == "cross-entropy" else 4) + 6
    assert len(training_set.targets) == len(training_set.weights) == len(training_set.rows)
    assert training_set.targets[:, 0].sum() == 3
    if loss in ("triplet", "listwise"):
        assert training_set.lists is not None and len(set(training_set.lists)) == 3


def test_empty_texts_are_allowed(tmp_path):
    rows = [
        Example((text, other), ("1",), "a") for text, other in zip(TEXTS, ["", " ", *TEXTS[2:]], strict=True)
    ]
    part = Subset(write_examples(rows, tmp_path, num_texts=2), np.arange(len(TEXTS)))
    training_set = MatchTask(target="binary", loss="cross-entropy", hard_negatives="bm25").training_set(
        part, ["score"], 0
    )
    assert len(training_set.rows) > len(TEXTS)


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
def test_nearest_wrong_candidates_are_mined(miner):
    found = miner(_QUERIES, _CANDIDATES, [(0, 0), (1, 2)], 1, 0)
    assert found.dtype == np.int64 and found.tolist() == [[0, 1], [1, 3]]


@either
def test_known_pairs_are_excluded(miner):
    found = miner(_QUERIES, _CANDIDATES, {(0, 0)}, 1, 0, known=np.array([[0, 1], [1, 0], [2, 4]]))
    assert found[:, 0].tolist() == [0] and found[0, 1] in (2, 3, 4)


@either
def test_equal_texts_are_one_candidate(miner):
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
        has_right = any(queries[query] == text for query, _ in right)
        allowed = {candidate for candidate in candidates if (text, candidate) not in forbidden}
        assert sum(text == query for query, _ in texts) == (min(count, len(allowed)) if has_right else 0)


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
def test_seed_breaks_ties(miner):
    candidates = ["red car", *(f"word{number}" for number in range(50))]
    runs = [miner(["red car there"], candidates, [(0, 0)], 3, seed).tolist() for seed in (0, 0, 1)]
    assert runs[0] == runs[1] != runs[2]


def test_vectors_are_compared_by_cosine():
    texts = [f"text {number}" for number in range(4)]
    candidates = np.array([[0.1, 0.0], [9.0, 9.0], [0.0, 0.0], [-1.0, 0.0]])
    found = vector_negatives(np.array([[5.0, 0.0]]), candidates, ["query"], texts, [(0, 3)], 3, 0)
    assert found.tolist() == [[0, 0], [0, 1], [0, 2]]


def test_scripts_without_spaces():
    candidates = ["小明打碎了一个杯子", "杯子在桌子上", "树上飞来一只鸟", "他看了一场电影"]
    assert bm25_negatives(["杯子被小明打碎了"], candidates, [(0, 0)], 1, 0).tolist() == [[0, 1]]


@either
def test_no_right_pairs_give_no_negatives(miner):
    assert miner(_QUERIES, _CANDIDATES, [], 3, 0).shape == (0, 2)
    assert miner([], [], [], 3, 0).shape == (0, 2)
    assert miner(["a"], ["a b"], [(0, 0)], 3, 0).shape == (0, 2)


@either
@pytest.mark.parametrize("pair", [(3, 0), (0, 5), (-1, 0)])
def test_index_out_of_range_raises(miner, pair):
    with pytest.raises(ValueError, match="3 queries and 5 candidates"):
        miner(_QUERIES, _CANDIDATES, [pair], 1, 0)


def test_missing_vector_raises():
    with pytest.raises(ValueError, match="got 1 and 5"):
        vector_negatives(np.ones((1, 2)), np.ones((5, 2)), _QUERIES, _CANDIDATES, [(0, 0)], 1, 0)


# Query 4: mixed; 7: one right; 2: one wrong; 5: two right; 9: two wrong; -1: fills the batch up.
VALUES = np.array([1.0, 0, 1, 0, 2, 1, 0, 0, 0], np.float32)
QUERIES = np.array([4, 4, 7, 2, 5, 5, 9, 9, -1])


@pytest.mark.parametrize(
    ("loss", "trained_on", "skipped"),
    [("triplet", {4}, 4), ("listwise", {4, 5}, 3), ("contrastive", {4, 5, 7}, 2)],
)
def test_by_hand(loss, trained_on, skipped):
    rows, skipped_queries = comparable_rows(VALUES, QUERIES, loss)
    assert set(QUERIES[rows]) == trained_on and set(QUERIES[~rows]).isdisjoint(trained_on)
    assert skipped_queries == skipped


def test_no_rows():
    rows, skipped = comparable_rows(np.zeros(0), np.zeros(0, int), "listwise")
    assert rows.shape == (0,) and rows.dtype == bool and skipped == 0


@settings(max_examples=40, deadline=None)
@given(rows=st.integers(1, 12), seed=st.integers(0, 999))
def test_rows_that_are_not_comparable_have_loss_0(rows, seed):
    generator = np.random.default_rng(seed)
    values = generator.integers(3, size=rows).astype(np.float32)
    queries = generator.integers(-1, 4, size=rows)
    values[queries < 0] = 0
    targets = np.stack([values, queries], axis=1).astype(np.float32)
    scores = generator.normal(size=(rows, 1)).astype(np.float32)
    losses = {
        "triplet": triplet(targets, scores, 20.0),
        "listwise": listwise_softmax(targets, scores),
        # Another real row makes every right one choose between two.
        "contrastive": in_batch_contrastive(
            np.concatenate([targets, [[0, 99]]]).astype(np.float32),
            np.zeros((rows + 1, rows + 1), np.float32),
        ),
    }
    for name, loss in losses.items():
        right_and_comparable = comparable_rows(values, queries, name).rows & (values > 0)
        assert ((np.asarray(loss)[:rows] > 1e-6) == right_and_comparable).all(), name


def test_mismatched_arrays_raise():
    with pytest.raises(ValueError, match="got 'hinge'"):
        comparable_rows(VALUES, QUERIES, "hinge")
    with pytest.raises(ValueError, match=r"\(9,\), \(2,\)"):
        comparable_rows(VALUES, QUERIES[:2], "triplet")
