"""From a file of pairs to scores, predictions and rankings, through the commands."""

import csv
import json
from pathlib import Path

import numpy as np
import pytest
from sklearn import metrics

from kmha.bundle.bundle import Bundle
from kmha.inference.retrieval import Ranker
from kmha.models.matcher import TextMatcher
from tests.bundles import PAIRS, make_pair_bundle
from tests.command_runs import call
from tests.stages import with_stages
from training.evaluate import main as evaluate
from training.explain import main as explain
from training.predict import main as predict

RUNS = with_stages(["cross_run", "symmetric_run", "bi_run", "no_encoder_run"], ["cross_run", "bi_run"])
RANKINGS = {"map", "mrr", "ndcg_at_10", "recall_at_1", "recall_at_5", "recall_at_10"}
BINARY = {"accuracy", "f1", "precision", "recall", "roc_auc", "average_precision"}
COUNTS = {"rows", "queries", "queries_without_right", "queries_with_only_right"}
OTHERS = {"ece", "loss", "threshold"}


def rows_of(path: Path) -> list[dict[str, str]]:
    with open(path, newline="", encoding="utf-8") as file:
        return list(csv.DictReader(file))


def predictions_for(run, pairs) -> list[dict]:
    stdin = "".join(f"{a}\t{b}\n" for a, b in pairs).encode()
    outcome = call(predict, run.folder, stdin=stdin)
    assert outcome.status == 0, outcome.err
    return [json.loads(line) for line in outcome.out.splitlines()]


@pytest.mark.parametrize("name", RUNS)
def test_metrics_of_the_fit(name, request):
    run = request.getfixturevalue(name)
    assert run.outcome.status == 0, run.outcome.err
    line = run.outcome.json
    assert (line["run"], line["judged_on"], line["rows"]) == (str(run.folder), "test", 27)
    assert set(line) - {"baseline"} == {"run", "judged_on"} | BINARY | RANKINGS | COUNTS | OTHERS
    assert (line["queries"], line["queries_without_right"], line["queries_with_only_right"]) == (9, 1, 0)
    log = run.outcome.err
    assert "training, " in log and "test: map " in log
    if name == "bi_run":
        assert "baseline" not in line
        return
    assert set(line["baseline"]) == set(line) - {"run", "judged_on", "baseline"} - OTHERS
    saved = json.loads((run.folder / "metrics.json").read_text("utf-8"))["baseline"]
    assert set(saved["baselines"]) == {"tf-idf cosine", "bm25", "linear model on overlap features"}
    assert saved["baselines"]["bm25"] == {"map": pytest.approx(saved["baselines"]["bm25"]["map"])}


@pytest.mark.parametrize("name", RUNS)
def test_bundle_describes_the_run(name, request):
    run = request.getfixturevalue(name)
    bundle = Bundle.load(run.folder)
    assert (bundle.task, bundle.labels) == ("match", ["score"])
    assert bundle.details["metric"] == "map"
    assert bundle.details["columns"] == {
        "text": "text_a", "text_b": "text_b", "label": "label", "query": "query_id", "separator": "|"
    }  # fmt: skip
    assert {tuple(pair) for pair in bundle.sample} <= {(r["text_a"], r["text_b"]) for r in rows_of(run.train)}
    assert set(bundle.details["lengths"]) == {"p50", "p90", "p99", "p100"}
    settings = (run.folder / "config.toml").read_text("utf-8")
    assert 'task = "match"' in settings and "[match]" in settings


@pytest.mark.parametrize("name", RUNS)
def test_evaluate_scores_equal_the_predictions(name, request):
    run = request.getfixturevalue(name)
    scores = call(evaluate, run.folder, "--data", run.test).json
    rows = rows_of(run.test)
    predictions = predictions_for(run, [(row["text_a"], row["text_b"]) for row in rows])
    assert all(set(prediction) == {"score", "match"} for prediction in predictions)
    true = np.array([int(row["label"]) for row in rows])
    found = np.array([prediction["score"] for prediction in predictions])
    match = np.array([prediction["match"] for prediction in predictions])
    assert np.isfinite(found).all() and ((found >= 0) & (found <= 1)).all()
    queries = np.array([row["query_id"] for row in rows])
    per_query = [
        metrics.average_precision_score(true[queries == query], found[queries == query])
        for query in sorted(set(queries))
        if true[queries == query].any()
    ]
    expected = {
        "rows": len(rows),
        "accuracy": metrics.accuracy_score(true, match),
        "f1": metrics.f1_score(true, match, zero_division=0),
        "roc_auc": metrics.roc_auc_score(true, found),
        "average_precision": metrics.average_precision_score(true, found),
        "loss": metrics.log_loss(true, found),
        "map": np.mean(per_query),
    }
    assert {key: scores[key] for key in expected} == pytest.approx(expected, abs=1e-5)
    assert set(scores["intervals"]) >= {"accuracy", "f1", "roc_auc", "map", "mrr", "ndcg_at_10"}
    # The fit reported the same scores.
    assert {key: run.outcome.json[key] for key in expected} == pytest.approx(expected, abs=1e-5)


