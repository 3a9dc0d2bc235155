"""Splits sentences into windows of token ids and decodes their tags; NumPy and the standard library only."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from export.device.sentences import SentenceTokenizer, Window
from export.device.tags import TagDecoder
from export.names import PATH_PROBABILITIES, PROBABILITIES, SCORES, TAG_IDS
from kmha.errors import InputError

# A raw text, or its words.
SentenceRow = str | bytes | Sequence[str | bytes]
Outputs = Mapping[str, np.ndarray]


class SentenceWindow(NamedTuple):
    """A window and the words of its sentence."""

    window: Window
    words: list[str]


def sentence_windows(
    tokenizer: SentenceTokenizer, row: Any, length: int | None = None, number: int = 1
) -> list[SentenceWindow]:
    """Splits a sentence into windows.

    Args:
        tokenizer: The model's tokenizer.
        row: A raw text, or a list of words.
        length: Most tokens of a window; None: the model's longest.
        number: The row's number, for messages.

    Raises:
        InputError: The row is neither a text nor a list of words, or has too many words.
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
    """A tagger's inputs for some windows.

    Args:
        tokenizer: The model's tokenizer.
        parts: The windows.
        length: T; None pads to the longest window.
        num_words: W; likewise.

    Returns:
        int32 [b, T], [b, W] and [b, W, 20] by name.
    """
    tokens = length or max(len(window.ids) for window, _ in parts)
    words = num_words or max(1, *(len(window.starts) for window, _ in parts))
    padded = [tokenizer.pad(window, sentence, tokens, words) for window, sentence in parts]
    return {name: np.array([each[name] for each in padded], np.int32) for name in tokenizer.input_names}


def tag_sentences(
    tokenizer: SentenceTokenizer,
    sentences: Sequence[Sequence[SentenceWindow]],
    batches: Callable[[Sequence[Any]], Any],
    run: Callable[[list[SentenceWindow]], Outputs],
) -> np.ndarray:
    """Predictions for sentences, as `export.predictors.protocol.Predictor.probabilities` returns them.

    The model decodes a sentence of one window; of a longer one the scores of all windows are decoded together.

    Args:
        tokenizer: The model's tokenizer.
        sentences: The windows of each sentence.
        batches: Splits windows, given as lists of the token ids of each, into batches of window numbers.
        run: Returns the model's outputs [b, W, …] by name for some windows.

    Returns:
        float32 [N, K + 2] of the N words of all sentences in order: the probability of each tag, that of the best
        path's tag given the one before, and that tag's number.
    """
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
