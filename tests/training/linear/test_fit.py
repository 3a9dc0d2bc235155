"""The fit of the linear path: logits that are probabilities, rare labels, and sampled rows."""

import dataclasses
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import scipy.sparse

from training.config.defaults import FEW_TEXTS
from training.fewshot.linear_head import row_losses
from training.linear import fit as fit_module
from training.linear.fit import (
    LinearPath,
    Problem,
    ResidualLoss,
    Tokens,
    feature_scales,
    fit_linear_path,
    is_certainly_better,
    out_of_fold_logits,
    predict_splits,
    sample_rows,
)
from training.linear.ngrams import known_ngrams
from training.linear.weighing import fit_scale, weigh
from training.tasks.classify import ClassifyTask

V, LABELS = 60, 3


def _source(rows: int, seed: int, several: bool = False) -> Any:
    """Texts of eight tokens; a third of them are tokens of the label, and one tenth has another label."""
    random = np.random.default_rng(seed)
    labels = random.integers(0, LABELS, rows)
    tokens = random.integers(4, V, (rows, 8)).astype(np.int32)
    own = random.random((rows, 8)) < 0.33
    tokens[own] = (4 + 5 * np.repeat(labels[:, None], 8, 1) + random.integers(0, 5, (rows, 8)))[own]
    labels = np.where(random.random(rows) < 0.1, random.integers(0, LABELS, rows), labels)
    targets = (np.arange(LABELS) == labels[:, None]).astype(np.int32) if several else labels.astype(np.int32)
    return _of_tokens(tokens, targets)


def _of_tokens(tokens: np.ndarray, targets: np.ndarray) -> Any:
    """Rows of a source, from token ids int32 [R, L]."""
    rows, length = tokens.shape
    store = SimpleNamespace(gather=lambda chosen: (tokens[chosen].ravel(), np.full(len(chosen), length)))
    return SimpleNamespace(
        tokens=store,
        rows=np.arange(rows),
        lengths=np.full(rows, length),
        targets=targets,
        weights=np.ones(rows),
    )


def _tokens(number: int) -> list[str]:
    """Different tokens without common character n-grams."""
    return [chr(0x4E00 + token) for token in range(number)]


def _fitted(train: Any, validation: Any, labels: int, vocabulary_size: int, seed: int) -> LinearPath:
    path = fit_linear_path(train, validation, labels, _tokens(vocabulary_size), seed)
    assert path is not None
    return path


@pytest.mark.parametrize("several", [False, True])
def test_logits_have_a_low_cross_entropy_on_other_rows(several):
    train, validation, test = (_source(rows, seed, several) for seed, rows in enumerate((600, 200, 400)))
    path = _fitted(train, validation, LABELS, V, seed=0)
    logits = path.logits(test)
    hits = logits.argmax(axis=1) == (test.targets.argmax(axis=1) if several else test.targets)
    assert hits.mean() > 0.75
    loss = float(row_losses(logits, test.targets).mean())
    assert loss < (0.45 if several else 0.8)
    # The scale of the logits is right: no other is better by much.
    assert fit_scale(logits, test.targets)[1] > loss - 0.02


@pytest.mark.parametrize("several", [False, True])
def test_a_label_without_rows_is_never_predicted(several):
    train, validation = _source(200, 0, several), _source(50, 1, several)
    path = _fitted(train, validation, LABELS + 1, V, seed=0) if not several else None
    if several:
        for source in (train, validation):
            source.targets = np.concatenate([source.targets, np.zeros_like(source.targets[:, :1])], axis=1)
        path = _fitted(train, validation, LABELS + 1, V, seed=0)
    assert path is not None
    logits = path.logits(_source(50, 2, several))
    assert np.isfinite(logits).all()
    assert (logits[:, LABELS] < logits[:, :LABELS].max(axis=1)).all()


def test_one_label_and_two_labels():
    train, validation = _source(100, 0), _source(40, 1)
    for labels in (1, 2):
        for source in (train, validation):
            source.targets = np.minimum(source.targets, labels - 1)
        path = _fitted(train, validation, labels, V, seed=0)
        found = path.logits(validation).argmax(axis=1)
        assert (found == validation.targets).mean() > 0.7


def _features(texts: list[list[int]], width: int) -> Any:
    counts = np.array([np.bincount(text, minlength=width) for text in texts], float)
    return scipy.sparse.csr_matrix(counts / np.sqrt(np.maximum((counts**2).sum(axis=1, keepdims=True), 1)))


