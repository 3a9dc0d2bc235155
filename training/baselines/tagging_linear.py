"""Two linear taggers: a chain that decodes whole sentences, and a classifier that tags word by word.

The chain needs the PyPI package python-crfsuite (extra: crf). Choices, made on validation rows (span F1 of resume_ner
and wnut17, accuracy of the universal tags of ud_ewt):

- Chain by L-BFGS with L1 .1 and L2 .01: .930, .248, .950. L1 and L2 both .1: .927, .234; L2 .1 alone: .925, .222.
- Chain by averaged perceptron: .912, .261, .949, in a tenth of the time.
- Word by word, C .1: .894, .212, .948; C .03: .890, .168, .944. Stochastic gradients were not better.
"""

import ctypes
import importlib.util
import re
import tempfile
import warnings
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import numpy as np
from scipy import sparse
from sklearn.exceptions import ConvergenceWarning
from sklearn.feature_extraction import FeatureHasher
from sklearn.svm import LinearSVC

Sentences = Sequence[Sequence[str]]

_LONGEST_AFFIX = 4
_RUNS = re.compile(r"(.)\1+")
_EDGE = "\n"  # no word is a line feed
_L1, _L2 = 0.1, 0.01
_PERCEPTRON_ROUNDS = 10
_MOST_STEPS, _FEWEST_STEPS = 100, 20
# Words times tags times steps: about three minutes on one core.
_WORK = 400_000_000
_HASHED_FEATURES = 1 << 19
_PENALTY = 0.1


class Tagger(Protocol):
    """Predicts the tags of sentences."""

    def predict(self, words: Sentences) -> list[list[str]]:
        """The tags of each sentence."""
        ...


@dataclass(frozen=True)
class ChainTagger:
    """A linear-chain conditional random field, made by `fit_chains`.

    Attributes:
        model: In the file format of python-crfsuite.
    """

    model: bytes

    def predict(self, words: Sentences) -> list[list[str]]:
        """The most probable tag sequence of each sentence."""
        import pycrfsuite  # pyright: ignore[reportMissingImports]

        tagger = pycrfsuite.Tagger()
        tagger.open_inmemory(self.model)
        return [tagger.tag(word_features(sentence)) for sentence in words]


@dataclass(frozen=True)
class GreedyTagger:
    """Tags word by word, with the previous tag as a feature; made by `fit_greedy`.

    Attributes:
        tags: The K tags, sorted.
        weights: float32 [features, K].
        previous: Weights of the previous tag, float32 [K + 1, K]; the last row is for the first word.
        biases: float32 [K].
    """

    tags: list[str]
    weights: np.ndarray
    previous: np.ndarray
    biases: np.ndarray

    def predict(self, words: Sentences) -> list[list[str]]:
        """The tags with the highest scores, word by word."""
        predictions = []
        for sentence in words:
            scores = _hashed([sentence]) @ self.weights + self.biases if sentence else ()
            before, found = len(self.tags), []
            for row in scores:
                before = int((row + self.previous[before]).argmax())
                found.append(self.tags[before])
            predictions.append(found)
        return predictions


def has_chains() -> bool:
    """Whether python-crfsuite is installed."""
    return importlib.util.find_spec("pycrfsuite") is not None


