"""Explanations of a SavedModel equal those of its run, except for gradients."""

import json
import re

import numpy as np
import pytest

from export.explain import main
from tests.bundles import TEXTS as SAMPLE
from tests.bundles import make_linear_bundle, one_label_bundle, pair_bundle, tagger_bundle
from tests.command_runs import call, refused
from tests.stages import with_stages
from training.explanation.attributions import join_word_pieces
from training.explanation.bundle_explainer import BundleTagModel, BundleTextModel
from training.explanation.explainer import explain_tag, explain_text
from training.explanation.page import GRADIENT

TEXTS = {
    "one": ("The old ferry, isn't it?",),
    "cross": ("The old ferry, isn't it?", "渡轮七点 old ferries"),
    "tags": ("The old ferry leaves Seven Harbour at seven. " * 4,),
}


@pytest.fixture(scope="module")
def folders(served, served_matcher, served_tagger):
    return {"one": served["one label"], "cross": served_matcher, "tags": served_tagger}


@pytest.mark.second
@pytest.mark.parametrize("kind", TEXTS)
def test_the_explanation_equals_that_of_the_run(folders, tmp_path, kind):
    word = ["--word", "20"] if kind == "tags" else []
    outcome = call(main, folders[kind], *TEXTS[kind], "--out", tmp_path / "page.html", "--draws", "2", *word)
    assert outcome.status == 0, outcome.err
    bundle = {"one": one_label_bundle, "cross": pair_bundle, "tags": tagger_bundle}[kind]()
    if kind == "tags":
        model = BundleTagModel(bundle)
        expected = explain_tag(model, model.words(*TEXTS[kind]), number=20)
    else:
        expected = explain_text(BundleTextModel(bundle), TEXTS[kind])
    found = outcome.json
    assert (found["explained"], found["words"]) == (expected.explained, expected.words)
    np.testing.assert_allclose(found["probability"], expected.value, atol=1e-4)
    assert GRADIENT not in found
    scores = expected.attributions.word_scores(len(expected.words))["attention"]
    np.testing.assert_allclose(found["attention"], scores, atol=1e-4)
    content = (tmp_path / "page.html").read_text("utf-8")
    data = json.loads(re.findall(r'id="data">(.*?)</script>', content, re.DOTALL)[0])
    for given, row in zip(data["sequences"], join_word_pieces(expected.attributions).sequences, strict=True):
        assert (given["tokens"], given["words"]) == (row.tokens, row.words)
    assert [each["name"] for each in data["maps"]] == [each.name for each in expected.attributions.maps]
    assert any("has no gradients" in note for note in data["notes"])


@pytest.mark.parametrize("with_encoder", with_stages([True, False], [False]))
def test_a_linear_path_is_explained_as_by_the_run(tmp_path, with_encoder):
    from export.savedmodel.write import write_savedmodel

    bundle = make_linear_bundle(with_encoder, with_encoder)
    write_savedmodel(bundle, tmp_path / "served")
    outcome = call(main, tmp_path / "served", SAMPLE[0], "--out", tmp_path / "page.html", "--draws", "2")
    assert outcome.status == 0, outcome.err
    expected, found = explain_text(BundleTextModel(bundle), (SAMPLE[0],)), outcome.json
    assert expected.linear is not None
    part = expected.linear.report(10)
    assert [text for text, _ in found["linear"]["ngrams"]] == [text for text, _ in part["ngrams"]]
    for name in ("logit", "bias", "encoder_logit", "relative_to_mean"):
        np.testing.assert_allclose(found["linear"][name], part[name], atol=1e-4)
    scores = expected.attributions.word_scores(len(expected.words))
    np.testing.assert_allclose(found["ngrams"], scores["ngrams"], atol=1e-4)
    assert ("attention" in found) == with_encoder == ("no gradients" in outcome.err)


def test_wrong_input_is_one_line(folders, tmp_path):
    (tmp_path / "model.onnx").write_bytes(b"")
    for arguments, message in (
        ([folders["one"], "a", "b"], "TEXT: expected one text, got 2"),
        ([folders["cross"], "a"], "TEXT: expected two texts"),
        ([folders["one"], "a", "--word", "1"], "--word: expected a tagger"),
        ([folders["one"], " "], "TEXT: expected a text with words"),
        ([tmp_path / "model.onnx", "a"], "expected a SavedModel, got another kind"),
        ([tmp_path / "none", "a"], "expected an exported model"),
    ):
        assert message in refused(tmp_path, main, *map(str, arguments))