def test_informative_ngrams_have_larger_scales():
    # 0 is in texts of the label only, 1 in twice as many of them, 2 in all texts alike.
    texts = [[0, 1, 2]] * 4 + [[1, 2]] * 4 + [[2]] * 4 + [[1, 2]] * 4 + [[2]] * 8
    memberships = (np.arange(len(texts)) < 12).astype(int)[:, None]
    features = _features(texts, 3)
    scales = feature_scales(features, memberships, np.ones(len(texts)))[:, 0]
    assert scales[0] > scales[1] > scales[2] > 0
    # The mean squared length of a text remains.
    scaled = features @ scipy.sparse.diags(scales)
    assert scaled.power(2).sum() == pytest.approx(features.power(2).sum())


def test_a_row_of_weight_two_has_the_scales_of_two_rows():
    texts = [[0, 1], [1, 2], [0, 2], [0, 1]]
    memberships = np.array([[1, 0], [0, 1], [1, 0], [1, 0]])
    twice = feature_scales(_features(texts, 3), memberships, np.ones(4))
    once = feature_scales(_features(texts[:3], 3), memberships[:3], np.array([2.0, 1.0, 1.0]))
    # Up to the common factor, which keeps the length of a text.
    np.testing.assert_allclose(once / once[0], twice / twice[0], rtol=1e-6)


def test_scales_improve_predictions_among_rare_ngrams(monkeypatch):
    train, validation, test = (_rare_ngrams(rows, seed) for seed, rows in enumerate((400, 200, 1000)))
    losses = []
    for _ in range(2):
        path = _fitted(train, validation, LABELS, 2000, seed=0)
        losses.append(float(row_losses(path.logits(test), test.targets).mean()))
        monkeypatch.setattr(
            fit_module,
            "feature_scales",
            lambda features, known, _: np.ones((features.shape[1], known.shape[1])),
        )
    assert losses[0] < 0.95 * losses[1]


def _rare_ngrams(rows: int, seed: int) -> Any:
    """`_source` with 30 more tokens in each text that are rare and the same for all labels."""
    source, random = _source(rows, seed), np.random.default_rng(seed + 10)
    noise = (V + 1900 * random.random((rows, 30)) ** 2).astype(np.int32)
    own, _ = source.tokens.gather(np.arange(rows))
    return _of_tokens(np.concatenate([own.reshape(rows, 8), noise], axis=1), source.targets)


def test_the_words_of_many_labels_are_known_although_most_ngrams_are_more_frequent(monkeypatch):
    # Each label has one token of its own, among 40 that are in texts of all labels.
    labels, random = 40, np.random.default_rng(0)

    def texts(of_each: int) -> Any:
        targets = np.repeat(np.arange(labels), of_each)
        tokens = random.integers(labels, 5 * labels, (len(targets), 41)).astype(np.int32)
        tokens[:, 20] = targets
        return _of_tokens(tokens, targets)

    train, validation, unseen = texts(4), texts(3), texts(3)
    monkeypatch.setattr(fit_module, "most_ngrams", lambda *_: labels)
    path = _fitted(train, validation, labels, 5 * labels, seed=0)
    assert (path.logits(unseen).argmax(axis=1) == unseen.targets).mean() > 0.9


@pytest.mark.parametrize(("seed", "penalty"), [(0, 0.3), (3, 0.1)])
def test_the_smallest_penalty_is_chosen_only_if_its_gain_is_certain(seed, penalty):
    # The validation loss is lowest with 0.1 in both; only with seed 3 by more than two standard errors.
    assert _fitted(_source(400, seed), _source(120, seed + 50), LABELS, V, seed=0).penalty == penalty


def test_a_lower_loss_is_not_better_if_fewer_rows_are_right():
    # Two labels, 40 rows: 30 are right and 10 wrong, with much confidence.
    targets = np.arange(40) % 2
    before = 6.0 * (np.arange(2) == np.where(np.arange(40) < 30, targets, 1 - targets)[:, None])
    cautious = before / 4
    assert is_certainly_better(cautious, before, targets)
    fewer = cautious.copy()
    fewer[0] = 0.1 * np.eye(2)[1 - targets[0]]
    assert not is_certainly_better(fewer, before, targets)
    # With several labels, the loss decides.
    several = np.eye(2)[targets]
    assert is_certainly_better(fewer - 1, before - 1, several)


def test_many_rows_and_long_rows_are_sampled(monkeypatch):
    source = _source(100, 0)
    assert len(sample_rows(source, 0)) == 100
    monkeypatch.setattr(fit_module, "MAX_ROWS", 50)
    assert len(sample_rows(source, 0)) == 50
    monkeypatch.setattr(fit_module, "MAX_TOKENS", 80)
    assert len(sample_rows(source, 0)) == 10
    np.testing.assert_array_equal(sample_rows(source, 0), sample_rows(source, 0))