def fit_chains(words: Sentences, tags: Sentences) -> Iterator[tuple[str, ChainTagger]]:
    """Trains a chain by averaged perceptron, then one by L-BFGS.

    Args:
        words: Words of each training sentence.
        tags: A tag for each word.

    Yields:
        A description in one line, and the tagger.
    """
    import pycrfsuite  # pyright: ignore[reportMissingImports]

    trainer = pycrfsuite.Trainer(verbose=False)
    for sentence, expected in zip(words, tags, strict=True):
        trainer.append(word_features(sentence), list(expected))
    work = sum(map(len, words)) * len({tag for expected in tags for tag in expected})
    steps = min(_MOST_STEPS, max(_FEWEST_STEPS, _WORK // work))
    algorithms = (
        ("averaged perceptron", "averaged-perceptron", {"max_iterations": _PERCEPTRON_ROUNDS}),
        (f"L-BFGS, at most {steps} steps", "lbfgs", {"c1": _L1, "c2": _L2, "max_iterations": steps}),
    )
    for description, algorithm, settings in algorithms:
        trainer.select(algorithm)
        trainer.set_params(settings)
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "model"
            # The perceptron shuffles sentences with the random numbers of C.
            ctypes.CDLL(None).srand(0)
            trainer.train(str(path))
            yield f"linear-chain CRF ({description})", ChainTagger(path.read_bytes())


def fit_greedy(words: Sentences, tags: Sentences, seed: int) -> GreedyTagger:
    """Trains a support vector machine for each tag, on the features of the word and the previous tag.

    Args:
        words: Words of each training sentence.
        tags: A tag for each word.
        seed: Random seed.
    """
    names = sorted({tag for expected in tags for tag in expected})
    numbers = {name: place for place, name in enumerate(names)}
    targets = [[numbers[tag] for tag in expected] for expected in tags]
    before = np.array([place for row in targets for place in [len(names), *row][: len(row)]], np.int64)
    previous = sparse.csr_matrix(
        (np.ones(len(before), np.float32), (np.arange(len(before)), before)), (len(before), len(names) + 1)
    )
    features = sparse.hstack([_hashed(words), previous], format="csr")
    flat = np.array([place for row in targets for place in row], np.int64)
    if len(names) == 1:
        weights, biases = np.zeros((1, features.shape[1])), np.zeros(1)
    else:
        machine = LinearSVC(C=_PENALTY, random_state=seed)
        with warnings.catch_warnings():
            # An approximate optimum is sufficient.
            warnings.simplefilter("ignore", ConvergenceWarning)
            machine.fit(features, flat)
        weights, biases = machine.coef_, machine.intercept_
        if len(names) == 2:
            weights, biases = np.vstack([-weights, weights]), np.concatenate([-biases, biases])
    weights = weights.T.astype(np.float32)
    return GreedyTagger(
        names, weights[:_HASHED_FEATURES], weights[_HASHED_FEATURES:], biases.astype(np.float32)
    )


def _hashed(words: Sentences) -> sparse.csr_matrix:
    hasher = FeatureHasher(_HASHED_FEATURES, input_type="string", dtype=np.float32)
    return hasher.transform(names for sentence in words for names in word_features(sentence))


def word_shape(word: str) -> str:
    """Capitals as X, other letters as x, digits as d, without repetitions: `McDonald's` is XxXx'x."""
    letters = ("X" if c.isupper() else "x" if c.isalpha() else "d" if c.isdigit() else c for c in word)
    return _RUNS.sub(r"\1", "".join(letters))


def word_features(words: Sequence[str]) -> list[list[str]]:
    """The features of each word of a sentence, as lists of distinct names.

    Features, in lower case except for word and shape: the word; two words on each side; pairs of neighboring words in
    that context, and the three words in the middle; prefixes and suffixes of 1 to 4 characters; character trigrams; its
    shape and those of its neighbors; whether it contains a digit or a hyphen.
    """
    low = [_EDGE, _EDGE, *(word.lower() for word in words), _EDGE, _EDGE]
    shapes = [_EDGE, *map(word_shape, words), _EDGE]
    own = [_own_features(word) for word in words]
    rows = []
    for place in range(len(words)):
        at = place + 2
        before2, before, here, after, after2 = low[at - 2 : at + 3]
        around = shapes[place : place + 3]
        rows.append(
            [
                *own[place],
                f"-2={before2}",
                f"-1={before}",
                f"+1={after}",
                f"+2={after2}",
                f"-2-1={before2}\n{before}",
                f"-1+0={before}\n{here}",
                f"+0+1={here}\n{after}",
                f"+1+2={after}\n{after2}",
                f"-1+1={before}\n{after}",
                f"-1+0+1={before}\n{here}\n{after}",
                f"shape-1={around[0]}",
                f"shape+1={around[2]}",
                "shapes=" + "\n".join(around),
            ]
        )
    return rows


def _own_features(word: str) -> list[str]:
    low = word.lower()
    names = ["always", f"word={word}", f"low={low}", f"shape={word_shape(word)}"]
    if len(low) > 1:
        for length in range(1, min(_LONGEST_AFFIX, len(low)) + 1):
            names += [f"begin={low[:length]}", f"end={low[-length:]}"]
        # A dict keeps the order, so that sums of floats are the same in each process.
        names += dict.fromkeys(f"in={low[start : start + 3]}" for start in range(len(low) - 2))
    if any(c.isdigit() for c in word):
        names.append("digit")
    if "-" in word:
        names.append("hyphen")
    return names
