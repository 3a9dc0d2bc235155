"""The most frequent errors of a tagger, each with some of its sentences."""

from collections import Counter
from collections.abc import Sequence
from typing import Any, NamedTuple

from kmha.tag_schemes import Scheme, Span, strict_spans_of

_SENTENCES_SHOWN = 3
_WORDS_AROUND = 5


class _Error(NamedTuple):
    """A span that was wanted, given, or both but not alike."""

    wanted: Span | None
    given: Span | None

    @property
    def kind(self) -> tuple[str | None, str | None, bool | None]:
        """What counts as the same error: the types, and whether the words were the same ones."""
        if self.wanted is None or self.given is None:
            return self.wanted and self.wanted.type, self.given and self.given.type, None
        return self.wanted.type, self.given.type, self.wanted[:2] == self.given[:2]


def most_frequent_errors(
    words: Sequence[Sequence[str]],
    gold: Sequence[Sequence[str]],
    predicted: Sequence[Sequence[str]],
    scheme: Scheme,
    most: int = 20,
    places: Sequence[str] | None = None,
) -> list[dict[str, Any]]:
    """Groups the errors in sentences by what was wanted and what was given, the most frequent first.

    Spans are read strictly. A span that was wanted and not given is held against the wrong one that shares most words
    with it; a wrong one that is then left over was not wanted at all.

    Args:
        words: Of each sentence.
        gold: The tags wanted.
        predicted: The tags given.
        scheme: How both spell spans; with "none" errors are those of words.
        most: How many kinds of errors to give.
        places: Where the sentences stand, for example `test.conll:12`; None: not known.

    Returns:
        JSON values, for each kind: `wanted` and `given`, the types, None where there was no span; `same_words`, None
        unless there were both; `count`; and `sentences`, the first three: `text`, the words around with
        those in question, `wanted` and `given`, the words of the spans (None where there was none), and `place`
        where it is known.

    Raises:
        InputError: A tag that the scheme does not have.
        ValueError: The lengths differ.
    """
    kinds: dict[tuple, dict[str, Any]] = {}
    for row, (these, wanted, given) in enumerate(zip(words, gold, predicted, strict=True)):
        if not len(these) == len(wanted) == len(given):
            raise ValueError(f"sentence {row}: wanted a tag for each of {len(these)} words twice")
        place = {} if places is None else {"place": places[row]}
        for error in _errors(strict_spans_of(wanted, scheme), strict_spans_of(given, scheme)):
            names = dict(zip(("wanted", "given", "same_words"), error.kind, strict=True))
            kind = kinds.setdefault(error.kind, {**names, "count": 0, "sentences": []})
            kind["count"] += 1
            if len(kind["sentences"]) < _SENTENCES_SHOWN:
                kind["sentences"].append(_shown(these, error) | place)
    # Equal counts stay in the order of the sentences.
    return sorted(kinds.values(), key=lambda kind: -kind["count"])[:most]


def _errors(wanted: Sequence[Span], given: Sequence[Span]) -> list[_Error]:
    right = set(wanted) & set(given)
    wrong = [span for span in given if span not in right]
    at_word = {word: span for span in wrong for word in range(span.first, span.end)}
    errors, paired = [], set()
    for span in wanted:
        if span not in right:
            shared = Counter(at_word.get(word) for word in range(span.first, span.end))
            others = [(count, other) for other, count in shared.items() if other and other not in paired]
            other = max(others, key=lambda each: each[0], default=(0, None))[1]
            paired.add(other)
            errors.append(_Error(span, other))
    errors += [_Error(None, span) for span in wrong if span not in paired]
    return sorted(errors, key=lambda error: min(span.first for span in error if span is not None))


def _shown(words: Sequence[str], error: _Error) -> dict[str, str | None]:
    spans = [span for span in error if span is not None]
    first = max(0, min(span.first for span in spans) - _WORDS_AROUND)
    end = min(len(words), max(span.end for span in spans) + _WORDS_AROUND)
    # Words of one character each are those of a script without spaces.
    gap = "" if all(len(word) == 1 for word in words) else " "
    text = gap.join(words[first:end])
    return {
        "text": f"{'… ' if first else ''}{text}{' …' if end < len(words) else ''}",
        "wanted": None if error.wanted is None else gap.join(words[error.wanted.first : error.wanted.end]),
        "given": None if error.given is None else gap.join(words[error.given.first : error.given.end]),
    }
