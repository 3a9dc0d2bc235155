"""The baseline of tagging: the most frequent tag of each word, or a linear model; the better one on validation rows.

The linear models are a chain that decodes whole sentences and needs the PyPI package python-crfsuite (extra: crf), and
without it a classifier that tags word by word. Choices, made on validation rows (span F1 of resume_ner and wnut17,
accuracy of the universal tags of ud_ewt):

- Chain by L-BFGS with L1 .1 and L2 .01: .930, .248, .950. L1 and L2 both .1: .927, .234; L2 .1 alone: .925, .222.
- Chain by averaged perceptron: .912, .261, .949, in a tenth of the time.
- Word by word, C .1: .894, .212, .948; C .03: .890, .168, .944. Stochastic gradients were not better.
"""

import ctypes
import importlib.util
import re
import tempfile
import warnings
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from scipy import sparse
from sklearn.exceptions import ConvergenceWarning
from sklearn.feature_extraction import FeatureHasher
from sklearn.svm import LinearSVC

from kmha.tags import Scheme, detect_scheme
from training.metrics.spans import tag_scores

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


@dataclass(frozen=True)
class ChainTagger:
    """A linear-chain conditional random field, made by `fit_chains`."""

    model: bytes  # in the file format of python-crfsuite

    def predict(self, words: Sentences) -> list[list[str]]:
        """The most probable tag sequence of each sentence."""
        import pycrfsuite  # pyright: ignore[reportMissingImports]

        tagger = pycrfsuite.Tagger()
        tagger.open_inmemory(self.model)
        return [tagger.tag(word_features(sentence)) for sentence in words]


@dataclass(frozen=True)
class GreedyTagger:
    """Tags word by word, with the previous tag as a feature; made by `fit_greedy`."""

    tags: list[str]  # the K tags, sorted
    weights: np.ndarray  # float32 [features, K]
    previous: np.ndarray  # weights of the previous tag, float32 [K + 1, K]; the last row is for first words
    biases: np.ndarray  # float32 [K]

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
    """Trains a chain by averaged perceptron, then one by L-BFGS; yields a description and the tagger."""
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
    """Trains a support vector machine for each tag, on the features of the word and the previous tag."""
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
    weights, previous = np.split(weights, [_HASHED_FEATURES])
    return GreedyTagger(names, weights, previous, biases.astype(np.float32))


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


@dataclass(frozen=True)
class FrequentTags:
    """Predicts the most frequent tag of each word."""

    tags: dict[str, str]  # of each training word
    default: str  # of other words: the most frequent one of all

    def predict(self, words: Sentences) -> list[list[str]]:
        """The tags of each sentence."""
        return [[self.tags.get(word, self.default) for word in sentence] for sentence in words]


Tagger = ChainTagger | GreedyTagger | FrequentTags


@dataclass(frozen=True)
class TagBaseline:
    """The best of the fitted baselines, made by `fit_tag_baseline`."""

    tagger: Tagger
    description: str  # the model and its training rows in one line
    validation_scores: dict[str, float]  # the compared score of each candidate, by description

    def predict(self, words: Sentences) -> list[list[str]]:
        """The tags of each sentence; they may break the scheme."""
        return self.tagger.predict(words)


def fit_tag_baseline(
    train_words: Sentences,
    train_tags: Sentences,
    validation_words: Sentences,
    validation_tags: Sentences,
    seed: int,
    *,
    scheme: Scheme | None = None,
    max_words: int = 250_000,
) -> TagBaseline:
    """Trains the baselines and selects the best on validation rows by span F1, or without spans by token accuracy.

    Without validation rows, a linear model is selected. These are trained on at most `max_words`; of more, whole
    sentences are sampled. The scheme is by default that of the training tags. Raises ValueError if the lengths differ,
    or there is no training word.
    """
    for words, tags in ((train_words, train_tags), (validation_words, validation_tags)):
        if [len(each) for each in words] != [len(each) for each in tags]:
            raise ValueError("expected one tag per word, got other lengths")
    if not any(map(len, train_words)):
        raise ValueError("expected training words, got none")
    scheme = detect_scheme(train_tags) if scheme is None else scheme
    name = "token_accuracy" if scheme == "none" else "span_f1"
    scores: dict[str, float] = {}
    best: tuple[float, str, Tagger] | None = None
    for description, tagger in _candidates(train_words, train_tags, seed, max_words):
        score = tag_scores(validation_tags, tagger.predict(validation_words), scheme)[name]
        scores[description] = 0.0 if score is None else score
        if best is None or scores[description] >= best[0]:
            best = scores[description], description, tagger
    assert best is not None  # there is a candidate
    return TagBaseline(best[2], best[1], scores)


def _candidates(words: Sentences, tags: Sentences, seed: int, max_words: int) -> Iterator[tuple[str, Tagger]]:
    """(description, tagger) of each baseline; the last one is selected if there are no validation rows."""
    rows = f"{len(words):,} training rows"
    yield f"most frequent tag of each word, {rows}", _fit_frequent(words, tags)
    sampled = _sample([len(sentence) for sentence in words], seed, max_words)
    few_words, few_tags = [words[row] for row in sampled], [tags[row] for row in sampled]
    sample = f"a random {len(sampled):,} of " if sum(map(len, words)) > max_words else ""
    of = f"on words, neighbors, affixes and shapes, {sample}{rows}"
    if has_chains():
        for kind, tagger in fit_chains(few_words, few_tags):
            yield f"{kind} {of}", tagger
    else:
        yield f"linear support vector machine {of}", fit_greedy(few_words, few_tags, seed)


def _fit_frequent(words: Sentences, tags: Sentences) -> FrequentTags:
    counts: dict[str, Counter[str]] = {}
    for sentence, expected in zip(words, tags, strict=True):
        for word, tag in zip(sentence, expected, strict=True):
            counts.setdefault(word, Counter())[tag] += 1
    default = sum(counts.values(), Counter()).most_common(1)[0][0]
    return FrequentTags({word: tags.most_common(1)[0][0] for word, tags in counts.items()}, default)


def _sample(lengths: Sequence[int], seed: int, max_words: int) -> list[int]:
    """Random rows with at most so many words, at least one row, ascending."""
    rows = [row for row, length in enumerate(lengths) if length]
    if sum(lengths) <= max_words:
        return rows
    order = np.random.default_rng(seed).permutation(rows)
    count = np.searchsorted(np.cumsum([lengths[row] for row in order]), max_words, side="right")
    return sorted(order[: max(1, int(count))].tolist())
