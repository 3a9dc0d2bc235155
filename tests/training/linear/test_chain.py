"""The fit of the linear path of a tagger: probabilities of tag sequences, known features, and the sum of both paths."""

import functools
import itertools
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from kmha.layers.linear_words import LinearWords
from tests.bundles import make_tagger_bundle
from training.data.sentence_batches import SentenceSource, tokenize_sentences
from training.io.examples import Example, write_examples
from training.linear import chain as chain_module
from training.linear.chain import Chains, Crf, fit_linear_chain, word_codes
from training.linear.ngrams import PRIMES

TAGS = 3
BUNDLE: dict[str, Any] = {"labels": ("A", "B", "C"), "scheme": "none", "characters": True}


@functools.cache
def preprocessor() -> Any:
    return make_tagger_bundle(**BUNDLE).preprocessor


def source_of(folder, seed=0, sentences=40, tags=TAGS) -> SentenceSource:
    """Sentences of one to thirty words, some in several windows; the tag is that of the word before, plus its own."""
    random = np.random.default_rng(seed)
    folder.mkdir(exist_ok=True)
    rows = [random.integers(0, 9, random.integers(1, 31)).tolist() for _ in range(sentences)]
    examples = write_examples(
        (Example(("\n".join(f"bread{n}" for n in row),), tuple("x" * len(row)), "a:1") for row in rows),
        folder / "examples",
    )
    tokens, _ = tokenize_sentences(examples, preprocessor(), folder / "tokens")
    targets = [(n + before) % tags for row in rows for before, n in zip([0, *row], row, strict=False)]
    chosen = np.arange(len(rows))
    return SentenceSource(tokens, chosen, np.array(targets, np.int32), np.ones(len(rows), np.float32), 0)


def test_probabilities_are_those_of_all_tag_sequences():
    random = np.random.default_rng(0)
    lengths, emissions = np.array([2, 4, 1]), random.normal(size=(7, TAGS))
    crf = Crf(random.normal(size=(TAGS, TAGS)), random.normal(size=TAGS), random.normal(size=TAGS))
    logs, marginals, pairs, begin = 0.0, np.zeros((7, TAGS)), np.zeros((TAGS, TAGS)), 0
    tags, of_tags = np.array([0, 2, 1, 1, 0, 2, 1]), 0.0
    for length in lengths:
        scores = {}
        for path in itertools.product(range(TAGS), repeat=int(length)):
            total = crf.start[path[0]] + crf.end[path[-1]]
            total += sum(emissions[begin + place, tag] for place, tag in enumerate(path))
            scores[path] = total + sum(crf.transitions[pair] for pair in itertools.pairwise(path))
        whole = np.log(sum(map(np.exp, scores.values())))
        logs += whole
        of_tags += scores[tuple(tags[begin : begin + length].tolist())]
        for path, score in scores.items():
            for place, tag in enumerate(path):
                marginals[begin + place, tag] += np.exp(score - whole)
            for pair in itertools.pairwise(path):
                pairs[pair] += np.exp(score - whole)
        begin += length
    chains = Chains(lengths)
    found = chains.expected(emissions, crf)
    assert found[0] == pytest.approx(logs)
    np.testing.assert_allclose(found[1], marginals, atol=1e-12)
    np.testing.assert_allclose(found[2], pairs, atol=1e-12)
    smoothing = 2 / 9 * (emissions[np.arange(7), tags] - emissions.mean(axis=1)).sum()
    assert chains.loss(emissions, crf, tags) == pytest.approx((logs - of_tags + smoothing) / 7)


@pytest.mark.parametrize("with_transitions", [True, False])
def test_the_layer_has_the_scores_of_the_fit(tmp_path, with_transitions):
    train, validation = source_of(tmp_path / "a"), source_of(tmp_path / "b", 1)
    path = fit_linear_chain(train, validation, TAGS, with_transitions, 0)
    assert path is not None and with_transitions == bool(path.crf.transitions.any())
    # Words are tagged in windows, so the features of a word are those in its window.
    layer = LinearWords(TAGS, len(path.keys), path.slots)
    layer.build((None, None))
    layer.assign(path.keys, path.kernel, path.bias)
    found = np.zeros_like(path.scores)
    for plan in validation.plans([24], 200, 8, rng=None):
        features = validation.batch(plan)["features"]
        scores = np.asarray(
            layer(*(features[name] for name in ("token_ids", "word_starts", "character_ids")))
        )
        for window, row in zip(plan.rows, scores, strict=False):
            begin, count = validation.begins[window], validation.counts[window]
            found[begin : begin + count] = row[:count]
    np.testing.assert_allclose(found, path.scores, atol=1e-4)
    # That of single words, as in the epochs of the encoder, not that of whole sentences.
    probabilities = Chains(validation.word_counts).expected(path.scores, path.crf)[1]
    loss = -np.log(probabilities[np.arange(len(path.scores)), validation.targets]).mean()
    assert loss < 0.3 and f"validation loss {loss:.3f}" in path.description


