"""What predictors of runtimes share that take token ids: inputs, batches, tags of sentences. Needs NumPy only."""

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from export.device.sentences import SentenceTokenizer, Window
from export.device.tags import TagDecoder
from export.device.tokenizer import PairTokenizer, Tokenizer
from export.names import PATH_PROBABILITIES, PROBABILITIES, SCORES, TAG_IDS
from kmha.errors import InputError
from kmha.features import PADDING_MASK, TOKEN_IDS
from kmha.input_files import read_json

TOKENIZER = ".tokenizer.json"
BATCH_TOKENS = 8192
MOST_ROWS = 64

TextTokenizer = Tokenizer | PairTokenizer
AnyTokenizer = TextTokenizer | SentenceTokenizer
_TOKENIZERS = {"match": PairTokenizer, "tag": SentenceTokenizer}
Outputs = Mapping[str, np.ndarray]


def read_tokenizer(model: Path) -> AnyTokenizer:
    """The tokenizer next to a model file: news.tokenizer.json of news.onnx. Raises InputError if it cannot be read."""
    path = model.with_suffix(TOKENIZER)
    try:
        values = read_json(path, f"the tokenizer of {model.name}")
        return _TOKENIZERS.get(str(values.get("task")), Tokenizer)(values)
    except InputError:
        raise
    # The values may be any.
    except Exception as error:
        raise InputError(
            f"{path}: expected a tokenizer.json of an export, got another file ({type(error).__name__} {error})"
        ) from error


def read_text_tokenizer(model: Path) -> TextTokenizer:
    """As `read_tokenizer`; also raises InputError for a tagger."""
    tokenizer = read_tokenizer(model)
    if isinstance(tokenizer, SentenceTokenizer):
        raise InputError(f"{model}: expected a model of texts, got a tagger")
    return tokenizer


def input_names(tokenizer: AnyTokenizer) -> list[tuple[str, ...]]:
    """Names of a model's inputs, grouped by token ids: the ids, their mask, and other inputs of a tagger."""
    if isinstance(tokenizer, SentenceTokenizer):
        return [tuple(tokenizer.input_names)]
    if isinstance(tokenizer, Tokenizer):
        return [(TOKEN_IDS, PADDING_MASK)]
    return [(ids_name, mask_name) for ids_name, mask_name, _, _ in tokenizer.sides]


def encode_row(tokenizer: TextTokenizer, row: Any, length: int | None = None) -> list[list[int]]:
    """Token ids of a text, or of a pair: a list for each of `input_names`, by default of the model's longest length.

    Raises InputError for a text where the model takes pairs, or the reverse.
    """
    is_text = isinstance(row, str | bytes)
    if isinstance(tokenizer, Tokenizer) and is_text:
        return [tokenizer.encode(row, length)]
    if isinstance(tokenizer, PairTokenizer) and not is_text and len(row) == 2:
        return tokenizer.encode(row[0], row[1], length)
    expected = "a text" if isinstance(tokenizer, Tokenizer) else "a pair of texts"
    got = "one text" if is_text else f"{len(row)} texts"
    raise InputError(f"expected {expected} a row, got {got}")


def ids_by_row(rows: Sequence[list[list[int]]]) -> list[Any]:
    """The ids of each row of `encode_row`; a list for each input if there are several."""
    return [row[0] if len(row) == 1 else row for row in rows]


def model_inputs(
    tokenizer: TextTokenizer, rows: Sequence[list[list[int]]], lengths: Sequence[int] | None = None
) -> dict[str, np.ndarray]:
    """Token ids and masks int32 [b, T] by name of rows of `encode_row`; by default T is that of the longest row."""
    inputs = {}
    for index, (ids_name, mask_name, *_) in enumerate(input_names(tokenizer)):
        part = tokenizer if isinstance(tokenizer, Tokenizer) else tokenizer.sides[index][3]
        ids = [row[index] for row in rows]
        length = max(map(len, ids)) if lengths is None else lengths[index]
        padded = zip(*(part.pad(list(each), length) for each in ids), strict=True)
        inputs[ids_name], inputs[mask_name] = (np.array(values, np.int32) for values in padded)
    return inputs


def length_batches(rows: Sequence[list[list[int]]]) -> Iterator[np.ndarray]:
    """Batches of rows of `encode_row` of similar length, as row numbers [b]; single texts shortest first."""
    if not rows:
        return
    lengths = np.array([[len(ids) for ids in row] for row in rows], np.int64)
    first, rest = lengths[:, 0], lengths[:, 1:].sum(axis=1)
    strips = 1
    if lengths.shape[1] > 1:
        # Strips of similar first texts, each sorted by second texts: as many strips as batches in a strip.
        strips = math.ceil(math.sqrt(len(rows) / MOST_ROWS))
    for strip in np.array_split(np.argsort(first, kind="stable"), strips):
        yield from _by_budget(strip[np.argsort(rest[strip], kind="stable")], lengths)


