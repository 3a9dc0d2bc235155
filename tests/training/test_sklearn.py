"""The estimators in scikit-learn's own checks and tools; fits of the linear path alone take a second."""

import copy
from typing import Any

import numpy as np
import pytest
from sklearn.base import clone
from sklearn.model_selection import GridSearchCV, cross_val_score
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import FunctionTransformer
from sklearn.utils.estimator_checks import estimator_checks_generator
from sklearn.utils.validation import check_is_fitted, validate_data

from kmha.errors import InputError
from tests.command_runs import news_rows, topic_rows
from tests.pair_rows import ranking_rows
from tests.tagged_sentences import tagged_sentences
from training.sklearn import KmhaClassifier, KmhaMatcher, KmhaTagger

TINY: dict[str, Any] = {
    "text__max_length": 16,
    "encoder__hidden_dim": 16,
    "encoder__num_layers": 1,
    "encoder__num_heads": 2,
    "encoder__intermediate_dim": 16,
    "train__epochs": 2,
    "train__buckets": 1,
}
TEXTS, LABELS = map(list, zip(*news_rows(60, seed=1), strict=True))
NEW_TEXTS, NEW_LABELS = map(list, zip(*news_rows(21, seed=2), strict=True))


def linear(**settings) -> KmhaClassifier:
    return KmhaClassifier(encoder__size="none", **settings)


@pytest.fixture(scope="module")
def fitted() -> KmhaClassifier:
    return linear().fit(TEXTS, LABELS)


class NumbersAsTexts(KmhaClassifier):
    """A classifier of rows of numbers, each of which is a word: scikit-learn checks estimators with numbers only."""

    _is_fitting = False

    def __sklearn_tags__(self):
        tags = super().__sklearn_tags__()
        tags.input_tags.one_d_array, tags.input_tags.two_d_array = False, True
        tags.input_tags.string = False
        return tags

    def fit(self, X, y):
        type(self)._is_fitting = True
        return super().fit(X, y)

    def predict_proba(self, X):
        check_is_fitted(self)
        type(self)._is_fitting = False
        return super().predict_proba(X)

    def _inputs(self, X):
        X = validate_data(self, X, reset=self._is_fitting)
        numbers = np.floor(2 * X).astype(int).tolist()
        return [
            " ".join(f"c{column}v{n}".replace("-", "m") for column, n in enumerate(row)) for row in numbers
        ]

    def _train(self, inputs, targets, **defaults):
        super()._train(inputs, targets, encoder__size="none", **defaults)


# Names of checks that skip themselves, with the reason in docs/how-to/python.md.
SKIPPED = {"check_array_api_input", "check_classifiers_multilabel_output_format_decision_function"}


@pytest.mark.second
@pytest.mark.filterwarnings("ignore:invalid value encountered in cast")
def test_the_checks_of_scikit_learn_pass():
    skipped = set()
    checks = list(estimator_checks_generator(NumbersAsTexts()))
    assert len(checks) > 50
    for estimator, check in checks:
        try:
            check(estimator)
        except pytest.skip.Exception:
            raise
        except Exception as error:
            if type(error).__name__ != "SkipTest":
                raise
            skipped.add(check.func.__name__)
    assert skipped == SKIPPED


def test_scikit_learn_runs_its_checks_on_no_estimator_of_texts():
    with pytest.warns(UserWarning, match="Can't test estimator KmhaClassifier"):
        assert len(list(estimator_checks_generator(KmhaClassifier()))) == 1


def test_labels_of_any_type_are_predicted(fitted):
    assert fitted.score(NEW_TEXTS, NEW_LABELS) > 0.8
    assert fitted.classes_.tolist() == ["food", "money", "sport"] == fitted.bundle_.labels
    numbers = linear().fit(np.array(TEXTS), np.unique(LABELS, return_inverse=True)[1] * 10)
    assert numbers.classes_.tolist() == [0, 10, 20]
    assert set(numbers.predict(NEW_TEXTS)) <= {0, 10, 20}
    np.testing.assert_array_equal(numbers.predict_proba(NEW_TEXTS), fitted.predict_proba(NEW_TEXTS))


def test_several_labels_are_columns_of_y():
    rows = topic_rows(60, seed=3)
    topics = ["food", "money", "none", "sport"]
    y = np.array([[topic in labels for topic in topics] for _, labels in rows]).astype(int)
    texts = [text for text, _ in rows]
    model = linear().fit(texts, y)
    assert model.predict(texts).shape == model.predict_proba(texts).shape == y.shape
    assert model.score(texts, y) > 0.8 and not model.predict(texts)[:, 2].any()