@pytest.mark.parametrize("most", [1000, 60])
def test_out_of_fold_logits_are_less_confident_than_those_of_the_fitted_rows(monkeypatch, most):
    monkeypatch.setattr(fit_module, "MAX_ROWS", most)
    train, validation = _source(200, 0), _source(100, 1)
    path = _fitted(train, validation, LABELS, V, seed=0)
    logits = out_of_fold_logits(path, train, seed=0)
    assert logits.shape == (200, LABELS)
    loss, fitted = (row_losses(each, train.targets).mean() for each in (logits, path.logits(train)))
    assert fitted < loss < np.log(LABELS)


def test_rows_of_a_group_are_in_one_fold():
    source, validation = _source(200, 0), _source(100, 1)
    path = _fitted(source, validation, LABELS, V, seed=0)
    # The same 100 texts twice: in another fold, a row's copy has its label.
    tokens, targets = source.tokens.gather(np.arange(100))[0], source.targets[:100]
    twice = np.tile(tokens.reshape(100, 8), (2, 1))
    source.tokens = SimpleNamespace(gather=lambda rows: (twice[rows].ravel(), np.full(len(rows), 8)))
    source.targets = np.tile(targets, 2)
    groups = np.arange(200) % 100
    losses = [
        float(row_losses(out_of_fold_logits(path, source, 0, each), source.targets).mean())
        for each in (None, groups)
    ]
    assert losses[1] > 1.1 * losses[0]


def test_residual_loss_is_that_of_both_logits():
    targets, random = _source(4, 0).targets, np.random.default_rng(0)
    linear, encoder = (random.normal(size=(4, LABELS)).astype(np.float32) for _ in range(2))
    loss = ResidualLoss(ClassifyTask(), targets, linear)
    np.testing.assert_allclose(
        np.asarray(loss(loss.targets, encoder)), row_losses(linear + encoder, targets), rtol=1e-5
    )


def test_few_validation_rows_choose_no_ngrams_and_no_encoder():
    random = np.random.default_rng(0)
    for seed in range(5):
        path = _fitted(_source(60, seed), _source(6, 10 + seed), LABELS, V, seed=0)
        assert set(path.ngrams.keys[:, 0]) == {1, 2} and path.penalty == 1.0
        targets = random.integers(0, LABELS, 6)
        # With a gain on each of the rows, which may be luck.
        assert weigh(random.normal(size=(6, LABELS)), 5.0 * np.eye(LABELS)[targets], targets)[1] == 0.0


def test_few_texts_have_ngrams_of_one_text():
    def known_and_all(rows: int) -> tuple[int, int]:
        source = _source(rows, 0)
        texts = source.tokens.gather(source.rows)[0].reshape(rows, -1)
        pairs = np.unique(V * texts[:, :-1] + texts[:, 1:])
        path = _fitted(source, _source(50, 1), LABELS, V, seed=0)
        return len(path.ngrams.keys), len(np.unique(texts)) + len(pairs)

    known, total = known_and_all(40)
    # Two n-grams of one group may have the same slot.
    assert known > 0.99 * total
    known, total = known_and_all(FEW_TEXTS)
    assert known < 0.9 * total


@pytest.mark.parametrize("several", [False, True])
def test_a_path_added_to_a_pretrained_encoder_counts_only_where_it_helps(several):
    train, validation = _source(200, 0, several), _source(100, 1, several)
    path = dataclasses.replace(_fitted(train, validation, LABELS, V, seed=0), is_base=False)
    random, targets = np.random.default_rng(5), validation.targets
    right = targets if several else np.eye(LABELS)[targets]
    certain = 9.0 * right - 4.5 + random.normal(size=right.shape)
    noise = random.normal(size=right.shape)
    assert path.weigh(noise, certain, targets)[0] == 0.0
    factor, of_encoder = path.weigh(path.logits(validation), noise, targets)
    # With several labels the ratio has a limit.
    assert factor > 0.5 and of_encoder <= (0.5 if several else 0.1) * factor