def _by_budget(order: np.ndarray, lengths: np.ndarray) -> Iterator[np.ndarray]:
    """Splits row numbers, in their order, into batches within the budget of tokens."""
    first = 0
    while first < len(order):
        last, longest = first + 1, lengths[order[first]]
        while last < len(order) and last - first < MOST_ROWS:
            longest = np.maximum(longest, lengths[order[last]])
            if (last - first + 1) * longest.sum() > BATCH_TOKENS:
                break
            last += 1
        yield order[first:last]
        first = last


class SentenceWindow(NamedTuple):
    """A window and the words of its sentence."""

    window: Window
    words: list[str]


def sentence_windows(
    tokenizer: SentenceTokenizer, row: Any, length: int | None = None, number: int = 1
) -> list[SentenceWindow]:
    """Splits a raw text or a list of words into windows of at most `length` tokens, by default the model's longest.

    Raises InputError, with the row's number, for another row or one of too many words.
    """
    if not isinstance(row, str | bytes):
        is_words = isinstance(row, list | tuple) and all(isinstance(word, str | bytes) for word in row)
        if not is_words:
            raise InputError(
                f"sentence {number}: expected a text or a list of words, got {type(row).__name__}"
            )
    try:
        words = tokenizer.words(row)
    except ValueError as error:
        raise InputError(f"sentence {number}: {error}") from error
    return [SentenceWindow(window, words) for window in tokenizer.windows(words, length)]


def window_inputs(
    tokenizer: SentenceTokenizer,
    parts: Sequence[SentenceWindow],
    length: int | None = None,
    num_words: int | None = None,
) -> dict[str, np.ndarray]:
    """A tagger's inputs for windows, int32 [b, T], [b, W] and [b, W, 20] by name; padded to the longest by default."""
    tokens = length or max(len(window.ids) for window, _ in parts)
    words = num_words or max(1, *(len(window.starts) for window, _ in parts))
    padded = [tokenizer.pad(window, sentence, tokens, words) for window, sentence in parts]
    return {name: np.array([each[name] for each in padded], np.int32) for name in tokenizer.input_names}


class TokenIdsPredictor:
    """The common part of `export.predictors.artifacts.Predictor` where a tokenizer.json is next to the model file.

    `longest` limits the tokens of a text or window; None: the model's longest.
    """

    longest: int | None = None

    def __init__(self, path: Path):
        self.path = path
        self.tokenizer: Any = read_tokenizer(path)
        self.num_texts = 2 if isinstance(self.tokenizer, PairTokenizer) else 1
        self.sentences = isinstance(self.tokenizer, SentenceTokenizer)

    def token_ids(self, texts: Sequence[Any]) -> list[Any]:
        """See the protocol."""
        if self.sentences:
            return [[window.ids for window, _ in parts] for parts in self.windows(texts)]
        return ids_by_row(self.encoded(texts))

    def encoded(self, texts: Sequence[Any]) -> list[list[list[int]]]:
        """Token ids of texts or pairs; see `encode_row`."""
        return [encode_row(self.tokenizer, text, self.longest) for text in texts]

    def windows(self, texts: Sequence[Any]) -> list[list[SentenceWindow]]:
        """The windows of each sentence."""
        numbered = enumerate(texts, 1)
        return [sentence_windows(self.tokenizer, row, self.longest, number) for number, row in numbered]

    def tag(
        self,
        texts: Sequence[Any],
        batches: Callable[[Sequence[Any]], Any],
        run: Callable[[list[SentenceWindow]], Outputs],
    ) -> np.ndarray:
        """Tags of sentences; the model decodes those of one window, of longer ones all windows are decoded together.

        Args:
            texts: Raw texts or lists of words.
            batches: Splits windows, given as lists of the token ids of each, into batches of window numbers.
            run: Returns the model's outputs [b, W, …] by name for some windows.

        Returns:
            float32 [N, K + 2] of the N words of all sentences in order: the probability of each tag, that of the best
            path's tag given the one before, and that tag's number.
        """
        sentences, tokenizer = self.windows(texts), self.tokenizer
        parts = [part for sentence in sentences for part in sentence]
        found: list[Any] = [None] * len(parts)
        for numbers in batches([[part.window.ids] for part in parts]):
            outputs = run([parts[number] for number in numbers])
            for place, number in enumerate(numbers):
                count = parts[number].window.count
                found[number] = {name: np.array(values[place, :count]) for name, values in outputs.items()}
        decode = TagDecoder(tokenizer.transitions, tokenizer.start, tokenizer.end)
        tagged, begin = [np.zeros((0, len(tokenizer.labels) + 2), np.float32)], 0
        for sentence in sentences:
            windows = found[begin : begin + len(sentence)]
            begin += len(sentence)
            if len(windows) == 1:
                columns = (windows[0][name] for name in (PROBABILITIES, PATH_PROBABILITIES, TAG_IDS))
            else:
                probabilities, tag_ids, path = decode(np.concatenate([each[SCORES] for each in windows]))
                columns = (probabilities, path, tag_ids)
            tagged.append(np.column_stack([*columns]).astype(np.float32))
        return np.concatenate(tagged)
