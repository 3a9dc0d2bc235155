"""scikit-learn estimators: a classifier and a matcher of texts, and a tagger of words.

They train as `training.train` does; see docs/how-to/hyperparameter-search.md. TensorFlow is imported by `fit`.
"""

import dataclasses
import inspect
import logging
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any, ClassVar, Self

import numpy as np
from sklearn.base import BaseEstimator, ClassifierMixin
from sklearn.utils.multiclass import check_classification_targets, type_of_target
from sklearn.utils.validation import check_consistent_length, check_is_fitted, column_or_1d

from kmha.bundle.manifest import CLASSIFY, MATCH, TAG
from kmha.errors import InputError, did_you_mean, format_names
from training.config.config import FitConfig, flatten
from training.io.tables import refuse_missing_values
from training.job.train import train

_logger = logging.getLogger("kmha")
# Keywords of `train`, the parameters of all estimators.
_SETTINGS = [name.replace(".", "__") for name in flatten(dataclasses.asdict(FitConfig())) if name != "task"]


class _Estimator(BaseEstimator):
    """Parameters, training and copies of all estimators.

    Args:
        verbose: Whether `fit` shows progress.
        **settings: Settings as keywords of `training.train`, such as `encoder__size="tiny"`. Without `baseline` and
            `report`, neither is made.

    Attributes:
        bundle_: The trained `kmha.Bundle`.
        metrics_: The values of metrics.json; scores are those of the validation rows, which are held out of X.
    """

    _task: ClassVar[str]

    def __init__(self, verbose: bool = False, **settings: Any):
        self.set_params(verbose=verbose, **(dict.fromkeys(_SETTINGS) | settings))

    # scikit-learn reads the names of the parameters here.
    __init__.__signature__ = inspect.Signature(  # pyright: ignore
        [
            inspect.Parameter("self", inspect.Parameter.POSITIONAL_OR_KEYWORD),
            inspect.Parameter("verbose", inspect.Parameter.POSITIONAL_OR_KEYWORD, default=False),
            *(inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=None) for name in _SETTINGS),
        ]
    )

    def set_params(self, **params: Any) -> Self:
        """Sets parameters; raises InputError for an unknown name."""
        for name, value in params.items():
            if name not in ("verbose", *_SETTINGS):
                hint = did_you_mean(name, _SETTINGS)
                raise InputError(f"expected parameters of {type(self).__name__}, got {name}{hint}")
            setattr(self, name, value)
        return self

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.target_tags.required = True
        tags.input_tags.string = True
        return tags

    def _train(self, inputs: Sequence[Any], targets: Sequence[Any], **defaults: Any) -> None:
        given = {name: value for name in _SETTINGS if (value := getattr(self, name)) is not None}
        settings = {"baseline": False, "report": False, **defaults, **given}
        level = _logger.level
        if not self.verbose:
            _logger.setLevel(logging.WARNING)
        try:
            result = train((inputs, targets), task=self._task, **settings)
        finally:
            _logger.setLevel(level)
        self.bundle_, self.metrics_ = result.bundle, result.metrics

    def __getstate__(self) -> dict[str, Any]:
        """Copies of a fitted estimator contain the files of its bundle."""
        state = dict(super().__getstate__())
        if "bundle_" in state:
            with tempfile.TemporaryDirectory() as folder:
                state["bundle_"].save(folder)
                state["bundle_"] = {path.name: path.read_bytes() for path in Path(folder).iterdir()}
        return state

    def __setstate__(self, state: dict[str, Any]) -> None:
        """Loads the bundle of a copy, whose files are checked as those of a run folder."""
        if "bundle_" in state:
            from kmha.bundle.bundle import Bundle

            with tempfile.TemporaryDirectory() as folder:
                for name, content in state["bundle_"].items():
                    (Path(folder) / name).write_bytes(content)
                state = {**state, "bundle_": Bundle.load(folder)}
        super().__setstate__(state)


class KmhaClassifier(ClassifierMixin, _Estimator):
    """Classifies texts.

    Args:
        verbose: Whether `fit` shows progress.
        **settings: Settings as keywords of `training.train`.

    Attributes:
        classes_: The labels, sorted; for several labels a text the column numbers of y.
        bundle_: The trained `kmha.Bundle`.
        metrics_: The values of metrics.json.
    """

    _task = CLASSIFY

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.input_tags.one_d_array, tags.input_tags.two_d_array = True, False
        tags.classifier_tags.multi_label = True
        return tags

    def fit(self, X: Any, y: Any) -> Self:
        """Trains on texts X [R] and labels y [R], or 0 and 1 for each of several labels [R, C]; raises InputError."""
        inputs = self._inputs(X)
        if y is None:
            raise InputError(f"{type(self).__name__} requires y to be passed, but the target y is None")
        check_consistent_length(inputs, y)
        _refuse_missing_labels(y)
        check_classification_targets(y)
        if type_of_target(y) == "multilabel-indicator":
            self.classes_ = np.arange(np.shape(y)[1])
            names = [[str(column) for column in np.flatnonzero(row)] for row in np.asarray(y)]
            self._train(inputs, names)
            return self
        self.classes_, ids = np.unique(column_or_1d(y, warn=True), return_inverse=True)
        if len(self.classes_) < 2:
            raise InputError(f"expected y of two classes or more, got 1 class, {self.classes_[0]}")
        names, defaults = self._label_names()
        if len(set(names)) < len(names):
            raise InputError(
                f"expected labels that differ in more than whitespace, got {format_names(map(repr, names))}"
            )
        self._train(inputs, [names[index] for index in ids], **defaults)
        return self

    def predict_proba(self, X: Any) -> np.ndarray:
        """Probabilities of `classes_`, float32 [R, C]."""
        check_is_fitted(self)
        found = self.bundle_.probabilities(self._inputs(X))
        names, _ = self._label_names()
        probabilities = np.zeros((len(found), len(names)), np.float32)
        probabilities[:, [names.index(label) for label in self.bundle_.labels]] = found
        return probabilities

    def predict(self, X: Any) -> np.ndarray:
        """Labels [R]; of several labels a text 0 and 1 for each, int64 [R, C]."""
        probabilities = self.predict_proba(X)
        if not self.bundle_.multi_label:
            return self.classes_[probabilities.argmax(axis=1)]
        thresholds = dict(zip(self.bundle_.labels, self.bundle_.thresholds, strict=True))
        # Above 1 for labels without a training row.
        least = [thresholds.get(str(name), 2.0) for name in self.classes_]
        return (probabilities >= np.asarray(least, np.float32)).astype(np.int64)

    def _inputs(self, X: Any) -> list[Any]:
        texts = np.asarray(X, dtype=object)
        if texts.ndim != 1 or not all(isinstance(text, str) for text in texts):
            raise InputError(f"expected X to be a sequence of texts, got {_shown(texts)}")
        return texts.tolist()

    def _label_names(self) -> tuple[list[str], dict[str, Any]]:
        """The labels of the model, in the order of `classes_`, and settings that depend on them."""
        return [str(label).strip() for label in self.classes_], {}


