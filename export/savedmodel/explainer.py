"""Explains a SavedModel's predictions from the attention weights of its `explain` signatures."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from export.names import (
    ATTENTION,
    ENCODER_LOGITS,
    EXPLAIN,
    EXPLAIN_WORDS,
    GIVEN,
    LINEAR_LOGITS,
    MATCH,
    NGRAMS,
    NUM_WORDS,
    SCORE,
    SERVING_DEFAULT,
    WORDS,
)
from export.savedmodel.predictor import BATCH_ROWS, SavedModelPredictor, SavedModelTagger, open_savedmodel
from kmha.errors import InputError
from kmha.text.vocabulary import PADDING
from training.explanation.attributions import NO_WORD, TOKENS, RowTrace, linear_trace
from training.explanation.explainer import ExplainedOutput, align_tokens

NO_GRADIENTS = "A SavedModel has no gradients: training.explain shows gradient × input of the run itself."
MEAN = "The rollout begins at the mean of all tokens: the SavedModel's pooling is unknown."
FIRST = "The rollout begins at the word's first token: the SavedModel's pooling of words is unknown."


def explainable_model(path: Path) -> "ExplainableTextModel | ExplainableTagger":
    """The SavedModel of a version as a `TextModel` or a `TagModel`; raises InputError if it has no `explain`."""
    loaded = open_savedmodel(path)
    if EXPLAIN not in loaded.signatures:
        raise InputError(f"{path}: expected a SavedModel with the signature {EXPLAIN}, got one without")
    model = ExplainableTagger if EXPLAIN_WORDS in loaded.signatures else ExplainableTextModel
    return model(path, loaded)


class ExplainableTextModel:
    """A model that `open_savedmodel` returned; see `training.explanation.explainer.TextModel`."""

    pooling = "mean"

    def __init__(self, path: Path, loaded: Any):
        self._predictor, self._loaded = SavedModelPredictor(path, loaded), loaded
        self.num_texts = self._predictor.num_texts
        self.labels = self._predictor.facts()["labels"]
        outputs = loaded.signatures[SERVING_DEFAULT].structured_outputs
        self.decides = MATCH in outputs
        self.scores = SCORE in outputs and not self.decides
        self._multi_label = GIVEN in outputs
        has_attention = any(ATTENTION in name for name in loaded.signatures[EXPLAIN].structured_outputs)
        self.notes = [NO_GRADIENTS, MEAN] if has_attention else []

    def probabilities(self, rows: Sequence[tuple[str, ...]]) -> np.ndarray:
        """See the protocol."""
        return self._predictor.probabilities([_encoded(row) for row in rows])

    def matches(self, row: tuple[str, ...]) -> bool:
        """See the protocol."""
        return bool(self._run(SERVING_DEFAULT, [row])[MATCH][0])

    def word_bounds(self, text: str) -> list[tuple[int, int]]:
        """See the protocol."""
        from kmha.text.words import word_bounds

        return word_bounds(text)

    def tokenize_words(self, name: str, words: Sequence[str]) -> list[list[str]]:
        """See the protocol."""
        place = 1 if name.endswith("_b") else 0
        found: list[list[str]] = []
        for first in range(0, len(words), BATCH_ROWS):
            part = words[first : first + BATCH_ROWS]
            rows = [tuple(word if text == place else "" for text in range(self.num_texts)) for word in part]
            found += [_real(tokens)[1:-1] for tokens in self._run(EXPLAIN, rows)[name]]
        return found

    def trace(self, row: tuple[str, ...], chosen: ExplainedOutput) -> RowTrace:
        """See the protocol."""
        outputs = self._run(EXPLAIN, [row])
        tokens = {name: _real(each[0]) for name, each in outputs.items() if TOKENS in name}
        names = sorted(tokens)
        linear = None
        if NGRAMS in outputs:
            ngrams, linear, encoder = (outputs[name][0] for name in (NGRAMS, LINEAR_LOGITS, ENCODER_LOGITS))
            linear = linear_trace(ngrams, linear, encoder, chosen.output, self._multi_label)
        return RowTrace(
            {name: tokens[name] for name in names},
            {name: each[0] for name, each in outputs.items() if ATTENTION in name},
            None,
            linear=linear,
        )

    def _run(self, signature: str, rows: Sequence[tuple[str, ...]]) -> dict[str, np.ndarray]:
        inputs = self._predictor.columns([_encoded(row) for row in rows])
        return {name: each.numpy() for name, each in self._loaded.signatures[signature](**inputs).items()}


class ExplainableTagger:
    """A tagger that `open_savedmodel` returned; see `training.explanation.explainer.TagModel`."""

    num_texts = 1

    def __init__(self, path: Path, loaded: Any):
        self._tagger = SavedModelTagger(path, loaded)
        self.labels = self._tagger.facts()["labels"]
        self.notes = [NO_GRADIENTS, FIRST]

    def words(self, text: str) -> list[str]:
        """The words of a raw text."""
        outputs = self._tagger.run(SERVING_DEFAULT, [_bytes(text)])
        return [word.decode() for word in outputs[WORDS][0, : outputs[NUM_WORDS][0]]]

    def tagged(self, sentences: Sequence[Sequence[str]]) -> list[tuple[list[int], np.ndarray]]:
        """See the protocol."""
        found = self._tagger.probabilities([list(map(_bytes, words)) for words in sentences])
        ends = np.cumsum([len(words) for words in sentences])[:-1]
        return [(part[:, -1].astype(int).tolist(), part[:, :-2]) for part in np.split(found, ends)]

    def trace(self, words: Sequence[str], word: int, tag: int) -> tuple[RowTrace, list[int], list[int]]:
        """See the protocol."""
        encoded = list(map(_bytes, words))
        alone = self._tagger.run(EXPLAIN_WORDS, [[each] for each in encoded])[TOKENS]
        pieces = [_real(tokens)[1:-1] for tokens in alone]
        outputs = self._tagger.run(EXPLAIN_WORDS, [encoded])
        windows = [_real(tokens) for tokens in outputs[TOKENS]]
        step, places = _places([tokens[1:-1] for tokens in windows], pieces)
        begin = sum(map(len, pieces[:word]))
        # A word is tagged in the window whose middle is nearest to the word's middle.
        middle = 2 * begin + len(pieces[word]) - step
        window = min(max(middle // (2 * step), 0), len(windows) - 1) if len(windows) > 1 else 0
        tokens, of_tokens = windows[window], [NO_WORD, *places[window], NO_WORD]
        if word not in of_tokens:
            raise InputError(f"TEXT: expected a word with tokens of its own, got {words[word]!r}")
        size = len(tokens)
        attention = outputs["attention"][window][:, :, :size, :size]
        return RowTrace({TOKENS: tokens}, {"attention": attention}, None), of_tokens, [of_tokens.index(word)]


def _places(windows: list[list[str]], pieces: list[list[str]]) -> tuple[int, list[list[int]]]:
    """The tokens between the starts of two windows, and the word of each token; `NO_WORD` where no position fits.

    A window holds at most a fixed number of tokens, and windows start half of that apart; see
    `kmha.text.sentence_preprocessor`. The SavedModel does not contain the number. It is at least the size of the first
    window, and too small for one more word.
    """
    begins = np.cumsum([0, *map(len, pieces)])[:-1]
    for most in range(len(windows[0]), len(windows[0]) + max(map(len, pieces)) + 1):
        step = max(most // 2, 1)
        firsts = np.searchsorted(begins, step * np.arange(len(windows)))
        found = []
        for tokens, first in zip(windows, firsts.tolist(), strict=True):
            inner = align_tokens(tokens, pieces[first:], [False] * (len(pieces) - first))
            found.append(None if inner is None else [first + each for each in inner])
        if None not in found:
            return step, found
    return 1, [[NO_WORD] * len(tokens) for tokens in windows]


def _real(tokens: np.ndarray) -> list[str]:
    """Tokens as strings, without the padding at their end."""
    found = [token.decode() for token in tokens.tolist()]
    while found and found[-1] == PADDING:
        found.pop()
    return found


def _bytes(text: str) -> bytes:
    return text.encode("utf-8", "replace")


def _encoded(row: tuple[str, ...]) -> Any:
    return _bytes(row[0]) if len(row) == 1 else tuple(map(_bytes, row))
