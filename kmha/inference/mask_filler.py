"""What a masked language model answers: the most probable tokens for each [MASK] of a text."""

from collections.abc import Iterator, Sequence
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from kmha.errors import InputError
from kmha.features import MASK_POSITIONS, PADDING_MASK, TOKEN_IDS
from kmha.inference.batching import BATCH_TOKENS, CHUNK_ROWS, chunks, encode_texts
from kmha.text.preprocessor import Preprocessor, long_text_preprocessor
from kmha.text.vocabulary import MASK, SPECIAL_TOKENS

SHOWN_TOKENS = 5
NO_MASK = f"no {MASK} in this text"


class MaskFiller:
    """Tells what may stand for each [MASK] of a text.

    A text longer than a sequence may be is cut into as many as it takes, as in training.

    Args:
        model: A built `MaskedLanguageModel`.
        preprocessor: The one it was trained with.
    """

    def __init__(self, model: keras.Model, preprocessor: Preprocessor):
        self.model, self.preprocessor = model, preprocessor
        self.tokens = preprocessor.vocabulary.tokens
        self.mask_id = preprocessor.vocabulary.id_of(MASK)
        ordinary = np.ones(model.vocabulary_size, np.float32)
        ordinary[[preprocessor.vocabulary.id_of(token) for token in SPECIAL_TOKENS]] = 0
        ordinary[len(self.tokens) :] = 0
        self._ordinary = tf.constant(ordinary)
        reader = long_text_preprocessor(preprocessor)
        self._cut = tf.function(
            reader.tokenize, input_signature=[tf.TensorSpec([None], tf.string)], autograph=False
        )
        ids = tf.TensorSpec([None, None], tf.int32)
        self._best = tf.function(
            self._most_probable,
            input_signature=[
                dict.fromkeys((TOKEN_IDS, PADDING_MASK, MASK_POSITIONS), ids),
                tf.TensorSpec([], tf.int32),
            ],
            autograph=False,
        )

    def _most_probable(self, features, number):
        probabilities = self.model.probabilities(self.model(features, training=False))
        return tf.math.top_k(probabilities * self._ordinary, number)

    def predict(self, texts: Sequence[Any], top: int = SHOWN_TOKENS) -> list[dict[str, Any]]:
        """For each text {"masks": of each [MASK] in it {"token", "probability", "probabilities": {token: p}}}.

        A text without one has an empty list and says so under "note".

        Args:
            texts: Texts; invalid UTF-8 is read as replacement characters.
            top: Tokens to show for each [MASK], best first; 0: all.

        Raises:
            InputError: They are no sequence of texts.
        """
        if isinstance(texts, str | bytes):
            raise InputError("texts must be a list of strings, got one string")
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
                    found[text].append(self._answer(scores[row, place], indices[row, place]))
        return [
            {"masks": answers} if masks[text] else {"masks": [], "note": NO_MASK}
            for text, answers in enumerate(found)
        ]

    def predict_stream(self, texts: Iterator[Any], top: int = SHOWN_TOKENS) -> Iterator[dict[str, Any]]:
        """The answers to a stream of texts, in order, without holding them all."""
        for chunk in chunks(texts, CHUNK_ROWS):
            yield from self.predict(chunk, top)

    def _sequences(self, texts: Sequence[Any]) -> tuple[list[tuple[int, list[int]]], list[int]]:
        """The sequences that hold a [MASK], each with the number of its text, and how many masks each text has."""
        parts, counts = [], []
        for text in texts:
            # Cut before tokenizing, which would take the brackets for punctuation.
            between = (text if isinstance(text, bytes) else text.encode("utf-8", "replace")).split(
                MASK.encode()
            )
            counts.append(len(between) - 1)
            parts += between if len(between) > 1 else []
        cut = iter(self._cut(tf.constant(parts, tf.string)).to_list() if parts else [])
        sequences = []
        room = self.preprocessor.max_length - 2
        for number, count in enumerate(counts):
            if not count:
                continue
            ids = list(next(cut))
            for _ in range(count):
                ids += [self.mask_id, *next(cut)]
            pieces = (ids[first : first + room] for first in range(0, len(ids), room))
            ends = self.preprocessor.start_id, self.preprocessor.end_id
            sequences += [(number, [ends[0], *piece, ends[1]]) for piece in pieces if self.mask_id in piece]
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

    def _answer(self, probabilities: np.ndarray, ids: np.ndarray) -> dict[str, Any]:
        shown = {self.tokens[i]: float(p) for i, p in zip(ids.tolist(), probabilities.tolist(), strict=True)}
        token = next(iter(shown))
        return {"token": token, "probability": shown[token], "probabilities": shown}


def _batches(lengths: list[int]) -> Iterator[list[int]]:
    """Rows in their order, so many that they have at most 8,192 padded tokens."""
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