class KmhaMatcher(KmhaClassifier):
    """Predicts whether two texts match, or the class of a pair.

    Args:
        verbose: Whether `fit` shows progress.
        **settings: Settings as keywords of `training.train`.

    Attributes:
        classes_: The labels, sorted. Labels 0 and 1 are no match and match, others are classes.
        bundle_: The trained `kmha.Bundle`.
        metrics_: The values of metrics.json.
    """

    _task = MATCH

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.input_tags.one_d_array, tags.input_tags.two_d_array = False, True
        tags.classifier_tags.multi_label = False
        return tags

    def predict_proba(self, X: Any) -> np.ndarray:
        """Probabilities of `classes_` for pairs of texts X [R, 2], float32 [R, C]."""
        if not self._is_binary():
            return super().predict_proba(X)
        scores = self.bundle_.probabilities(self._inputs(X))
        return np.concatenate([1 - scores, scores], axis=1)

    def predict(self, X: Any) -> np.ndarray:
        """Labels [R] of pairs of texts; a match from the threshold of the bundle on."""
        if not self._is_binary():
            return super().predict(X)
        scores = self.predict_proba(X)[:, 1]
        return self.classes_[(scores >= np.float32(self.bundle_.thresholds[0])).astype(int)]

    def _inputs(self, X: Any) -> list[Any]:
        pairs = np.asarray(X, dtype=object)
        if pairs.ndim != 2 or pairs.shape[1] != 2 or not all(isinstance(text, str) for text in pairs.flat):
            raise InputError(f"expected X to be pairs of texts, got {_shown(pairs)}")
        return [tuple(pair) for pair in pairs.tolist()]

    def _is_binary(self) -> bool:
        check_is_fitted(self)
        return self.classes_.tolist() in ([0, 1], ["0", "1"])

    def _label_names(self) -> tuple[list[str], dict[str, Any]]:
        if self._is_binary():
            return ["0", "1"], {"match__target": "binary"}
        return super()._label_names()[0], {"match__target": "classes"}


class KmhaTagger(_Estimator):
    """Tags the words of sentences.

    Args:
        verbose: Whether `fit` shows progress.
        **settings: Settings as keywords of `training.train`.

    Attributes:
        classes_: The tags of the model, sorted.
        bundle_: The trained `kmha.Bundle`.
        metrics_: The values of metrics.json.
    """

    _task = TAG

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.input_tags.one_d_array, tags.input_tags.two_d_array = True, False
        return tags

    def fit(self, X: Sequence[Sequence[str]], y: Sequence[Sequence[str]]) -> Self:
        """Trains on sentences, lists of words, and a list of tags for each; raises InputError."""
        self._train(_lists(X), _lists(y))
        self.classes_ = np.array(self.bundle_.labels)
        return self

    def predict(self, X: Sequence[Sequence[str]]) -> list[list[str]]:
        """The tags of each sentence."""
        check_is_fitted(self)
        return [prediction["tags"] for prediction in self.bundle_.predict(_lists(X))]

    def predict_proba(self, X: Sequence[Sequence[str]]) -> list[np.ndarray]:
        """The probabilities of `classes_` for each word of each sentence, float32 [W, K]."""
        check_is_fitted(self)
        return [sentence.probabilities for sentence in self.bundle_.tagger.tag(_lists(X)).sentences()]

    def score(self, X: Sequence[Sequence[str]], y: Sequence[Sequence[str]]) -> float:
        """The metric of the task: span F1, of tags without spans the accuracy."""
        from training.metrics.spans import tag_scores
        from training.tasks.tag.task import TagTask

        predicted, task = self.predict(X), TagTask.from_bundle(self.bundle_)
        gold = [task.to_model_scheme(tags) for tags in _lists(y)]
        return tag_scores(gold, predicted, self.bundle_.model.scheme)[task.metric]


def _refuse_missing_labels(y: Any) -> None:
    labels = np.asarray(y, dtype=object)
    if labels.ndim == 1:
        for row, label in enumerate(labels, start=1):
            refuse_missing_values({"label": label}, f"y:{row}")


def _lists(rows: Sequence[Sequence[str]]) -> list[list[str]]:
    return [list(row) for row in rows]


def _shown(values: np.ndarray) -> str:
    kinds = sorted({type(value).__name__ for value in values.flat})
    return f"an array of shape {values.shape} with values of the types {', '.join(kinds)}"
