"""Correct exports of taggers pass; broken ones fail, and the wrong layer is named."""

import dataclasses
from pathlib import Path

import numpy as np
import pytest
import tensorflow as tf

from export.predictors.artifacts import SAVEDMODEL, Artifact, Predictions
from export.savedmodel.tagger_endpoints import TaggerEndpoints
from export.savedmodel.write import write_savedmodel
from export.verification import examiner as examiner_module
from export.verification import rows as verify_rows
from export.verification.examiner import Examiner, as_json, failures, table
from export.verification.expected import ExpectedSentences
from export.verification.rows import edge_case_sentences, read_rows
from export.verify import main
from kmha.features import MAX_WORDS
from kmha.text.preprocessor import Preprocessor
from kmha.text.sentence_preprocessor import SentencePreprocessor
from kmha.text.vocabulary import Vocabulary
from tests.bundles import SENTENCES, TAGGERS, make_tagger_bundle, tagger_bundle
from tests.command_runs import call
from training.io.examples import ColumnOverrides

FACTS = {"quantization": "none", "ops": {"MatMul": 3}, "lengths": None, "labels": None}


def rows_file(bundle, path: Path) -> Path:
    """Sentences tagged by the bundle itself, the last word wrongly."""
    predictions = bundle.predict([sentence.split() for sentence in SENTENCES])
    last = predictions[-1]["tags"]
    last[-1] = next(label for label in bundle.labels if label != last[-1] and label[0] not in "IEM")
    blocks = [
        "".join(f"{word}\t{tag}\n" for word, tag in zip(each["words"], each["tags"], strict=True))
        for each in predictions
    ]
    path.write_text("\n".join(blocks), "utf-8")
    return path


def some_edge_case_sentences(bundle) -> dict:
    """Returns a few of them, for tests that do not depend on the sentences."""
    names = ("no words", "words without tokens", "NUL, as a word among others", "23 words of one token")
    edge_case = edge_case_sentences(bundle)
    return {
        name: edge_case[name] for name in (*names, "empty, raw", "right to left, raw", "longest length, raw")
    }


@pytest.fixture(scope="module")
def rows(tmp_path_factory):
    """Rows of the spelt tagger."""
    folder = tmp_path_factory.mktemp("rows")
    path = rows_file(tagger_bundle(), folder / "rows.conll")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(verify_rows, "edge_case_rows", some_edge_case_sentences)
        return read_rows(tagger_bundle(), path, ColumnOverrides(), 4, folder / "scratch")


@pytest.fixture(scope="module")
def expected(rows) -> ExpectedSentences:
    return ExpectedSentences(tagger_bundle(), rows)


def test_sentences_are_read_as_words_and_named(rows):
    assert rows.real == 4 and rows.texts[3] == SENTENCES[4].encode().split()
    assert rows.place(0).endswith("rows.conll:1")
    assert rows.place(rows.compared) == "edge-case sentence: no words"
    assert rows.place(len(rows.texts) - 1).startswith("edge-case text: ")


@pytest.mark.parametrize("kind", ["spelt", "characters"])
def test_edge_case_sentences_match_their_descriptions(kind):
    bundle = tagger_bundle(kind)
    edge_case = edge_case_sentences(bundle)
    kinds = [isinstance(row, bytes) for row in edge_case.values()]
    assert kinds == sorted(kinds) and 10 < sum(kinds) < len(kinds)
    assert len(edge_case["1,500 words"]) == 1500 and len(edge_case["2,048 words"]) == MAX_WORDS
    assert edge_case["NUL, as a word"] == [b"\0"] and edge_case["empty, raw"] == b""
    words = bundle.tagger.split(list(edge_case.values())).words
    assert max(map(len, words)) == MAX_WORDS


def predictions_for(expected: ExpectedSentences, change=lambda predictions: None, **facts) -> Predictions:
    predictions = expected.predictions.copy()
    change(predictions)
    return Predictions(predictions, None, {**FACTS, **facts})


def examine(monkeypatch, expected: ExpectedSentences, predictions: Predictions, tmp_path: Path) -> dict:
    monkeypatch.setattr(examiner_module, "ExpectedSentences", lambda *_: expected)
    monkeypatch.setattr(examiner_module, "predict_isolated", lambda *_: predictions)
    monkeypatch.setattr(
        examiner_module, "layer_errors_isolated", lambda artifact, texts, layers: dict.fromkeys(layers, 0.0)
    )
    (tmp_path / "model").write_bytes(b"12")
    return Examiner(tagger_bundle(), expected._rows).report(Artifact(tmp_path / "model", SAVEDMODEL))


