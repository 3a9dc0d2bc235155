import json
import time

import numpy as np
import pytest

from tests.training.metrics.test_spans import generated
from training.metrics.bootstrap import (
    Resampling,
    bootstrap_interval,
    multi_label_resampled,
    single_label_resampled,
)
from training.metrics.confusion import f1, indicator_counts
from training.metrics.masked_lm import MaskedPredictions, masked_resampled
from training.metrics.paired import (
    NO_DIFFERENCE,
    compare_resampled,
    describe_comparison,
    mcnemar,
    verdict_of,
    with_comparison,
)
from training.metrics.pairs import binary_pair_resampled, graded_resampled, ranking_resampled
from training.metrics.spans import tag_resampled, tag_scores


def _intents():
    """4,500 rows of 150 labels: 112 rows only the model has right, 147 only the baseline."""
    true = np.arange(4500) % 150
    model, baseline = true.copy(), true.copy()
    wrong = (true + 1) % 150
    model[:640], baseline[:640] = wrong[:640], wrong[:640]
    model[1000:1147], baseline[2000:2112] = wrong[1000:1147], wrong[2000:2112]
    return true, model, baseline


def test_a_small_difference_on_the_same_rows_is_shown():
    true, model, baseline = _intents()
    started = time.process_time()
    found = compare_resampled([single_label_resampled(true, model)], [single_label_resampled(true, baseline)])
    assert time.process_time() - started < 5
    accuracy = found["accuracy"]
    assert accuracy["difference"] == pytest.approx(-35 / 4500)
    assert accuracy["interval"] == pytest.approx([-0.0147, -0.0009], abs=0.0008)
    assert accuracy["mcnemar"] == {
        "only_model": 112,
        "only_other": 147,
        "p": pytest.approx(0.0344, abs=0.001),
    }
    assert accuracy["verdict"] == "baseline wins"
    # Each point is inside the other's interval.
    low, high = single_label_resampled(true, model).intervals()["accuracy"]
    assert low < (baseline == true).mean() < high


def test_differences_equal_resampled_rows():
    random = np.random.default_rng(0)
    true = (random.random((200, 3)) < 0.4).astype(np.int8)
    model, other = (np.where(random.random((200, 3)) < share, true, 1 - true) for share in (0.9, 0.8))

    def macro_f1(true, predicted):
        return float(f1(indicator_counts(true, predicted)).mean())

    slow = bootstrap_interval(
        lambda true, model, other: macro_f1(true, model) - macro_f1(true, other),
        *(true, model, other),
        resampling=Resampling(1, 500),
    )
    found = compare_resampled(
        [multi_label_resampled(true, model)], [multi_label_resampled(true, other)], "teacher"
    )["macro_f1"]
    assert found["interval"] == pytest.approx(slow, abs=0.02)
    assert found["difference"] == pytest.approx(macro_f1(true, model) - macro_f1(true, other))
    assert found["verdict"] == "model wins"


def test_sentences_are_resampled():
    gold, predicted = generated("bio", 80, 3)
    found = compare_resampled([tag_resampled(gold, gold, "bio")], [tag_resampled(gold, predicted, "bio")])
    scores = tag_scores(gold, predicted, "bio")
    for name in ("span_f1", "macro_f1", "token_accuracy"):
        assert found[name]["difference"] == pytest.approx(1 - scores[name])
        assert found[name]["verdict"] == "model wins" and "mcnemar" not in found[name]


def test_queries_are_resampled():
    # 40 queries of two candidates; the model has all right, the other one half of the queries.
    queries = np.repeat(np.arange(40), 2)
    right = np.tile([1, 0], 40)
    other = np.where(queries % 2, right, 1 - right)
    sides = [
        [binary_pair_resampled(right, scores, 0.5), ranking_resampled(right, scores, queries)]
        for scores in (right, other)
    ]
    found = compare_resampled(sides[0], sides[1])
    assert found["mrr"]["difference"] == pytest.approx(0.25)
    # The standard error of 40 queries, not of 80 rows.
    low, high = found["mrr"]["interval"]
    assert high - low == pytest.approx(2 * 1.96 * 0.25 / np.sqrt(40), abs=0.03)
    assert found["roc_auc"]["verdict"] == "model wins"


def test_lower_errors_win():
    true = np.arange(50.0)
    close, far = true + 0.1 * (-1) ** true, true + 5 * (-1) ** true
    found = compare_resampled([graded_resampled(true, close)], [graded_resampled(true, far)])
    assert {each["verdict"] for each in found.values()} == {"model wins"}
    assert found["mse"]["difference"] < 0 < found["spearman"]["difference"]
    counts = np.full(30, 4)
    good, bad = (MaskedPredictions(counts, counts * loss, counts) for loss in (1.0, 2.0))
    masked = compare_resampled([masked_resampled(good)], [masked_resampled(bad)])
    assert (masked["perplexity"]["verdict"], masked["masked_accuracy"]["verdict"]) == (
        "model wins",
        NO_DIFFERENCE,
    )


def test_five_rows_show_nothing():
    for rows, verdict in ((5, NO_DIFFERENCE), (9, "model wins")):
        true = np.arange(rows) % 2
        found = compare_resampled(
            [single_label_resampled(true, true)], [single_label_resampled(true, 1 - true)]
        )
        assert {each["verdict"] for each in found.values()} == {verdict}
    nothing = [single_label_resampled(true[:0], true[:0])]
    assert compare_resampled(nothing, nothing) == {}
    assert mcnemar(np.ones(3, bool), np.ones(3, bool)) == {"only_model": 0, "only_other": 0, "p": 1.0}


def test_comparisons_are_described():
    true, model, baseline = _intents()
    scores, others = {"accuracy": 0.9, "map": None}, {"accuracy": 0.91}
    sides = [single_label_resampled(true, model)], [single_label_resampled(true, baseline)]
    found = with_comparison(scores, sides[0], others, sides[1])
    assert found == json.loads(json.dumps(found)) and list(found["comparison"]) == ["accuracy"]
    assert verdict_of(found, "accuracy") == "baseline wins" and not verdict_of(found, "macro_f1")
    (sentence,) = describe_comparison(scores, found, "accuracy")
    assert sentence.startswith(
        "accuracy: baseline wins, model 0.9000, linear baseline 0.9100, difference -0.0078 (-0.01"
    )
    assert sentence.endswith(", McNemar p 0.034")
    # A run of an earlier version has no comparison.
    assert describe_comparison(scores, others, "accuracy") == [
        "accuracy: not compared on the same rows, model 0.9000, linear baseline 0.9100"
    ]
    (undefined,) = describe_comparison(scores, found, "map")
    assert undefined == "map: cannot be compared, model undefined, linear baseline undefined"


def test_macro_f1_is_described_if_its_verdict_differs():
    gold = [["B-A", "B-A", "B-A", "B-B"]] * 40
    # The model finds all frequent spans and no rare ones, the baseline half of the frequent ones and all rare ones.
    model = [["B-A", "B-A", "B-A", "O"]] * 40
    other = [["B-A", "B-A", "O", "B-B"]] * 20 + [["B-A", "O", "O", "B-B"]] * 20
    scores, others = ({**tag_scores(gold, each, "bio")} for each in (model, other))
    found = with_comparison(
        scores, [tag_resampled(gold, model, "bio")], others, [tag_resampled(gold, other, "bio")]
    )
    headline, contrast = describe_comparison(scores, found, "span_f1", "baseline")
    assert headline.startswith("span_f1: model wins") and contrast.startswith("macro_f1: baseline wins")
    assert "weighs rare labels as much" in contrast
