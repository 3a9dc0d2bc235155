"""Mask filling: the most probable tokens for each [MASK] of a text, from a masked language model."""

from collections.abc import Iterator, Sequence
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from kmha.features import MASK_POSITIONS, PADDING_MASK, TOKEN_IDS
from kmha.inference.batching import (
    BATCH_TOKENS,
    CHUNK_ROWS,
    TEXTS,
    check_texts,
    chunks,
    encode_texts,
    graph_function,
)
from kmha.text.preprocessor import Preprocessor, long_text_preprocessor
from kmha.text.vocabulary import MASK, SPECIAL_TOKENS

SHOWN_TOKENS = 5
NO_MASK = f"no {MASK} in this text"


class MaskFiller:
    """Predicts tokens for each [MASK] of a text, from a `MaskedLanguageModel` and its preprocessor.

    A text longer than the maximum sequence is split into several sequences, as in training.
    """

    def __init__(self, model: keras.Model, preprocessor: Preprocessor):
        self.model, self.preprocessor = model, preprocessor
        self.tokens = preprocessor.vocabulary.tokens
        self.mask_id = preprocessor.vocabulary.id_of(MASK)
        ordinary = np.ones(model.vocabulary_size, np.float32)
        ordinary[[preprocessor.vocabulary.id_of(token) for token in SPECIAL_TOKENS]] = 0
        ordinary[len(self.tokens) :] = 0
        self._ordinary = tf.constant(ordinary)
        self._tokenize = graph_function(long_text_preprocessor(preprocessor).tokenize, TEXTS)
        features = dict.fromkeys(
            (TOKEN_IDS, PADDING_MASK, MASK_POSITIONS), tf.TensorSpec([None, None], tf.int32)
        )
        self._best = graph_function(self._most_probable, features, tf.TensorSpec([], tf.int32))

    def _most_probable(self, features, number):
        probabilities = self.model.probabilities(self.model(features, training=False))
        return tf.math.top_k(probabilities * self._ordinary, number)

    def predict(self, texts: Sequence[Any], top: int = SHOWN_TOKENS) -> list[dict[str, Any]]:
        """For each text {"masks": for each [MASK] {"token", "probability", "probabilities": {token: p}}}.

        The `top` tokens (0: all) are best first. A text without [MASK] has an empty list and a "note".
        """
        check_texts(texts)
        encode_texts(texts, 0)
        sequences, masks = self._sequences(texts)
        top = min(top or len(self.tokens), int(self._ordinary.numpy().sum()))
        found: list[list[dict[str, Any]]] = [[] for _ in texts]
        for batch in _batches([len(ids) for _, ids in sequences]):
            rows = [sequences[index] for index in batch]
            best = self._best(self._features([ids for _, ids in rows]), top)
            scores, indices = best.values.numpy(), best.indices.numpy()
            for row, (text, ids) in enumerate(rows):
                for place in range(ids.count(self.mask_id)):
                    found[text].append(self._prediction(scores[row, place], indices[row, place]))
        return [
            {"masks": predictions} if masks[text] else {"masks": [], "note": NO_MASK}
            for text, predictions in enumerate(found)
        ]

    def predict_stream(self, texts: Iterator[Any], top: int = SHOWN_TOKENS) -> Iterator[dict[str, Any]]:
        """Yields the predictions of a stream of texts in order, in constant memory."""
        for chunk in chunks(texts, CHUNK_ROWS):
            yield from self.predict(chunk, top)

    def _sequences(self, texts: Sequence[Any]) -> tuple[list[tuple[int, list[int]]], list[int]]:
        """The sequences that contain [MASK], each with the index of its text, and the number of masks of each text."""
        segments, counts = [], []
        for text in texts:
            # Split before tokenizing, which would treat the brackets as punctuation.
            encoded = text if isinstance(text, bytes) else text.encode("utf-8", "replace")
            between = encoded.split(MASK.encode())
            counts.append(len(between) - 1)
            segments += between if len(between) > 1 else []
        tokenized = iter(self._tokenize(tf.constant(segments, tf.string)).to_list() if segments else [])
        sequences = []
        room = self.preprocessor.max_length - 2
        start, end = self.preprocessor.start_id, self.preprocessor.end_id
        for number, count in enumerate(counts):
            if not count:
                continue
            ids = list(next(tokenized))
            for _ in range(count):
                ids += [self.mask_id, *next(tokenized)]
            pieces = (ids[first : first + room] for first in range(0, len(ids), room))
            sequences += [(number, [start, *piece, end]) for piece in pieces if self.mask_id in piece]
        return sequences, counts

    def _features(self, sequences: list[list[int]]) -> dict[str, np.ndarray]:
        length = max(map(len, sequences))
        slots = max(ids.count(self.mask_id) for ids in sequences)
        token_ids = np.full((len(sequences), length), self.preprocessor.padding_id, np.int32)
        positions = np.zeros((len(sequences), slots), np.int32)
        for row, ids in enumerate(sequences):
            token_ids[row, : len(ids)] = ids
            places = np.flatnonzero(token_ids[row] == self.mask_id)
            positions[row, : len(places)] = places
        mask = np.arange(length) < np.array([[len(ids)] for ids in sequences])
        return {TOKEN_IDS: token_ids, PADDING_MASK: mask.astype(np.int32), MASK_POSITIONS: positions}

    def _prediction(self, probabilities: np.ndarray, ids: np.ndarray) -> dict[str, Any]:
        shown = {self.tokens[i]: float(p) for i, p in zip(ids.tolist(), probabilities.tolist(), strict=True)}
        token = next(iter(shown))
        return {"token": token, "probability": shown[token], "probabilities": shown}


def _batches(lengths: list[int]) -> Iterator[list[int]]:
    """Groups rows in their order into batches of at most `BATCH_TOKENS` padded tokens."""
    batch: list[int] = []
    longest = 0
    for row, length in enumerate(lengths):
        if batch and max(longest, length) * (len(batch) + 1) > BATCH_TOKENS:
            yield batch
            batch, longest = [], 0
        batch.append(row)
        longest = max(longest, length)
    if batch:
        yield batch
