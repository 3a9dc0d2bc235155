"""What a served tagger is asked to warm up: sentences of the sample, as texts, as words and as ids."""

import itertools
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from export.ids import input_names
from export.ids_endpoints import PREDICT_IDS, PREDICT_IDS_XLA
from export.served_ids import compiled_lengths
from export.tagger_serving import EXPLAIN_WORDS, NUM_WORDS, PREDICT_WORDS, TEXT, WORDS
from kmha.bundle import Bundle
from kmha.text.ragged import Ragged
from kmha.text.sentence_limits import MOST_WORDS
from kmha.text.sentence_preprocessor import SentencePreprocessor


def sentence_requests(
    bundle: Bundle, signatures: Iterable[str], sizes: Sequence[int], compiled_sizes: Sequence[int]
) -> Iterator[tuple[str, dict[str, Any]]]:
    """The name of a signature and what it is asked, for each request.

    A sentence is cut to one window: a server that joins requests refuses an explanation of more windows than texts, and
    would not start after a failure.

    Args:
        bundle: Of a tagger, with a sample.
        signatures: Their names.
        sizes: Batch sizes.
        compiled_sizes: Batch sizes that a compiled signature is asked for, each at every length it compiles for.
    """
    sample = _one_window(bundle.preprocessor, [text.split("\n")[:MOST_WORDS] for text in bundle.sample])
    texts = _texts_of_one_window(bundle.preprocessor, [" ".join(words) for words in sample])
    sentences, texts = itertools.cycle(sample), itertools.cycle(texts or [""])
    for name in signatures:
        if name == PREDICT_IDS_XLA:
            for size, length in itertools.product(
                compiled_sizes, compiled_lengths(bundle.preprocessor.max_length)
            ):
                yield name, _ids(bundle, list(itertools.islice(sentences, size)), length)
            continue
        for size in sizes:
            if name == PREDICT_IDS:
                yield name, _ids(bundle, list(itertools.islice(sentences, size)))
            elif name in (PREDICT_WORDS, EXPLAIN_WORDS):
                yield name, _columns(list(itertools.islice(sentences, size)))
            else:
                yield name, {TEXT: [text.encode() for text in itertools.islice(texts, size)]}


def _cut(texts: SentencePreprocessor, sentences: Sequence[Sequence[str]], length: int | None = None) -> Any:
    flat = [word.encode("utf-8", "replace") for words in sentences for word in words]
    lengths = np.array([len(words) for words in sentences], np.int64)
    return texts.cut(Ragged.from_row_lengths(tf.constant(flat, tf.string), lengths), length)


def _first_windows(sentences) -> np.ndarray:
    """The number of each sentence's first window, from which sentence each window is part of."""
    return np.unique(np.asarray(sentences), return_index=True)[1]


def _one_window(texts: SentencePreprocessor, sentences: list[list[str]]) -> list[list[str]]:
    """The sentences, each as far as its first window goes."""
    windows = _cut(texts, sentences).windows
    counts = windows.words.row_lengths().numpy()[_first_windows(windows.sentences)]
    return [words[:count] for words, count in zip(sentences, counts, strict=True)]


def _texts_of_one_window(texts: SentencePreprocessor, given: list[str]) -> list[str]:
    """Those that one window holds once they are split."""
    windows = texts.cut(texts.words(tf.constant(given, tf.string)).words).windows
    return [text for text, count in zip(given, np.bincount(windows.sentences), strict=True) if count == 1]


def _columns(sentences: Sequence[Sequence[str]]) -> dict[str, Any]:
    width = max(map(len, sentences))
    words = [
        [word.encode("utf-8", "replace") for word in row] + [b""] * (width - len(row)) for row in sentences
    ]
    return {
        WORDS: np.array(words, object).reshape(len(sentences), width),
        NUM_WORDS: np.array([len(row) for row in sentences], np.int32),
    }


def _ids(bundle: Bundle, sentences: Sequence[Sequence[str]], length: int | None = None) -> dict[str, Any]:
    """Inputs of ids of the first window of each sentence; with a length, T is that."""
    texts = bundle.preprocessor
    cut = _cut(texts, sentences, length)
    first = texts.chosen(cut, _first_windows(cut.windows.sentences))
    features = texts.pad(first, (length, None))
    return {name: features[name].numpy() for name in input_names(bundle)}
