"""Pairs of strings to features, each text tokenized in one or several ways (granularities)."""

from collections.abc import Mapping

import tensorflow as tf

from kmha.errors import InputError
from kmha.features import SIDES, TextInputs, input_names
from kmha.text.preprocessor import Preprocessor


class PairPreprocessor(tf.Module):
    """Turns two texts into token ids, for each granularity.

    Args:
        parts: A preprocessor by granularity, such as {"char": …, "wordpiece": …}, in the order of the model.

    Raises:
        InputError: `parts` is empty.
    """

    def __init__(self, parts: Mapping[str, Preprocessor]):
        super().__init__(name="pair_preprocessor")
        if not parts:
            raise InputError("granularities must be one or more, got none")
        # Lists: tf.Module would wrap and sort a dictionary.
        self.granularities = tuple(parts)
        self.parts = list(parts.values())
        self.num_texts = 2
        self.max_bytes = max(part.max_bytes for part in self.parts)
        self.inputs = [
            TextInputs(*input_names(side, name if len(self.parts) > 1 else ""), index, part)
            for name, part in zip(self.granularities, self.parts, strict=True)
            for index, side in enumerate(SIDES)
        ]

    def encode(self, texts_a, texts_b, valid_utf8: bool = False) -> tuple:
        """Token ids with special tokens of texts, string [B]: ragged int32 [B, None] for each of `inputs`."""
        return tuple(
            given.part.add_special_tokens(given.part.tokenize((texts_a, texts_b)[given.text], valid_utf8))
            for given in self.inputs
        )

    def pad(self, sequences, lengths=None) -> dict:
        """Features of an `encode` result.

        Args:
            sequences: Ragged int32 [B, None] for each of `inputs`.
            lengths: T of each input; None: the longest sequence of the batch.

        Returns:
            token_ids_a, padding_mask_a, token_ids_b, padding_mask_b, int32 [B, T]; with several granularities one such
            set for each, with its name as prefix.
        """
        features = {}
        for index, given in enumerate(self.inputs):
            length = None if lengths is None else lengths[index]
            features |= given.part.pad_sequences(sequences[index], given.ids, given.mask, length)
        return features

    def __call__(self, texts_a, texts_b, lengths=None):
        """Features int32 [B, T] of texts, string [B] each."""
        return self.pad(self.encode(texts_a, texts_b), lengths)

    def get_config(self) -> dict:
        """By granularity, the constructor's arguments of its part without the vocabulary, as JSON values."""
        return {name: part.get_config() for name, part in zip(self.granularities, self.parts, strict=True)}