def test_predictions_of_the_run_itself_pass(monkeypatch, expected, tmp_path):
    report = examine(
        monkeypatch, expected, predictions_for(expected, labels=list(tagger_bundle().labels)), tmp_path
    )
    assert report["passed"] and report["max_difference"] == 0 and report["sentences_with_other_paths"] == 0
    assert report["span_f1_change"] == 0 and 0.5 < report["span_f1"] < 1


def other_tag(predictions: np.ndarray) -> None:
    """The first word is tagged in another way, which the scheme allows; its probabilities stay."""
    labels = tagger_bundle().labels
    predictions[0, -1] = labels.index("B-LOC" if labels[int(predictions[0, -1])] != "B-LOC" else "B-PER")


def test_another_path_fails_though_all_probabilities_are_the_same(monkeypatch, expected, tmp_path):
    report = examine(monkeypatch, expected, predictions_for(expected, other_tag), tmp_path)
    assert report["max_difference"] == 0 and report["sentences_with_other_paths"] == 1
    assert report["failures"] == ["expected the best tags, got tags with a lower score for 1 sentences"]
    assert report["label_agreement"] < 1


def test_a_tag_that_does_not_exist_is_another_path(expected):
    found = expected.predictions.copy()
    found[0, -1] = 99
    assert expected.compare(expected.predictions, found).other_paths == 1


def test_an_equally_good_path_passes(rows, monkeypatch):
    """Where all weights are zero each path is as good as the others."""
    bundle = make_tagger_bundle(("X", "Y"), scheme="none")
    for weights in bundle.model.trainable_variables:
        weights.assign(0 * weights)
    monkeypatch.setattr(ExpectedSentences, "metric_of", lambda *_: 1.0)
    tied = ExpectedSentences(bundle, rows)
    found = tied.predictions.copy()
    found[:, -1] = 1 - found[:, -1]
    result = tied.compare(tied.predictions, found)
    assert result.other_paths == 0 and result.label_agreement == 0
    assert failures("none", result, 0.0, None, True) == []


def test_nan_is_counted_by_words(expected):
    found = expected.predictions.copy()
    found[7, 2] = np.nan
    result = expected.compare(expected.predictions, found)
    assert as_json(result)["max_difference"] is None
    reason = "expected finite predictions, got NaN or infinity for 1 words"
    assert failures("none", result, None, None, True)[0] == reason
    assert expected.row_of(result.worst_row) == 0


def test_the_sentence_of_a_word_skips_empty_sentences(expected):
    ends = np.cumsum([len(words) for words in expected._words])
    for word in (0, ends[0] - 1, ends[0], ends[-1] - 1):
        row = expected.row_of(int(word))
        assert (ends[row - 1] if row else 0) <= word < ends[row]


@pytest.mark.second
def test_shorter_windows_are_compared_with_shorter_windows_of_the_run(monkeypatch, expected, tmp_path):
    truncated, longer = expected.truncated_predictions(16)
    assert longer.any() and not longer.all() and expected.truncated_predictions(24)[0] is expected.predictions
    assert truncated.shape == expected.predictions.shape and (truncated != expected.predictions).any()
    report = examine(
        monkeypatch, expected, Predictions(truncated, None, {**FACTS, "lengths": [8, 16]}), tmp_path
    )
    assert report["passed"] and report["rows_longer"] == longer.sum()
    assert "sentences need windows of more than its 16 tokens" in table([report], 1.0)[-1]
    ids = [[list(window) for window in row] for row in expected._ids]
    assert expected.rows_with_other_ids(ids, None) == []
    assert expected.rows_with_other_ids(ids, 16) == np.flatnonzero(longer).tolist()


def test_layers_have_the_sizes_of_a_file_of_fixed_lengths(expected):
    layers = expected.layers(expected.texts[:2], [16, 20], own_tokenizer=True)
    assert "tokenizer" not in layers and layers["scores"].shape[1] in (14, 18)
    assert layers["decoding"].shape == layers["scores"].shape
    assert list(layers)[:2] == ["embedding", "spelling"]