def test_a_matcher_without_an_encoder_is_its_linear_path(no_encoder_run):
    assert no_encoder_run.outcome.status == 0, no_encoder_run.outcome.err
    assert "epoch 1/" not in no_encoder_run.outcome.err
    bundle = Bundle.load(no_encoder_run.folder)
    pairs = [(row["text_a"], row["text_b"]) for row in rows_of(no_encoder_run.test)]
    overlap = bundle.model.overlap_logits(bundle.preprocessor(*map(list, zip(*pairs, strict=True))))
    expected = 1 / (1 + np.exp(-np.asarray(overlap) - np.asarray(bundle.model.head.bias)))
    np.testing.assert_allclose(bundle.probabilities(pairs), expected, atol=1e-5)
    of_encoder = sum(np.prod(weight.shape) for weight in bundle.model.pairs[0].weights)
    assert of_encoder < 2_000


def test_a_matcher_without_an_encoder_is_explained(no_encoder_run, tmp_path):
    page = tmp_path / "page.html"
    row = rows_of(no_encoder_run.test)[0]
    outcome = call(explain, no_encoder_run.folder, row["text_a"], row["text_b"], "--out", page, "--draws", 2)
    assert outcome.status == 0, outcome.err
    assert row["text_a"].split()[0] in page.read_text("utf-8")
    outcome = call(explain, no_encoder_run.folder, "--data", no_encoder_run.test, "--rows", 2, "--draws", 1)
    assert outcome.status == 0, outcome.err


@pytest.mark.second
def test_symmetric_matcher_ignores_the_order(symmetric_run):
    pairs = [(row["text_a"], row["text_b"]) for row in rows_of(symmetric_run.test)]
    bundle = Bundle.load(symmetric_run.folder)
    there, back = (bundle.probabilities(given) for given in (pairs, [(b, a) for a, b in pairs]))
    np.testing.assert_allclose(there, back, atol=1e-6)
    assert np.std(there) > 1e-3


@pytest.mark.second
@pytest.mark.parametrize("name", RUNS)
def test_ranking_has_the_scores_of_the_pairs(name, request, tmp_path):
    run = request.getfixturevalue(name)
    rows = rows_of(run.test)
    candidates = [row["text_b"] for row in rows]
    file = tmp_path / "candidates.txt"
    file.write_text("".join(f"{text}\n" for text in candidates), "utf-8")
    queries = [rows[0]["text_a"], "", "渡轮"]
    outcome = call(predict, run.folder, "--rank", file, stdin="\n".join(queries).encode())
    assert outcome.status == 0, outcome.err
    bundle = Bundle.load(run.folder)
    for query, line in zip(queries, map(json.loads, outcome.out.splitlines()), strict=True):
        assert line["query"] == query
        expected = bundle.probabilities([(query, text) for text in candidates])[:, 0]
        places = [entry["line"] - 1 for entry in line["ranking"]]
        assert sorted(places) == list(range(len(candidates)))
        scores = [entry["score"] for entry in line["ranking"]]
        assert scores == sorted(scores, reverse=True)
        np.testing.assert_allclose(scores, [expected[place] for place in places], atol=1e-5)
        assert [entry["text"] for entry in line["ranking"]] == [candidates[place] for place in places]
    short = call(predict, run.folder, "--rank", file, "--top", 3, stdin=queries[0].encode()).json
    assert short["ranking"] == json.loads(outcome.out.splitlines()[0])["ranking"][:3]


@pytest.mark.second
@pytest.mark.parametrize(
    "model",
    [
        {},
        {"symmetric": True, "rounds": 2, "granularities": ("char", "wordpiece")},
        {"form": "bi", "share_weights": False},
        {"form": "bi", "target": "graded"},
        {"form": "joint"},
        {"form": "joint", "symmetric": True},
        {"target": "graded"},
    ],
    ids=lambda model: "-".join(map(str, model.values())) or "cross",
)
def test_every_form_ranks_by_its_scores(model):
    bundle = make_pair_bundle(**model)
    texts = [b for _, b in PAIRS] + ["", "old " * 50]
    ranker = Ranker(bundle, texts)
    for query in ("New bread, old bakers", "", "ferry " * 50):
        expected = bundle.probabilities([(query, text) for text in texts])[:, 0]
        np.testing.assert_allclose(ranker.scores(query), expected, atol=1e-5)


def test_a_query_is_encoded_once_for_all_candidates(monkeypatch):
    read: list[tuple[str, int]] = []
    encode = TextMatcher.encode

    def noted(self, features, side):
        encoded = encode(self, features, side)
        read.append((side, int(encoded[0].shape[0] or 0)))
        return encoded

    monkeypatch.setattr(TextMatcher, "encode", noted)
    bundle = make_pair_bundle()
    import tensorflow as tf

    tf.config.run_functions_eagerly(True)
    try:
        texts = [f"{b} {number}" for number in range(30) for _, b in PAIRS]
        # The first half is passed twice, and encoded once.
        Ranker(bundle, texts + texts[: len(texts) // 2]).scores("New bread, old bakers")
    finally:
        tf.config.run_functions_eagerly(False)
    assert [rows for side, rows in read if side == "a"] == [1]
    assert sum(rows for side, rows in read if side == "b") == len(texts)
