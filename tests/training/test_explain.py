"""The command on tiny runs of every task."""

import json
import re
from collections.abc import Iterable

import numpy as np
import pytest

from tests.bundles import (
    TEXTS,
    WINDOWS,
    make_bundle,
    make_linear_bundle,
    make_pair_bundle,
    masked_bundle,
    one_label_bundle,
    several_label_bundle,
    tagger_bundle,
)
from tests.command_runs import call, refused, write_csv
from tests.export.pair_bundles import KINDS as PAIR_KINDS
from tests.export.pair_bundles import bundle_of
from tests.stages import with_stages
from training.explain import main

A, B = "The old ferry, isn't it?", "渡轮七点 old ferries"
LONG = "The old ferry leaves Seven Harbour at seven. " * 4


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    folder = tmp_path_factory.mktemp("runs")
    bundles = {"one": one_label_bundle(), "several": several_label_bundle(), "masked": masked_bundle()}
    bundles |= {kind: bundle_of(kind) for kind in PAIR_KINDS}
    bundles |= {"tags": tagger_bundle("spelt")}
    for name, bundle in bundles.items():
        bundle.save(folder / name)
    return folder, bundles


def shown(path) -> dict:
    found = re.findall(
        r'<script type="application/json" id="data">(.*?)</script>', path.read_text("utf-8"), re.DOTALL
    )
    return json.loads(found[0])


def joined(tokens: Iterable[str]) -> str:
    return "".join(tokens).replace("##", "")


@pytest.mark.parametrize("kind", ["one", "several"])
def test_a_classifier_is_explained(runs, tmp_path, kind):
    folder, bundles = runs
    outcome = call(main, folder / kind, A, "--out", tmp_path / "page.html", "--draws", "3")
    assert outcome.status == 0, outcome.err
    found, bundle = outcome.json, bundles[kind]
    probabilities = bundle.probabilities([A])[0]
    assert found["explained"] == bundle.labels[probabilities.argmax()]
    np.testing.assert_allclose(found["probability"], probabilities.max(), atol=1e-5)
    assert found["words"] == ["The", "old", "ferry", ",", "isn't", "it", "?"]
    without = bundle.probabilities([A.replace("ferry", "")])[0][probabilities.argmax()]
    np.testing.assert_allclose(found["left_out"][2], probabilities.max() - without, atol=1e-4)
    data = shown(tmp_path / "page.html")
    (row,) = data["sequences"]
    ids = bundle.preprocessor([A])["token_ids"][0].numpy()
    assert joined(row["tokens"]) == joined(bundle.preprocessor.vocabulary.tokens[each] for each in ids)
    # The pieces of "isn't" are one word.
    assert row["words"] == [-1, *range(7), -1] and row["tokens"][5] == "isn't"
    np.testing.assert_allclose(sum(row["rollout"]), 1, atol=1e-6)
    assert data["where"] == kind


def test_gradients_match_finite_differences(runs):
    """Gradients of the logit between the unknown tokens and those of the text."""
    import tensorflow as tf

    from training.explanation.bundle_explainer import BundleTextModel
    from training.explanation.explainer import ExplainedOutput

    bundle = runs[1]["one"]
    trace = BundleTextModel(bundle).trace((A,), ExplainedOutput(1))
    assert trace.gradients is not None
    model, part = bundle.model, bundle.preprocessor
    features = part([A])
    ids = features["token_ids"]
    special = (ids == part.start_id) | (ids == part.end_id)
    there, unknown = (
        model.encoder.embed(each, features["segment_ids"], training=False)
        for each in (ids, tf.where(special, ids, part.unknown_id))
    )

    def logit(x):
        encoded, _ = model.encoder.attend(x, features["padding_mask"], training=False)
        return float(model.head(model.pool_tokens(encoded, features))[0, 1])

    step = 1e-2
    for place in range(ids.shape[1]):
        way = tf.one_hot([place], ids.shape[1])[..., None] * (there - unknown)
        expected = (logit(there + step * way) - logit(there - step * way)) / (2 * step)
        np.testing.assert_allclose(
            trace.gradients["tokens"][place], expected, atol=2e-3 + 0.02 * abs(expected)
        )


