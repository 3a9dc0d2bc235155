import numpy as np
import pytest

from kmha.errors import InputError
from tests.pair_rows import paraphrase_rows, ranking_rows
from training.baselines.bm25 import Bm25, word_terms
from training.baselines.pairs import BM25, COSINE, LINEAR, fit_pair_baseline


def columns(rows):
    return [list(column) for column in zip(*rows, strict=True)]


@pytest.fixture(scope="module")
def paraphrases():
    a, b, labels = columns(paraphrase_rows(900, 0))
    return fit_pair_baseline(a[:600], b[:600], labels[:600], target="binary", seed=0), a, b, np.array(labels)


def test_linear_model_finds_paraphrases(paraphrases):
    baseline, a, b, labels = paraphrases
    scores = baseline.scores(a[600:], b[600:])
    assert list(scores) == [COSINE, BM25, LINEAR]
    assert all(found.shape == (300,) and np.isfinite(found).all() for found in scores.values())
    assert 0.85 < ((scores[LINEAR] >= 0.5) == labels[600:]).mean() < 1.0
    assert scores[LINEAR].min() >= 0.0 and scores[LINEAR].max() <= 1.0
    for found in scores.values():
        right, wrong = found[labels[600:] == 1], found[labels[600:] == 0]
        assert (right[:, None] > wrong).mean() > 0.8
    assert "on 30 overlap features of word 1-3-grams, 600 training rows" in baseline.description


def test_bm25_and_cosine_use_training_texts_only(paraphrases):
    baseline, a, b, _ = paraphrases
    collection = Bm25.fit(list(dict.fromkeys([*a[:600], *b[:600]])), word_terms)
    pairs = [*a[600:610], "unseen words"], [*b[600:610], "words unseen"]
    scores = baseline.scores(*pairs)
    np.testing.assert_allclose(scores[BM25], collection.scores(*pairs))
    alone = baseline.scores(["unseen words"], ["words unseen"])
    for name, found in scores.items():
        assert alone[name][0] == pytest.approx(found[-1])


def test_equal_text_has_cosine_1_and_empty_text_0(paraphrases):
    scores = paraphrases[0].scores(["old bridge", "old bridge", ""], ["old bridge", "", ""])
    assert scores[COSINE].tolist() == pytest.approx([1.0, 0.0, 0.0])
    assert scores[BM25][1:].tolist() == [0.0, 0.0]
    assert np.isfinite(scores[LINEAR]).all() and scores[LINEAR][0] > 0.9


def test_right_candidates_rank_first():
    a, b, labels, queries = columns(ranking_rows(80, 5, 1))
    labels, queries = np.array(labels), np.array(queries)
    trained_on = queries < "q5"
    baseline = fit_pair_baseline(
        [text for text, known in zip(a, trained_on, strict=True) if known],
        [text for text, known in zip(b, trained_on, strict=True) if known],
        labels[trained_on],
        target="binary",
        seed=0,
    )
    for name, scores in baseline.scores(a, b).items():
        evaluated = np.unique(queries[~trained_on])
        best = [labels[queries == query][scores[queries == query].argmax()] for query in evaluated]
        assert len(evaluated) > 20 and np.mean(best) > 0.7, name


def test_classes_are_predicted_as_ids():
    a, b, labels = columns(paraphrase_rows(400, 2))
    ids = [9 if left == right else 4 if label else 2 for left, right, label in zip(a, b, labels, strict=True)]
    a, b, ids = [*a, *a[:100]], [*b, *a[:100]], [*ids, *[9] * 100]
    found = fit_pair_baseline(a, b, ids, target="classes", seed=0).scores(a, b)[LINEAR]
    assert found.dtype == np.int64 and set(found.tolist()) == {2, 4, 9}
    assert (found == ids).mean() > 0.85
    two = fit_pair_baseline(a[:400], b[:400], np.where(labels, 7, 3), target="classes", seed=0)
    assert (two.scores(a[:400], b[:400])[LINEAR] == np.where(labels, 7, 3)).mean() > 0.85