@pytest.mark.parametrize("several", [False, True])
def test_without_validation_rows_the_training_rows_are_cross_validated(several):
    train, test = _source(300, 0, several), _source(400, 1, several)
    folds = np.arange(300) % 3
    path = _fitted(train, folds, LABELS, V, seed=0)
    loss, own, held_out = (
        float(row_losses(logits, source.targets).mean())
        for logits, source in (
            (path.logits(test), test),
            (path.logits(train), train),
            (path.validation_logits, train),
        )
    )
    # The scale is that of rows which the path was not fitted on.
    assert own < 0.8 * loss and loss == pytest.approx(held_out, rel=0.15)
    assert fit_scale(path.logits(test), test.targets)[1] > loss - 0.03


@pytest.mark.parametrize("several", [False, True])
def test_the_rows_of_a_fold_decide_nothing_about_their_own_margins(several):
    source, folds = _source(300, 0, several), np.arange(300) % 3
    path = _fitted(source, folds, LABELS, V, seed=0)

    def margins() -> np.ndarray:
        return predict_splits(path.problem(Tokens.of(source)).splits(folds), path.penalty, seed=0)[0]

    before = margins()
    source.targets = np.where((folds == 1)[:, None] if several else folds == 1, 0, source.targets)
    after = margins()
    np.testing.assert_array_equal(after[folds == 1], before[folds == 1])
    assert not np.allclose(after[folds == 0], before[folds == 0], atol=1e-3)


def test_the_rows_of_a_fold_do_not_choose_the_ngrams_that_predict_them(monkeypatch):
    monkeypatch.setattr(fit_module, "most_ngrams", lambda *_: 200)
    random = np.random.default_rng(0)
    tokens = random.integers(4, 2_000, (600, 30)).astype(np.int32)
    # Random labels, which no token predicts.
    source = _of_tokens(tokens, random.integers(0, 2, 600).astype(np.int32))
    path = _fitted(source, np.arange(600) % 3, 2, 2_000, seed=0)
    assert len(path.ngrams.keys) == 200
    assert (path.validation_logits.argmax(axis=1) == source.targets).mean() < 0.58


def test_logits_of_validation_rows_are_saved():
    train, validation = _source(200, 0), _source(50, 1)
    path = _fitted(train, validation, LABELS, V, seed=0)
    np.testing.assert_allclose(path.validation_logits, path.logits(validation), atol=1e-5)


def test_too_many_labels_and_texts_without_common_ngrams_have_no_path(caplog):
    caplog.set_level("INFO", "kmha")
    train, validation = _source(200, 0), _source(50, 1)
    assert fit_linear_path(train, validation, fit_module.MAX_LABELS + 1, _tokens(V), seed=0) is None
    assert "no linear path: 1,001 labels are more than 1,000" in caplog.text
    train = _source(FEW_TEXTS, 0)
    train.tokens = SimpleNamespace(gather=lambda rows: (np.arange(8 * len(rows)), np.full(len(rows), 8)))
    assert fit_linear_path(train, validation, LABELS, _tokens(8 * FEW_TEXTS), seed=0) is None


@pytest.mark.parametrize("several", [False, True])
def test_the_path_refitted_with_validation_rows_is_as_good_and_as_certain(several):
    train, validation, test = (_source(rows, seed, several) for seed, rows in enumerate((150, 450, 400)))
    path = _fitted(train, validation, LABELS, V, seed=0)
    refitted = path.refit((train, validation), seed=0)
    loss, refitted_loss = (
        float(row_losses(each.logits(test), test.targets).mean()) for each in (path, refitted)
    )
    assert refitted_loss < loss - 0.01
    # Of the training rows alone, the refitted path is the path.
    np.testing.assert_allclose(path.refit((train,), seed=0).kernel, path.kernel, atol=1e-9)


def test_a_path_refitted_on_few_texts_knows_the_ngrams_of_all():
    added = _source(100, 1)
    for rows in (100, FEW_TEXTS):
        train = _source(rows, 0)
        path = _fitted(train, added, LABELS, V, seed=0)
        refitted = path.refit((train, added), seed=0)
        new = set(map(tuple, refitted.ngrams.keys)) - set(map(tuple, path.ngrams.keys))
        assert len(new) > 300 if rows < FEW_TEXTS else refitted.ngrams is path.ngrams
        assert refitted.kernel.shape == (len(refitted.ngrams.keys), LABELS)


def test_the_encoder_counts_less_for_rare_labels():
    source = _source(400, 0, several=True)
    source.targets[20:, 2] = 0
    path = _fitted(source, _source(100, 1, several=True), LABELS, V, seed=0)
    assert path.label_rows is not None and path.label_rows[2] < 20
    random = np.random.default_rng(0)
    logits = [
        3.0 * source.targets - 2.0 + random.normal(size=source.targets.shape).astype(np.float32)
        for _ in range(2)
    ]
    factor, factors = path.weigh(logits[0], logits[1], source.targets)
    assert factor > 0 and factors.shape == (LABELS,) and factors[2] < 0.4 * factors[0]
    one_label = _fitted(_source(200, 0), _source(50, 1), LABELS, V, seed=0)
    assert one_label.label_rows is None


