"""The baseline of tagging: the most frequent tag of each word, or a linear model.

The better one on validation rows is used. The linear models are in `training.baselines.tagging_linear`.
"""

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from kmha.tags import Scheme, detect_scheme
from training.baselines.tagging_linear import Sentences, Tagger, fit_chains, fit_greedy, has_chains
from training.metrics.spans import tag_scores


@dataclass(frozen=True)
class FrequentTags:
    """Predicts the most frequent tag of each word.

    Attributes:
        tags: The tag of each training word.
        default: The tag of other words: the most frequent one of all.
    """

    tags: dict[str, str]
    default: str

    def predict(self, words: Sentences) -> list[list[str]]:
        """The tags of each sentence."""
        return [[self.tags.get(word, self.default) for word in sentence] for sentence in words]


@dataclass(frozen=True)
class TagBaseline:
    """The best of the fitted baselines, made by `fit_tag_baseline`.

    Attributes:
        tagger: Tags sentences.
        description: The model and its training rows in one line.
        validation_scores: The compared score of each candidate, by description.
    """

    tagger: Tagger
    description: str
    validation_scores: dict[str, float]

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

    Args:
        train_words: Words of each training sentence.
        train_tags: A tag for each.
        validation_words: Words of each validation sentence; without any, a linear model is selected.
        validation_tags: A tag for each.
        seed: Random seed.
        scheme: Tagging scheme; None: detected from the training tags.
        max_words: Maximum training words of the linear models; of more, whole sentences are sampled.

    Raises:
        ValueError: The lengths differ, or there is no training word.
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
    of = f"on words, neighbours, affixes and shapes, {sample}{rows}"
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