@pytest.mark.parametrize("multi_label", [False, True])
@pytest.mark.parametrize("with_encoder", [True, False])
def test_the_parts_of_a_linear_path_add_up_to_the_logit(tmp_path, with_encoder, multi_label):
    bundle = make_linear_bundle(multi_label, with_encoder)
    bundle.save(tmp_path / "run")
    outcome = call(main, tmp_path / "run", TEXTS[0], "--out", tmp_path / "page.html", "--draws", "2")
    assert outcome.status == 0, outcome.err
    found, data, model = outcome.json, shown(tmp_path / "page.html"), bundle.model
    output = bundle.labels.index(found["explained"])

    def of_label(logits):
        values = np.asarray(logits, np.float64)[0]
        return values[output] - (0 if multi_label else values.mean())

    features = bundle.preprocessor([TEXTS[0]])
    linear, whole = of_label(model.linear_logits(features)), of_label(model(features))
    encoder = of_label(model.head(model.pooled_vectors(features)))
    bias = of_label(model.linear.bias[None])
    part = found["linear"]
    np.testing.assert_allclose(
        [part["logit"], part["encoder_logit"], part["bias"]], [linear, encoder, bias], atol=1e-5
    )
    np.testing.assert_allclose(part["logit"] + part["encoder_logit"], whole, atol=1e-5)
    assert part["relative_to_mean"] is not multi_label
    # Every n-gram, not only those on the page: also the shares of the tokens add up.
    (row,) = data["sequences"]
    np.testing.assert_allclose(sum(row["ngrams"]) + bias, linear, atol=1e-5)
    np.testing.assert_allclose(data["linear"]["parts"][0][1] + bias, linear, atol=1e-5)
    for word, value in enumerate(found["ngrams"]):
        own = [each for number, each in zip(row["words"], row["ngrams"], strict=True) if number == word]
        np.testing.assert_allclose(value, sum(own), atol=2e-6)
    values = [value for _, value in part["ngrams"]]
    assert 0 < len(values) <= 10 and values == sorted(values, key=lambda each: -abs(each))
    assert {"the old", "harbour"} & {text for text, _ in part["ngrams"]}
    assert all("ngrams" in step for step in found["deletion"]["steps"])
    assert ("attention" in found) == ("gradient" in found) == bool(data["maps"]) == with_encoder


def test_ngrams_of_a_linear_path_are_exact():
    """One by one: without the row of an n-gram, the logit is lower by its contribution."""
    from training.explanation.bundle_explainer import BundleTextModel
    from training.explanation.explainer import explain_text

    bundle = make_linear_bundle(multi_label=True, with_encoder=False)
    explained = explain_text(BundleTextModel(bundle), (TEXTS[0],), "old")
    part = explained.linear
    assert part is not None
    np.testing.assert_allclose(sum(value for _, value in part.ngrams) + part.bias, part.logit, atol=1e-5)
    features, layer = bundle.preprocessor([TEXTS[0]]), bundle.model.linear
    rows = layer.ngram_rows(features["token_ids"], features["padding_mask"]).numpy()
    before, table = (
        float(layer(features["token_ids"], features["padding_mask"])[0, 0]),
        layer.table.embeddings.numpy(),
    )
    falls = []
    for row in np.unique(rows[rows > 0]):
        layer.table.embeddings.assign(np.where(np.arange(len(table))[:, None] == row, 0, table))
        falls.append(before - float(layer(features["token_ids"], features["padding_mask"])[0, 0]))
    np.testing.assert_allclose(sorted(falls), sorted(value for _, value in part.ngrams), atol=1e-5)


def test_gradients_do_not_include_the_linear_path():
    from training.explanation.bundle_explainer import BundleTextModel
    from training.explanation.explainer import ExplainedOutput

    bundle = make_linear_bundle()
    before = BundleTextModel(bundle).trace((A,), ExplainedOutput(1)).gradients
    bundle.model.linear.scale(0.0)
    after = BundleTextModel(bundle).trace((A,), ExplainedOutput(1)).gradients
    assert before is not None and after is not None and np.abs(before["tokens"]).max() > 0.01
    np.testing.assert_allclose(before["tokens"], after["tokens"], atol=1e-6)