def test_words_of_the_same_stem_share_weights():
    # Each second token of a label is frequent; the others occur twice, and half of their rows have other labels.
    random = np.random.default_rng(0)
    stems = ["garden", "window", "market"]
    tokens = [*(f"[unused{number}]" for number in range(4)), *stems, *(f"{stem}s" for stem in stems)]
    labels = np.arange(300) % LABELS
    frequent = np.stack([4 + labels, *np.zeros((3, 300), int)], axis=1)
    frequent[:, 1:] = random.integers(1, 4, (300, 3))
    rare = np.array([[7 + label, 1, 2, 3] for label in range(LABELS) for _ in range(2)])
    ids = np.concatenate([frequent, rare]).astype(np.int32)
    targets = np.concatenate([labels, np.repeat((np.arange(LABELS) + 1) % LABELS, 2)]).astype(np.int32)
    targets[300::2] = np.arange(LABELS)
    validation = _of_tokens(ids[:150], targets[:150])
    test = _of_tokens(
        np.array([[7 + label, 1, 2, 3] for label in range(LABELS)], np.int32), np.arange(LABELS)
    )

    def gain(names: list[str]) -> float:
        path = fit_linear_path(_of_tokens(ids, targets), validation, LABELS, names, 0)
        assert path is not None
        logits = path.logits(test)
        return float(np.mean(np.diag(logits) - logits.mean(axis=1)))

    assert gain(tokens) > gain(_tokens(len(tokens))) + 0.1


@pytest.mark.parametrize("labels", [2, LABELS])
def test_weights_of_subwords_are_part_of_the_weights_of_tokens(labels):
    source = _source(200, 0)
    rows = Tokens.of(source)
    rows = dataclasses.replace(rows, targets=rows.targets % labels)
    names = [f"word{number % 10}{number}" for number in range(V)]
    ngrams = known_ngrams(rows.flat, rows.lengths, (1, 2), V, 1000)
    problem = Problem.of(ngrams.with_subwords(names), rows, labels)
    joined = problem.fitted_features
    assert joined.shape[1] > problem.features.shape[1]
    kernel, bias = problem.fit(1.0, 0)
    # A machine on all features has the same margins.
    whole = dataclasses.replace(problem, features=joined, subwords=None)
    expected = np.zeros((len(rows.lengths), labels))
    for label, weights, intercept in whole.machines(1.0, 0):
        expected[:, label] = joined @ weights + intercept
    np.testing.assert_allclose(problem.features @ kernel + bias, expected, atol=1e-9)


def test_scaled_features_keep_their_columns():
    # Scales are multiplied in the order of the stored values, which must be that of the columns.
    rows = Tokens.of(_source(100, 0))
    ngrams = known_ngrams(rows.flat, rows.lengths, (1, 2), V, 1000).with_subwords(
        [f"word{n}" for n in range(V)]
    )
    first, second = Problem.of(ngrams, rows, LABELS), Problem.of(ngrams, rows, LABELS)
    second.fitted_features.sum_duplicates()
    np.testing.assert_array_equal(first.fit(1.0, 0)[0], second.fit(1.0, 0)[0])


def test_words_that_no_few_texts_have_get_weights_of_their_stem():
    stems = ["garden", "window", "market"]
    tokens = [*(f"[unused{number}]" for number in range(4)), *stems, *(f"{stem}s" for stem in stems)]

    def accuracy(rows: int) -> float:
        random = np.random.default_rng(0)
        labels = (np.arange(rows) % LABELS).astype(np.int32)
        ids = np.concatenate([4 + labels[:, None], random.integers(1, 4, (rows, 3))], axis=1).astype(np.int32)
        train, validation = (_of_tokens(ids[part], labels[part]) for part in (slice(30, None), slice(30)))
        path = fit_linear_path(train, validation, LABELS, tokens, 0)
        assert path is not None
        new = _of_tokens(np.array([[7 + label, 1, 2, 3] for label in range(LABELS)], np.int32), np.arange(3))
        each = [path, path.refit((train, validation), 0)]
        return min(float((path.logits(new).argmax(axis=1) == new.targets).mean()) for path in each)

    assert accuracy(300) == 1
    # Of many texts, only tokens that two of them have are known.
    assert accuracy(FEW_TEXTS + 100) < 1
