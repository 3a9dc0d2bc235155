"""The bar a tagger is held against: the most frequent tag of each word, or a linear model, whichever is better.

`fit_tag_baseline` trains them on the same rows as the model and picks one on validation rows. The linear models are in
`training.baselines.tagging_linear`, what they see of a word in `training.baselines.tagging_linear`.
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
    """Gives each word the tag that it had most often.

    Attributes:
        tags: Of each training word.
        usual: Of other words: the most frequent one of all.
    """

    tags: dict[str, str]
    defaults: str

    def predict(self, words: Sentences) -> list[list[str]]:
        """Gives the tags of the words of each sentence."""
        return [[self.tags.get(word, self.defaults) for word in sentence] for sentence in words]


@dataclass(frozen=True)
class TagBaseline:
    """The best of the fitted baselines; `fit_tag_baseline` makes it.

    Attributes:
        tagger: Tags sentences.
        description: One line telling what was trained on what.
        validation_scores: Of each that was tried, by what it is; what was compared.
    """

    tagger: Tagger
    description: str
    validation_scores: dict[str, float]

    def predict(self, words: Sentences) -> list[list[str]]:
        """Gives the tags of the words of each sentence; they may break the scheme."""
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
    """Trains the baselines and picks the best on validation rows, by span F1 or without spans by accuracy of words.

    Args:
        train_words: Words of each training sentence.
        train_tags: A tag for each.
        validation_words: Words of each validation sentence; without any, a linear model is picked.
        validation_tags: A tag for each.
        seed: Makes sampling and training repeatable.
        scheme: How tags spell spans; None: found by the training tags.
        max_words: Sentences beyond this many words are left out of the linear models by a seeded draw, and the
            description says so.

    Raises:
        ValueError: The lengths differ, or there is no training word.
    """
    for words, tags in ((train_words, train_tags), (validation_words, validation_tags)):
        if [len(each) for each in words] != [len(each) for each in tags]:
            raise ValueError("expected a tag for each word, got other lengths")
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
    """The baselines with what they are; the one to take without validation rows last."""
    rows = f"{len(words):,} training rows"
    yield f"most frequent tag of each word, {rows}", _fit_frequent(words, tags)
    drawn = _draw([len(sentence) for sentence in words], seed, max_words)
    few_words, few_tags = [words[row] for row in drawn], [tags[row] for row in drawn]
    sample = f"a random {len(drawn):,} of " if sum(map(len, words)) > max_words else ""
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
    defaults = sum(counts.values(), Counter()).most_common(1)[0][0]
    return FrequentTags({word: tags.most_common(1)[0][0] for word, tags in counts.items()}, defaults)


def _draw(lengths: Sequence[int], seed: int, max_words: int) -> list[int]:
    """Rows of at most so many words, one at least, in their order."""
    rows = [row for row, length in enumerate(lengths) if length]
    if sum(lengths) <= max_words:
        return rows
    order = np.random.default_rng(seed).permutation(rows)
    kept = np.searchsorted(np.cumsum([lengths[row] for row in order]), max_words, side="right")
    return sorted(order[: max(1, int(kept))].tolist())