def other_block(bundle):
    kernel = bundle.model.encoder.blocks[0].feed_forward.trainable_variables[0]
    kernel.assign(kernel * 1.1)
    return bundle


def other_spelling(bundle):
    kernel = bundle.model.spelling.projection.kernel
    kernel.assign(kernel * 1.1)
    return bundle


def other_words(bundle):
    part = bundle.preprocessor.part
    tokens = list(part.vocabulary.tokens)
    tokens[5:] = np.random.default_rng(1).permutation(np.array(tokens[5:], object)).tolist()
    other = Preprocessor(Vocabulary(tokens), **part.get_config())
    return dataclasses.replace(bundle, preprocessor=SentencePreprocessor(other, "words", True))


def other_transitions(bundle):
    weights = bundle.model.crf.transitions
    # Strong enough that other paths are best.
    weights.assign(-9 * weights.numpy().T)
    return bundle


def other_head(bundle):
    bundle.model.head.kernel.assign(bundle.model.head.kernel * 1.1)
    return bundle


BREAKS = {
    "transitions": (other_transitions, "decoding"),
    "vocabulary": (other_words, "tokenizer"),
    "block": (other_block, "block_0"),
    "spelling": (other_spelling, "spelling"),
    "head": (other_head, "scores"),
}


def quick_savedmodel(bundle, folder: Path) -> Path:
    """With the needed signatures only: the others take time to write."""
    served = TaggerEndpoints(bundle)
    signatures = {
        name: signature
        for name, signature in served.signatures().items()
        if not name.startswith("predict_ids")
    }
    tf.saved_model.save(served, str(folder), signatures=signatures)
    return folder


@pytest.mark.second
def test_a_correct_export_passes_and_other_transitions_fail(tmp_path, monkeypatch):
    monkeypatch.setattr(verify_rows, "edge_case_rows", some_edge_case_sentences)
    bundle = tagger_bundle()
    bundle.save(tmp_path / "run")
    data = rows_file(bundle, tmp_path / "rows.conll")
    other = other_transitions(make_tagger_bundle(**TAGGERS["spelt"]))
    paths = [quick_savedmodel(each, tmp_path / name) for name, each in (("a", bundle), ("b", other))]
    outcome = call(main, tmp_path / "run", *paths, "--data", data)
    assert outcome.status == 1, outcome.err
    correct, broken = outcome.json["artifacts"]
    assert correct["passed"] and correct["max_difference"] < 1e-5 and correct["label_agreement"] == 1
    assert correct["rows"] == len(SENTENCES) and correct["edge_case_rows"] == 7
    assert (
        f"{len(SENTENCES)} rows of {data} and {correct['edge_case_rows']} edge-case sentences" in outcome.err
    )
    assert outcome.json["span_f1"] == correct["span_f1"] < 1 and correct["span_f1_change"] == 0
    assert not broken["passed"] and broken["first_divergent_layer"] == "decoding"
    assert broken["sentences_with_other_paths"] > 0
    assert "differs first in decoding" in outcome.err


@pytest.mark.slow
@pytest.mark.parametrize("how", list(BREAKS)[1:])
def test_a_broken_export_fails_and_its_layer_is_named(tmp_path, how):
    correct = tagger_bundle()
    correct.save(tmp_path / "run")
    change, layer = BREAKS[how]
    path = quick_savedmodel(change(make_tagger_bundle(**TAGGERS["spelt"])), tmp_path / "served")
    data = rows_file(correct, tmp_path / "rows.conll")
    outcome = call(main, tmp_path / "run", path, "--data", data)
    assert outcome.status == 1, outcome.err
    (report,) = outcome.json["artifacts"]
    assert report["failures"] and report["first_divergent_layer"] == layer, report["layers"]


@pytest.mark.slow
@pytest.mark.parametrize("kind", TAGGERS)
def test_correct_exports_pass_with_all_options(tmp_path, kind):
    bundle = tagger_bundle(kind)
    bundle.save(tmp_path / "run")
    path = write_savedmodel(bundle, tmp_path / "served")
    outcome = call(main, tmp_path / "run", path, "--data", rows_file(bundle, tmp_path / "rows.conll"))
    assert outcome.status == 0, outcome.err
    assert outcome.json["artifacts"][0]["edge_case_rows"] > 50
    assert outcome.json["token_accuracy" if kind == "no scheme" else "span_f1"] < 1
