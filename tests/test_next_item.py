"""The next-item example splits sequences, ranks items and trains a causal model."""

import gzip

import numpy as np
import pytest

from examples import next_item
from examples.next_item import (
    LENGTH,
    NextItem,
    baseline_scores,
    evaluate,
    item_vectors,
    main,
    pad,
    read_sequences,
    training_windows,
)
from tests.command_runs import call


def test_sequences_are_in_the_order_of_time(tmp_path):
    path = tmp_path / "ratings.csv.gz"
    with gzip.open(path, "wt") as file:
        file.write("user_id,movie_id,rating,timestamp\n1,50,3,20\n1,70,4,9\n2,70,1,30\n2,10,1,30\n")
    # 70 is item 1, since it was rated first.
    assert read_sequences(path) == [[1, 2], [1, 3]]


@pytest.mark.parametrize("length", [2, LENGTH, LENGTH + 1, 2 * LENGTH + 7])
def test_each_next_item_is_trained_on_once(length):
    inputs, targets = training_windows([list(range(1, length + 1))])
    assert sorted(targets[targets > 0]) == list(range(2, length + 1))
    assert (inputs[targets > 0] == targets[targets > 0] - 1).all()
    assert not inputs[targets == 0].any()


def test_the_rank_ignores_items_of_the_history():
    scores = np.array([[99, 5, 4, 3], [99, 1, 2, 3]], "float32")
    found = evaluate(scores, [[1], [3]], [3, 2])
    # Ranks 1 and 0 of those that are left.
    assert found == {"hr": 1, "ndcg": pytest.approx((1 / np.log2(3) + 1) / 2)}


def test_baselines_count_popular_items_and_followers():
    found = baseline_scores([[1, 2, 3], [2, 3, 2], [4, 1]], 4)
    assert found["popular"][0].tolist() == [0, 2, 3, 2, 1]
    # 3 was followed by 2, 2 by 3 twice, 1 by 2.
    assert found["markov"].round(3).tolist() == [[0, 0, 1, 0, 0], [0, 0, 0, 2, 0], [0, 0, 1, 0, 0]]
    # After 4 and 1: 2 follows 1 once, and 1 follows 4 once, at half the weight.
    assert found["co_occurrence"][2].round(3).tolist() == [0, 0.5, 1, 0.5, 0]


def test_items_of_the_same_places_have_equal_vectors(monkeypatch):
    monkeypatch.setattr(next_item, "HIDDEN_DIM", 3)
    vectors = item_vectors([[1, 2, 4], [1, 3, 4], [5, 6, 7], [7, 5, 6]], 7)
    np.testing.assert_allclose(vectors[2], vectors[3], atol=1e-5)
    assert np.linalg.norm(vectors[2]) > 0.1 and abs(vectors[2] @ vectors[6]) < 1e-5


def test_a_state_does_not_depend_on_later_items():
    model = NextItem(np.random.default_rng(0).normal(size=(10, 8)), popularity=np.arange(10))
    first, second = np.asarray(model(pad([[1, 2, 3, 4], [1, 2, 3, 9]])))
    np.testing.assert_allclose(first[:-1], second[:-1], atol=1e-6)
    assert np.abs(first[-1] - second[-1]).max() > 1e-3


def test_a_missing_file_is_an_error(capsys):
    with pytest.raises(SystemExit, match="2"):
        main(["--data", "missing.csv.gz"])
    assert "--data: expected a file, got missing.csv.gz" in capsys.readouterr().err


@pytest.mark.second
def test_attention_finds_the_series_before_the_last(monkeypatch, tmp_path):
    monkeypatch.setattr(next_item, "DATA", tmp_path / "missing")
    result = call(main, "--epochs", "15").json
    assert (result["data"], result["users"], result["items"]) == ("generated", 400, 200)
    scores = {name: result[name]["ndcg"] for name in ("attention", "co_occurrence", "markov", "popular")}
    assert sorted(scores, key=scores.__getitem__, reverse=True) == list(scores)
    assert min(result[name]["hr"] for name in ("attention", "mixed")) > 0.95