@pytest.mark.second
def test_windows_split_the_ngrams_of_tokens_that_two_windows_have():
    from training.explanation.bundle_explainer import BundleTextModel
    from training.explanation.explainer import explain_text

    bundle = make_linear_bundle(windows=WINDOWS)
    explained = explain_text(BundleTextModel(bundle), (TEXTS[0],))
    rows, part = explained.attributions.sequences, explained.linear
    assert part is not None and len(rows) > 1
    shares = sum(row.ngrams.sum() for row in rows if row.ngrams is not None)
    np.testing.assert_allclose(shares + part.bias, part.logit, atol=1e-5)


@pytest.mark.second
def test_each_window_has_its_own_sequence(tmp_path):
    bundle = make_bundle(windows=WINDOWS)
    bundle.save(tmp_path / "run")
    outcome = call(main, tmp_path / "run", TEXTS[0], "--out", tmp_path / "page.html", "--draws", "2")
    assert outcome.status == 0, outcome.err
    found, data = outcome.json, shown(tmp_path / "page.html")
    features = bundle.preprocessor([TEXTS[0]])
    places = bundle.model.windows.positions(features["token_ids"].shape[1])
    shares = bundle.model.window_shares(features)[0].numpy()
    tokens = [bundle.preprocessor.vocabulary.tokens[each] for each in features["token_ids"][0].numpy()]
    assert len(places) > 1
    for index, (row, window) in enumerate(zip(data["sequences"], places, strict=True)):
        assert row["name"] == f"Window {index + 1} of {len(places)}"
        assert joined(row["tokens"]) == joined(tokens[place] for place in window)
        np.testing.assert_allclose(sum(row["rollout"]), shares[index], atol=1e-6)
    assert [each["rows"] for each in data["maps"]] == list(range(len(places)))
    # A word of several windows is listed once, with the sum of its scores.
    assert (
        len(found["words"])
        == len(found["gradient"])
        == max(max(row["words"]) for row in data["sequences"]) + 1
    )
    for name, key in (("attention", "rollout"), ("gradient", "gradient")):
        for word, value in enumerate(found[name]):
            total = sum(
                each
                for row in data["sequences"]
                for number, each in zip(row["words"], row[key], strict=True)
                if number == word
            )
            assert value == pytest.approx(total, abs=2e-6)


def test_one_window_is_explained_as_without_windows():
    from training.explanation.bundle_explainer import BundleTextModel
    from training.explanation.explainer import ExplainedOutput

    whole, windowed = (
        BundleTextModel(make_bundle(windows=each)).trace(("old bread",), ExplainedOutput(1))
        for each in (None, WINDOWS)
    )
    assert windowed.tokens == whole.tokens and not windowed.windows
    np.testing.assert_allclose(windowed.attention["attention"], whole.attention["attention"], atol=1e-6)
    assert windowed.gradients is not None and whole.gradients is not None
    np.testing.assert_allclose(windowed.gradients["tokens"], whole.gradients["tokens"], atol=1e-5)


@pytest.mark.second
@pytest.mark.parametrize("kind", PAIR_KINDS)
def test_a_matcher_is_explained(runs, tmp_path, kind):
    folder, bundles = runs
    outcome = call(main, folder / kind, A, B, "--out", tmp_path / "page.html", "--draws", "3")
    assert outcome.status == 0, outcome.err
    found, data = outcome.json, shown(tmp_path / "page.html")
    prediction = bundles[kind].predict([(A, B)])[0]
    expected = prediction["probability"] if "probability" in prediction else prediction["score"]
    value = found["probability"] if "probability" in found else found["score"]
    np.testing.assert_allclose(
        value, 1 - expected if prediction.get("match") is False else expected, atol=1e-4
    )
    names = [each["name"] for each in data["maps"]]
    across = [name for name in names if "attends to" in name]
    assert len(across) == (0 if kind == "bi" else 4 if kind == "two ways" else 2)
    granularities = len(bundles[kind].model.granularities)
    assert len(data["sequences"]) == 2 * granularities
    shares = sum(sum(row["rollout"]) for row in data["sequences"])
    np.testing.assert_allclose(shares, granularities, atol=1e-6)
    assert any("no cross-attention" in note for note in data["notes"]) == (kind == "bi")
    assert set(found["words"]) >= {"The", "old", "渡"}


