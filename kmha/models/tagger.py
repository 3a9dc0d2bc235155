"""Sequence tagging: one tag for each word of a sentence."""

import dataclasses
from typing import Literal

import keras
from keras import ops

from kmha.config import EncoderConfig
from kmha.features import CHARACTER_IDS, PADDING_MASK, SEGMENT_IDS, TOKEN_IDS, WORD_MASK, WORD_STARTS
from kmha.layers.crf import CRF, Potentials
from kmha.layers.dropout import Dropout
from kmha.layers.linear_words import LinearWords
from kmha.layers.pooling import WORD_MODES, first_token_weights, mean_token_weights
from kmha.layers.words import LocalContext, SpellingEncoder
from kmha.models.encoder import SingleEncoder, TransformerEncoder
from kmha.tags import Scheme

Head = Literal["crf", "softmax"]
WordPooling = Literal["first", "mean"]


@keras.saving.register_keras_serializable(package="kmha")
class SequenceTagger(SingleEncoder, keras.Model):
    """Encodes a sentence and scores each tag for each word; a CRF scores the transitions.

    Args:
        encoder: Shape and regularization of the encoder.
        num_labels: Number of tags.
        scheme: Scheme of the tags; stored only.
        allowed: 0 or 1 [K, K], whether the row's tag may be followed by the column's tag; None: all.
        allowed_start: 0 or 1 [K], whether a sentence may start with the tag; None: all.
        allowed_end: 0 or 1 [K], whether a sentence may end with the tag; None: all.
        head: "crf" trains transition scores, "softmax" uses only the allowed transitions.
        word_pooling: "first" token or "mean" of the tokens of a word.
        characters: Rows of the character table for words' spelling; 0: no character features.
        character_dim: Size of the vector of a word's spelling.
        context_width: Width of a convolution over tokens before the encoder; 0: none.
        dropout: Dropout rate of words' vectors.
        linear_rows: Known features of a linear chain whose scores are added to the head's; 0: none.
        linear_slots: As in `LinearWords`.

    Call:
        features: token_ids, segment_ids, padding_mask, int32 [B, T] each; word_starts, position of each word's first
            token (0 = no word), and word_mask (1 = to be tagged; those words come first), int32 [B, W] each; with
            characters also character_ids int32 [B, W, L].
        return_attention_weights: Whether to return the weights of every block too.
        Returns the scores float32 [B, W, K] of each word's tags (zeros without a word), and with the weights also a
        list of float32 [B, N, T, T].
    Source: Lample et al. 2016, arXiv:1603.01360.
    """

    def __init__(
        self,
        encoder: EncoderConfig,
        num_labels: int,
        scheme: Scheme = "none",
        allowed=None,
        allowed_start=None,
        allowed_end=None,
        head: Head = "crf",
        word_pooling: WordPooling = "first",
        characters: int = 0,
        character_dim: int = 64,
        context_width: int = 0,
        dropout: float = 0.1,
        linear_rows: int = 0,
        linear_slots: int = 0,
        **kwargs,
    ):
        super().__init__(**kwargs)
        if word_pooling not in WORD_MODES:
            raise ValueError(f"word_pooling must be one of {WORD_MODES}, got {word_pooling!r}")
        self.encoder_config = encoder
        self.num_labels = num_labels
        self.scheme = scheme
        self.head_kind, self.word_pooling = head, word_pooling
        self.characters, self.character_dim = characters, character_dim
        self.context_width, self.dropout = context_width, dropout
        self.encoder = TransformerEncoder(encoder, name="encoder", dtype=self.dtype_policy)
        self.spelling = self.spelling_in = None
        if characters:
            self.spelling = SpellingEncoder(
                characters, character_dim, dropout=encoder.dropout, name="spelling", dtype=self.dtype_policy
            )
            # Added to the encoder's input, so that attention uses the spelling of other words too.
            self.spelling_in = keras.layers.Dense(
                encoder.hidden_dim, use_bias=False, name="spelling_in", dtype=self.dtype_policy
            )
        self.context = (
            LocalContext(context_width, encoder.dropout, name="context", dtype=self.dtype_policy)
            if context_width
            else None
        )
        self.word_dropout = Dropout(dropout, name="word_dropout", dtype=self.dtype_policy)
        # float32 whatever the policy: exports are verified to 1e-4.
        self.head = keras.layers.Dense(num_labels, name="head", dtype="float32")
        self.linear = (
            LinearWords(num_labels, linear_rows, linear_slots, name="linear") if linear_rows else None
        )
        self.crf = CRF(num_labels, allowed, allowed_start, allowed_end, name="crf")
        self.crf.trainable = head == "crf"

    def build(self, features_shape=None):
        """Builds all parts."""
        tokens, hidden = (None, None), self.encoder_config.hidden_dim
        self.encoder.build({TOKEN_IDS: tokens, SEGMENT_IDS: tokens, PADDING_MASK: tokens})
        width = hidden
        if self.spelling is not None and self.spelling_in is not None:
            self.spelling.build((None, None, None))
            self.spelling_in.build((None, None, self.character_dim))
            width += self.character_dim
        if self.context is not None:
            self.context.build((None, None, hidden))
        self.word_dropout.build((None, None, width))
        self.head.build((None, None, width))
        if self.linear is not None:
            self.linear.build(tokens)
        self.crf.build((None, None, self.num_labels))

    def call(self, features, return_attention_weights=False, training=None):
        """See the class."""
        starts, mask = features[WORD_STARTS], features[PADDING_MASK]
        x, weights, spelling = self._attended(features, return_attention_weights, training)
        mean = self.word_pooling == "mean"
        tokens = mean_token_weights(starts, mask) if mean else first_token_weights(starts, ops.shape(mask)[1])
        words = ops.matmul(ops.cast(tokens, x.dtype), x)  # [B, W, D]
        if spelling is not None:
            words = ops.concatenate([words, ops.cast(spelling, words.dtype)], axis=-1)
        scores = self.head(self.word_dropout(words, training=training))
        if self.linear is not None and not training:
            # The encoder is trained alone: the linear path was fitted on the same rows.
            scores = scores + self.linear(features[TOKEN_IDS], starts, features.get(CHARACTER_IDS))
        scores *= ops.cast(ops.expand_dims(features[WORD_MASK], -1), scores.dtype)
        return (scores, weights) if return_attention_weights else scores

    def _attended(self, features, with_weights, training):
        x, spelling = self.embed(features, training=training)
        if self.context is not None:
            x = self.context(x, features[PADDING_MASK], training=training)
        return *self.encoder.attend(x, features[PADDING_MASK], with_weights, training), spelling

    def encode_tokens(self, features):
        """The vectors of tokens, float [B, T, D], with local context and spelling."""
        return self._attended(features, False, False)[0]

    def embed(self, features, training=None):
        """The encoder's input before the convolution, and the spellings of words float [B, W, C], None without.

        The input is float [B, T, D], with the spelling of each word added to its first token.
        """
        x = self.encoder.embed(features[TOKEN_IDS], features.get(SEGMENT_IDS), training=training)
        if self.spelling is None or self.spelling_in is None:
            return x, None
        spelling = self.spelling(features[CHARACTER_IDS], training=training)
        firsts = first_token_weights(features[WORD_STARTS], ops.shape(x)[1])  # [B, W, T]
        placed = ops.matmul(ops.transpose(ops.cast(firsts, x.dtype), (0, 2, 1)), self.spelling_in(spelling))
        return x + placed, spelling

    def potentials(self, scores, word_mask) -> Potentials:
        """CRF potentials of scores float32 [B, W, K]; word_mask int32 [B, W], 1 = a word to tag."""
        return self.crf(scores, word_mask)

    @property
    def additions(self) -> list:
        """Kernels of spelling and local context."""
        kernels = [] if self.spelling_in is None else [self.spelling_in.kernel]
        return kernels if self.context is None else [*kernels, self.context.convolution.kernel]

    def get_config(self):
        """The constructor's arguments."""
        return {
            **super().get_config(),
            "encoder": dataclasses.asdict(self.encoder_config),
            "num_labels": self.num_labels,
            "scheme": self.scheme,
            "allowed": self.crf.allowed,
            "allowed_start": self.crf.allowed_start,
            "allowed_end": self.crf.allowed_end,
            "head": self.head_kind,
            "word_pooling": self.word_pooling,
            "characters": self.characters,
            "character_dim": self.character_dim,
            "context_width": self.context_width,
            "dropout": self.dropout,
            "linear_rows": self.linear.rows if self.linear else 0,
            "linear_slots": self.linear.slots if self.linear else 0,
        }