def test_the_sum_of_both_paths_is_better_than_each(tmp_path):
    train, validation = source_of(tmp_path / "a"), source_of(tmp_path / "b", 1)
    path = fit_linear_chain(train, validation, TAGS, True, 0)
    assert path is not None
    bundle = make_tagger_bundle(**BUNDLE)
    model, random = bundle.model, np.random.default_rng(0)
    # An encoder that knows half of the words.
    encoder = 4.0 * np.eye(TAGS)[validation.targets] * (random.random((len(validation.targets), 1)) < 0.5)
    own = Crf(*(np.asarray(each) for each in (model.crf.transitions, model.crf.start, model.crf.end)))
    before = np.asarray(model.head.kernel)
    layer = LinearWords(TAGS, len(path.keys), path.slots)
    layer.build((None, None))
    model = SimpleNamespace(head=model.head, crf=model.crf, linear=layer)
    (linear, factor), scores = path.join(model, encoder, validation)
    np.testing.assert_allclose(scores, linear * path.scores + factor * encoder, rtol=1e-5)
    assert linear > 0 and factor > 0
    np.testing.assert_allclose(np.asarray(model.head.kernel), before * factor, rtol=1e-5)
    np.testing.assert_allclose(np.asarray(model.linear.bias), path.bias * linear, rtol=1e-5)
    joined = Crf(*(np.asarray(each) for each in (model.crf.transitions, model.crf.start, model.crf.end)))
    chains, tags = Chains(validation.word_counts), validation.targets
    both = chains.loss(linear * path.scores + factor * encoder, joined, tags)
    assert both < min(chains.loss(path.scores, path.crf, tags), chains.loss(encoder, own, tags))
    path.replace(model)
    assert not np.asarray(model.head.kernel).any() and not np.asarray(model.head.bias).any()
    np.testing.assert_array_equal(np.asarray(model.crf.transitions), path.crf.transitions)
    np.testing.assert_allclose(np.asarray(model.linear.bias), path.bias, rtol=1e-6)


def test_one_tag_few_rows_and_words_that_no_other_row_has(tmp_path):
    validation = source_of(tmp_path / "b", 1, 2)
    path = fit_linear_chain(source_of(tmp_path / "a", 0, 2), validation, TAGS, True, 0)
    assert path is not None and np.isfinite(path.scores).all() and path.slots == PRIMES[0]
    validation.targets[:] = 0
    single = source_of(tmp_path / "c", 0, 2, tags=1)
    path = fit_linear_chain(single, validation, 1, True, 0)
    assert path is not None and np.isfinite(path.scores).all()
    assert np.isfinite(path.weigh(np.zeros_like(path.scores), path.crf, validation)).all()


def test_no_feature_occurs_twice(tmp_path, monkeypatch):
    monkeypatch.setattr(chain_module, "MIN_TEXTS", 10_000)
    source = source_of(tmp_path / "a", 0, 2)
    assert fit_linear_chain(source, source, TAGS, True, 0) is None


def test_limits_of_weights_and_words(tmp_path, monkeypatch):
    train, validation = source_of(tmp_path / "a"), source_of(tmp_path / "b", 1)
    monkeypatch.setattr(chain_module, "MAX_WEIGHTS", 60)
    monkeypatch.setattr(chain_module, "MAX_WORDS", 100)
    sampled = chain_module._sampled(train, TAGS, 0)
    assert 60 < sampled.word_counts.sum() <= 100
    rows = np.repeat(np.isin(train.rows, sampled.rows), train.word_counts)
    np.testing.assert_array_equal(word_codes(sampled), word_codes(train)[rows])
    np.testing.assert_array_equal(sampled.targets, train.targets[rows])
    path = fit_linear_chain(train, validation, TAGS, True, 0)
    assert path is not None and path.kernel.shape == (20, TAGS)
    # Hash and fingerprint of a key are those of a feature.
    codes = word_codes(train)
    known = {(code // 8209 % path.slots, code % 8209) for code in np.unique(codes[codes >= 0]).tolist()}
    assert {tuple(key) for key in path.keys.tolist()} <= known
