"""Sentences through a runtime that takes windows of ids, and back; NumPy and the standard library only."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from export.device.sentences import SentenceTokenizer, Window
from export.device.tags import TagDecoder
from kmha.errors import InputError

# A raw text, or its words.
SentenceRow = str | bytes | Sequence[str | bytes]
Outputs = Mapping[str, np.ndarray]
PROBABILITIES, TAG_IDS, PATH_PROBABILITIES = "probabilities", "tag_ids", "path_probabilities"
SCORES = "scores"


class Part(NamedTuple):
    """A window with the words of its sentence."""

    window: Window
    words: list[str]


def cut_sentence(
    tokenizer: SentenceTokenizer, row: Any, length: int | None = None, number: int = 1
) -> list[Part]:
    """The windows of a sentence.

    Args:
        tokenizer: The model's.
        row: A raw text, or a list of words.
        length: Most tokens of a window; None takes the longest the model can read.
        number: Of the row, for messages.

    Raises:
        InputError: It is neither, or has too many words.
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
    return [Part(window, words) for window in tokenizer.windows(words, length)]


def window_inputs(
    tokenizer: SentenceTokenizer,
    parts: Sequence[Part],
    length: int | None = None,
    num_words: int | None = None,
) -> dict[str, np.ndarray]:
    """A tagger's inputs of some windows.

    Args:
        tokenizer: The model's.
        parts: The windows.
        length: T; None pads to the longest.
        num_words: W; likewise.

    Returns:
        int32 [b, T], [b, W] and [b, W, 20] by name.
    """
    tokens = length or max(len(window.ids) for window, _ in parts)
    words = num_words or max(1, *(len(window.starts) for window, _ in parts))
    padded = [tokenizer.pad(window, spelt, tokens, words) for window, spelt in parts]
    return {name: np.array([each[name] for each in padded], np.int32) for name in tokenizer.input_names}


def tagged(
    tokenizer: SentenceTokenizer,
    sentences: Sequence[Sequence[Part]],
    batches: Callable[[Sequence[Any]], Any],
    run: Callable[[list[Part]], Outputs],
) -> np.ndarray:
    """What a model says of sentences, as `export.predictors.protocol` wants it.

    A sentence in one window is answered by the model; of a longer one the scores are decoded as a whole.

    Args:
        tokenizer: The model's.
        sentences: Windows of each.
        batches: Gives numbers of windows that go through the model together, of the token ids of each in a list.
        run: Gives a model's outputs [b, W, …] by name for some windows.

    Returns:
        float32 [N, K + 2] of the N words of all sentences one after another: the probability of each tag, that of
        the tag chosen given the one before, and the number of the tag chosen.
    """
    parts = [part for sentence in sentences for part in sentence]
    found: list[Any] = [None] * len(parts)
    for numbers in batches([[part.window.ids] for part in parts]):
        outputs = run([parts[number] for number in numbers])
        for place, number in enumerate(numbers):
            count = parts[number].window.count
            found[number] = {name: np.array(values[place, :count]) for name, values in outputs.items()}
    decode = TagDecoder(tokenizer.transitions, tokenizer.start, tokenizer.end)
    answers, begin = [np.zeros((0, len(tokenizer.labels) + 2), np.float32)], 0
    for sentence in sentences:
        windows = found[begin : begin + len(sentence)]
        begin += len(sentence)
        if len(windows) == 1:
            columns = (windows[0][name] for name in (PROBABILITIES, PATH_PROBABILITIES, TAG_IDS))
        else:
            probabilities, tag_ids, path = decode(np.concatenate([each[SCORES] for each in windows]))
            columns = (probabilities, path, tag_ids)
        answers.append(np.column_stack([*columns]).astype(np.float32))
    return np.concatenate(answers)