@pytest.mark.second
def test_symmetric_models_add_the_gradients_of_both_orders():
    """Swapping the texts of a symmetric model swaps their gradients."""
    from training.explanation.bundle_explainer import BundleTextModel
    from training.explanation.explainer import ExplainedOutput

    model = BundleTextModel(make_pair_bundle(form="joint", symmetric=True))
    one, other = (model.trace(row, ExplainedOutput(0)).gradients for row in ((A, B), (B, A)))
    assert one is not None and other is not None
    np.testing.assert_allclose(one["tokens_a"][1:], other["tokens_b"], atol=1e-4)
    np.testing.assert_allclose(one["tokens_b"], other["tokens_a"][1:], atol=1e-4)


def test_a_tagger_is_explained_in_the_window_of_the_word(runs, tmp_path):
    folder, bundles = runs
    outcome = call(
        main, folder / "tags", LONG, "--word", "30", "--out", tmp_path / "page.html", "--draws", "2"
    )
    assert outcome.status == 0, outcome.err
    found, data = outcome.json, shown(tmp_path / "page.html")
    prediction = bundles["tags"].predict([LONG])[0]
    assert found["explained"] == f"{prediction['words'][29]} → {prediction['tags'][29]}"
    np.testing.assert_allclose(found["probability"], prediction["probabilities"][29], atol=1e-5)
    (row,) = data["sequences"]
    assert 29 in row["words"] and found["left_out"][29] == 0
    assert 29 not in [place for place, fall in enumerate(found["left_out"]) if fall]
    pieces = [token for token, word in zip(row["tokens"], row["words"], strict=True) if word == 29]
    assert "".join(pieces).replace("##", "") == prediction["words"][29].lower()
    assert any("window" in note for note in data["notes"])


@pytest.mark.parametrize("kind", with_stages(["one", "tags"], ["one"]))
def test_many_rows_are_tested(runs, tmp_path, kind):
    folder, _ = runs
    if kind == "one":
        data = write_csv(tmp_path / "rows.csv", [(text, "bread") for text in [*TEXTS, ""]])
    else:
        data = tmp_path / "rows.conll"
        data.write_text("".join("old O\nferry B-LOC\nat O\nseven O\n\n" for _ in range(3)))
    outcome = call(main, folder / kind, "--data", data, "--rows", "0", "--draws", "2")
    assert outcome.status == 0, outcome.err
    found = outcome.json
    assert (found["rows"], found["skipped"]) == ((len(TEXTS), 1) if kind == "one" else (3, 0))
    assert len(found["shares"]) == 4 and "attention − random" in outcome.err
    # Leave-one-out finds the best first word to drop.
    first = found["shares"][0]
    assert first["left_out"] >= max(first["attention"], first["gradient"], first["random"]) - 0.2


@pytest.mark.parametrize(
    ("kind", "arguments", "message"),
    [
        ("one", [], "TEXT: expected one text"),
        ("one", ["a", "b"], "TEXT: expected one text, for a classifier, got 2"),
        ("one", [" \t"], "got an empty one"),
        ("one", ["\u200b\x01"], "expected a text with tokens"),
        ("cross", ["a"], "TEXT: expected two texts"),
        ("tags", ["\u200b\x01"], "expected a text with words"),
        ("tags", ["old ferry", "--word", "3"], "--word: expected 1 to 2"),
        ("tags", ["old ferry", "--label", "B-XYZ"], "--label: expected one of B-LOC"),
        ("one", ["a", "--label", "soup"], "--label: expected one of harbour"),
        ("cross", ["a", "b", "--label", "soup"], "--label: expected a run with labels"),
        ("one", ["a", "--word", "1"], "--word: expected a text for a tagger, got a classifier"),
        ("one", ["a", "--out", "page.txt"], "expected a name that ends in .html"),
        ("one", ["a", "--out", "none/page.html"], "expected a folder that exists"),
        ("one", ["a", "--data", "rows.csv"], "TEXT: expected no text"),
        ("one", ["a", "--text-column", "b"], "--text-column: expected --data too"),
        ("one", ["a", "--draws", "0"], "--draws: expected at least 1"),
        ("masked", ["old [MASK]"], "expected a classifier, a matcher or a tagger"),
        ("none", ["a"], "expected a run folder"),
    ],
)
def test_wrong_input_is_one_line(runs, tmp_path, monkeypatch, kind, arguments, message):
    monkeypatch.chdir(tmp_path)
    assert message in refused(tmp_path, main, str(runs[0] / kind), *arguments)
