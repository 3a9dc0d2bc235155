"""A SavedModel as something that can be asked what it looked at, by its `explain` signatures alone."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from export.savedmodel.predictor import BATCH_ROWS, SavedModelPredictor, open_savedmodel
from export.savedmodel.tagger_predictor import EXPLAIN, EXPLAIN_WORDS, PREDICT_TEXT, WORDS, ServedTagger
from kmha.errors import InputError
from kmha.text.vocabulary import PADDING
from training.explanation.attributions import TOKENS, RowTrace
from training.explanation.explainer import ExplainedOutput
from training.explanation.words import NO_WORD, align_tokens

SCORE, MATCH = "score", "match"
NO_GRADIENTS = "A SavedModel carries no gradients: training.explain shows gradient × input of the run itself."
MEAN = "The rollout begins at the mean of all tokens: a SavedModel does not tell how it pools them."
FIRST = "The rollout begins at the word's first token: a SavedModel does not tell how it reads a word."


def served_model(path: Path) -> "ServedTexts | ServedWords":
    """What a version's folder holds, as a `TextModel` or a `TagModel`.

    Raises:
        InputError: It holds no SavedModel with an `explain` signature.
    """
    loaded = open_savedmodel(path)
    if EXPLAIN not in loaded.signatures:
        raise InputError(f"{path}: expected a SavedModel with the signature {EXPLAIN}, got one without")
    return ServedWords(path, loaded) if EXPLAIN_WORDS in loaded.signatures else ServedTexts(path, loaded)


class ServedTexts:
    """See `training.explanation.explainer.TextModel`.

    Args:
        path: Of the version's folder.
        loaded: What `tf.saved_model.load` gave.
    """

    pooling = "mean"

    def __init__(self, path: Path, loaded: Any):
        self._predictor, self._loaded = SavedModelPredictor(path, loaded), loaded
        self.num_texts = self._predictor.num_texts
        self.labels = self._predictor.facts()["labels"]
        outputs = loaded.signatures[PREDICT_TEXT].structured_outputs
        self.decides = MATCH in outputs
        self.scores = SCORE in outputs and not self.decides
        self.notes = [NO_GRADIENTS, MEAN]

    def probabilities(self, rows: Sequence[tuple[str, ...]]) -> np.ndarray:
        """See the protocol."""
        return self._predictor.probabilities([_encoded(row) for row in rows])

    def matches(self, row: tuple[str, ...]) -> bool:
        """See the protocol."""
        return bool(self._ask(PREDICT_TEXT, [row])[MATCH][0])

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
            found += [_real(tokens)[1:-1] for tokens in self._ask(EXPLAIN, rows)[name]]
        return found

    def trace(self, row: tuple[str, ...], chosen: ExplainedOutput) -> RowTrace:
        """See the protocol."""
        answers = self._ask(EXPLAIN, [row])
        tokens = {name: _real(each[0]) for name, each in answers.items() if TOKENS in name}
        names = sorted(tokens)
        return RowTrace(
            {name: tokens[name] for name in names},
            {name: each[0] for name, each in answers.items() if "attention" in name},
            None,
        )

    def _ask(self, signature: str, rows: Sequence[tuple[str, ...]]) -> dict[str, np.ndarray]:
        given = self._predictor.columns([_encoded(row) for row in rows])
        return {name: each.numpy() for name, each in self._loaded.signatures[signature](**given).items()}


class ServedWords:
    """See `training.explanation.explainer.TagModel`.

    Args:
        path: Of the version's folder.
        loaded: What `tf.saved_model.load` gave.
    """

    num_texts = 1

    def __init__(self, path: Path, loaded: Any):
        self._tagger = ServedTagger(path, loaded)
        self.labels = self._tagger.facts()["labels"]
        self.notes = [NO_GRADIENTS, FIRST]

    def words(self, text: str) -> list[str]:
        """The words of a raw text."""
        answers = self._tagger.ask(PREDICT_TEXT, [_bytes(text)])
        return [word.decode() for word in answers[WORDS][0, : answers["num_words"][0]]]

    def tagged(self, sentences: Sequence[Sequence[str]]) -> list[tuple[list[int], np.ndarray]]:
        """See the protocol."""
        found = self._tagger.probabilities([list(map(_bytes, words)) for words in sentences])
        ends = np.cumsum([len(words) for words in sentences])[:-1]
        return [(part[:, -1].astype(int).tolist(), part[:, :-2]) for part in np.split(found, ends)]

    def trace(self, words: Sequence[str], word: int, tag: int) -> tuple[RowTrace, list[int], list[int]]:
        """See the protocol."""
        encoded = list(map(_bytes, words))
        alone = self._tagger.ask(EXPLAIN_WORDS, [[each] for each in encoded])[TOKENS]
        pieces = [_real(tokens)[1:-1] for tokens in alone]
        answers = self._tagger.ask(EXPLAIN_WORDS, [encoded])
        windows = [_real(tokens) for tokens in answers[TOKENS]]
        step, places = _places([tokens[1:-1] for tokens in windows], pieces)
        begin = sum(map(len, pieces[:word]))
        # A word is tagged in the window whose middle is the nearest to its own.
        middle = 2 * begin + len(pieces[word]) - step
        window = min(max(middle // (2 * step), 0), len(windows) - 1) if len(windows) > 1 else 0
        tokens, of_tokens = windows[window], [NO_WORD, *places[window], NO_WORD]
        if word not in of_tokens:
            raise InputError(
                f"TEXT: expected a word that the model shows among its tokens, got {words[word]!r}"
            )
        size = len(tokens)
        attention = answers["attention"][window][:, :, :size, :size]
        return RowTrace({TOKENS: tokens}, {"attention": attention}, None), of_tokens, [of_tokens.index(word)]


def _places(windows: list[list[str]], pieces: list[list[str]]) -> tuple[int, list[list[int]]]:
    """How many tokens windows are apart, and which word each of their tokens stands for; none where they fit nowhere.

    Windows hold so many tokens at most and are half of that apart, as `kmha.text.sentence_windows` cuts them. How many is not
    told: at least those of the first one, and not so many that one more word would have fitted.
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