def test_grades_are_predicted():
    a, b, _ = columns(paraphrase_rows(400, 3))
    grades = [5 * len(set(x.split()) & set(y.split())) / len(x.split()) for x, y in zip(a, b, strict=True)]
    found = fit_pair_baseline(a[:300], b[:300], grades[:300], target="graded", seed=0).scores(a, b)[LINEAR]
    assert np.corrcoef(found[300:], grades[300:])[0, 1] > 0.98
    assert found.max() > 4 and found.min() < 1


def test_scripts_without_spaces():
    a = ["小明打碎了杯子", "他看了一场电影", "墙上挂着画", "树上飞来一只鸟"] * 3
    b = ["杯子被小明打碎了", "他看过一场电影", "市场经济发展很快", "游戏有新的角色"] * 3
    baseline = fit_pair_baseline(a, b, [1, 1, 0, 0] * 3, target="binary", seed=0)
    assert "character 1-3-grams" in baseline.description
    found = baseline.scores(["他没看电影", "他没看电影"], ["他看电影了", "墙上有鸟"])
    assert all(scores[0] > scores[1] for scores in found.values())


@pytest.mark.parametrize(("label", "bounds"), [(1, (0.5, 1.0)), (0, (0.0, 0.5))])
def test_single_label_is_always_predicted(label, bounds):
    texts = ["red car", "blue car"]
    found = fit_pair_baseline(texts, texts, [label] * 2, target="binary", seed=0).scores(texts, texts)[LINEAR]
    assert ((found > bounds[0]) & (found < bounds[1])).all()
    ids = fit_pair_baseline(texts, texts, [label] * 2, target="classes", seed=0).scores(texts, texts)[LINEAR]
    assert ids.tolist() == [label] * 2
    grades = fit_pair_baseline(texts[:1], texts[:1], [label], target="graded", seed=0)
    assert grades.scores(texts, texts)[LINEAR] == pytest.approx([label] * 2)


def test_rows_over_the_limit_are_sampled_and_described():
    a, b, labels = columns(paraphrase_rows(60, 4))
    first, second = (fit_pair_baseline(a, b, labels, target="binary", seed=5, max_rows=20) for _ in range(2))
    assert np.array_equal(first.weights, second.weights)
    assert first.features.num_texts <= 40
    assert "a random 20 of 60 training rows" in first.description


def test_weights_are_fitted_to_fewer_rows_than_term_counts(monkeypatch):
    monkeypatch.setattr("training.baselines.pairs._ROWS_FOR_WEIGHTS", 200)
    monkeypatch.setattr("training.baselines.pair_features._TEXTS_FOR_CHARACTERS", 50)
    a, b, labels = columns(paraphrase_rows(400, 6))
    baseline = fit_pair_baseline(a, b, labels, target="binary", seed=0)
    assert baseline.features.num_texts == len({*a, *b})
    assert baseline.description.endswith("400 training rows, weights from 200 of them")
    assert ((baseline.scores(a, b)[LINEAR] >= 0.5) == labels).mean() > 0.85


def test_no_pairs_give_no_scores(paraphrases):
    assert [found.shape for found in paraphrases[0].scores([], []).values()] == [(0,)] * 3


def test_invalid_training_rows_raise():
    with pytest.raises(InputError, match="all 4 texts are blank"):
        fit_pair_baseline(["", " "], ["\n", ""], [0, 1], target="binary", seed=0)
    with pytest.raises(ValueError, match="got 2, 1 and 2"):
        fit_pair_baseline(["red", "car"], ["red"], [0, 1], target="binary", seed=0)
    with pytest.raises(ValueError, match="got 0, 0 and 0"):
        fit_pair_baseline([], [], [], target="binary", seed=0)
    with pytest.raises(ValueError, match="labels 0 and 1"):
        fit_pair_baseline(["red", "car"], ["red", "car"], [0, 2], target="binary", seed=0)