def test_parameters_are_settings_and_are_cloned():
    model = clone(linear(train__seed=3)).set_params(text__max_length=16)
    assert repr(model) == "KmhaClassifier(encoder__size='none', text__max_length=16, train__seed=3)"
    assert model.get_params()["train__seed"] == 3 and model.get_params()["train__epochs"] is None
    message = "got encoder__sise; did you mean encoder__size"
    with pytest.raises(InputError, match=message):
        model.set_params(encoder__sise="none")
    with pytest.raises(InputError, match=message):
        KmhaClassifier(encoder__sise="none")


def test_a_copy_of_a_fitted_estimator_predicts_the_same(fitted):
    again = copy.deepcopy(fitted)
    assert again.bundle_ is not fitted.bundle_
    np.testing.assert_array_equal(again.predict_proba(NEW_TEXTS), fitted.predict_proba(NEW_TEXTS))


def test_only_verbose_fits_show_progress(capsys):
    linear().fit(TEXTS, LABELS)
    assert capsys.readouterr().err == ""
    linear(verbose=True).fit(TEXTS, LABELS)
    assert "54 training, 6 validation" in capsys.readouterr().err


@pytest.mark.second
def test_a_grid_is_searched_in_a_pipeline():
    pipeline = make_pipeline(FunctionTransformer(np.char.upper), linear())
    grid = {"kmhaclassifier__text__lower_case": [True, False]}
    search = GridSearchCV(pipeline, grid, cv=2, error_score="raise").fit(np.array(TEXTS), LABELS)
    assert search.score(np.array(NEW_TEXTS), NEW_LABELS) > 0.8


@pytest.mark.second
def test_processes_of_joblib_train_and_return_fitted_estimators():
    assert min(cross_val_score(linear(), TEXTS, LABELS, cv=2, n_jobs=2, error_score="raise")) > 0.7


@pytest.mark.parametrize(
    ("inputs", "labels", "message"),
    [
        (
            ["a", 3],
            ["x", "y"],
            "expected X to be a sequence of texts, got an array of shape (2,) with values of",
        ),
        ([["a"], ["b"]], ["x", "y"], "of shape (2, 1)"),
        (["a", "b"], ["x", "x"], "expected y of two classes or more, got 1 class, x"),
        (["a", "b"], ["x", "x "], "expected labels that differ in more than whitespace, got 'x', 'x'"),
        (["a", "b"], ["x"], "inconsistent numbers of samples"),
        (
            ["a", "b", "c"],
            ["x", float("nan"), "y"],
            "y:2: expected a value for 'label', got nan, a missing value",
        ),
        (["a", "b", "c"], ["x", "y", None], "y:3: expected a value for 'label', got None, a missing value"),
        (["a", "b"], [0.5, 1.7], "Unknown label type: continuous"),
    ],
)
def test_unusable_rows_are_refused(inputs, labels, message):
    with pytest.raises(ValueError) as error:
        KmhaClassifier().fit(inputs, labels)
    assert message in str(error.value)


@pytest.mark.second
@pytest.mark.parametrize("names", [[0, 1], [False, True], ["no", "yes"]])
def test_pairs_are_matched_or_classified(names):
    rows = ranking_rows(16, 4, seed=4)
    pairs, y = [row[:2] for row in rows], [names[int(row[2])] for row in rows]
    model = KmhaMatcher(**TINY).fit(pairs, y)
    assert model.classes_.tolist() == names
    assert model.score(np.array(pairs), y) > 0.7
    probabilities = model.predict_proba(pairs)
    assert probabilities.shape == (64, 2)
    np.testing.assert_allclose(probabilities.sum(axis=1), 1, atol=1e-6)
    assert model.bundle_.model.target == ("classes" if names[0] == "no" else "binary")


def test_pairs_of_other_shapes_are_refused():
    with pytest.raises(InputError, match=r"expected X to be pairs of texts, got an array of shape \(2,\)"):
        KmhaMatcher().fit(["a", "b"], [0, 1])


@pytest.mark.second
def test_words_are_tagged():
    rows = tagged_sentences(45, seed=1)
    sentences, tags = [row[0] for row in rows], [row[1] for row in rows]
    model = KmhaTagger(**TINY).fit(sentences, tags)
    assert model.score(sentences, tags) > 0.8
    assert [len(each) for each in model.predict(sentences)] == [len(each) for each in sentences]
    assert model.predict_proba(sentences[:1])[0].shape == (len(sentences[0]), len(model.classes_))


@pytest.mark.filterwarnings(
    "ignore:OptunaSearchCV is experimental", "ignore:`optuna.terminator`:FutureWarning"
)
def test_a_search_of_optuna():
    integration = pytest.importorskip("optuna_integration")
    optuna = pytest.importorskip("optuna")
    space = {"train__seed": optuna.distributions.IntDistribution(0, 3)}
    search = integration.OptunaSearchCV(linear(), space, cv=2, n_trials=2, error_score="raise")
    assert search.fit(TEXTS, LABELS).best_score_ > 0.7
