"""Encodes two texts in one tokenization to two vectors, with optional cross-attention."""

import dataclasses
import typing
from typing import Literal

import keras
from keras import ops

from kmha.config import EncoderConfig
from kmha.errors import InputError
from kmha.layers.comparison import MARKS, SHARES, TokenOverlap
from kmha.layers.encoder_block import CrossAttentionBlock
from kmha.layers.pooling import MODES, Pooling
from kmha.models.encoder import SPECIAL_FROM_UNKNOWN, TransformerEncoder, block_options, layer_norm

Form = Literal["cross", "bi", "joint"]
# Names of attention weights: self-attention of A and B, cross-attention, and attention of the joint sequence.
A_TO_A, B_TO_B, A_TO_B, B_TO_A = "attention_a", "attention_b", "attention_a_to_b", "attention_b_to_a"
PAIR = "attention"


@keras.saving.register_keras_serializable(package="kmha")
class PairEncoder(keras.layers.Layer):
    """Encodes two texts to a vector each.

    Args:
        config: Configuration of the encoder. The joint form needs two segments and positions for both texts.
        form: "cross": each text is encoded separately, followed by rounds of cross-attention; "bi": each text is
            encoded separately; "joint": both texts as one sequence, [CLS] a [SEP] b [SEP], as in BERT.
        rounds: Rounds of cross-attention, in the cross form.
        pooling: "cls", "mean" or "max".
        overlap: Whether to use features of token overlap; not in the bi form.
        share_weights: Whether both texts use the same encoder and rounds.

    Call:
        ids_a: int32 [B, T], between [CLS] and [SEP].
        mask_a: int32 [B, T]; 1 = a real token.
        ids_b: int32 [B, S].
        mask_b: int32 [B, S].
        return_attention_weights: Whether to return attention weights.
        Returns the vectors of A and B, float [B, D] each (in the joint form twice the common one); with overlap the
        shares of `TokenOverlap`, float32 [B, 8] each, else None twice; and attention weights by name, on request lists
        of float32 [B, N, T, S]; in the joint form for all T + S - 1 positions, the padding of A included.

    Raises:
        ValueError: T + S - 1 is larger than config.max_length in the joint form.
        InputError: The form or pooling is unknown, overlap is on in the bi form, the number of round_sizes is wrong, or
            the joint form has no segments, rotary positions, or separate weights for each text.
    """

    def __init__(
        self,
        config: EncoderConfig,
        form: Form = "cross",
        rounds: int = 1,
        pooling: str = "mean",
        overlap: bool = True,
        share_weights: bool = True,
        **kwargs,
    ):
        super().__init__(**kwargs)
        _check(config, form, rounds, pooling, overlap, share_weights)
        self.config = config
        self.form = form
        self.rounds = rounds
        self.overlap = overlap
        self.share_weights = share_weights
        self.encoder_a = self._encoder("encoder" if share_weights else "encoder_a")
        self.encoder_b = self.encoder_a if share_weights else self._encoder("encoder_b")
        places = range(rounds if form == "cross" else 0)
        self.rounds_a = [self._round(i, "" if share_weights else "_a") for i in places]
        self.rounds_b = self.rounds_a if share_weights else [self._round(i, "_b") for i in places]
        # Pre-norm vectors are normalized after pooling, so that important tokens can have larger weights.
        self.norm = layer_norm(self, config, "norm") if config.norm == "pre" else None
        self.pooling = Pooling(pooling, name="pooling", dtype=self.dtype_policy)
        if overlap:
            first_id = config.unknown_id + SPECIAL_FROM_UNKNOWN
            self.token_overlap = TokenOverlap(
                config.vocabulary_size, first_id, name="overlap", dtype="float32"
            )
            self.mark = keras.layers.Dense(
                config.hidden_dim, use_bias=False, name="mark", dtype=self.dtype_policy
            )

    def _encoder(self, name: str) -> TransformerEncoder:
        return TransformerEncoder(self.config, final_norm=False, name=name, dtype=self.dtype_policy)

    def _round(self, index: int, side: str) -> CrossAttentionBlock:
        options = block_options(self.config, self.config.round_size(index))
        return CrossAttentionBlock(**options, name=f"round_{index}{side}", dtype=self.dtype_policy)

    def build(self, ids_a_shape, mask_a_shape=None, ids_b_shape=None, mask_b_shape=None):
        """Builds all parts for token ids [B, T]."""
        hidden_shape = (None, None, self.config.hidden_dim)
        for encoder in dict.fromkeys((self.encoder_a, self.encoder_b)):
            encoder.build({"token_ids": ids_a_shape})
        for block in dict.fromkeys((*self.rounds_a, *self.rounds_b)):
            block.build(hidden_shape, hidden_shape)
        if self.norm is not None:
            self.norm.build((None, self.config.hidden_dim))
        self.pooling.build(None)
        if self.overlap:
            self.token_overlap.build()
            self.mark.build((None, None, MARKS))

    @property
    def encoders(self) -> list[TransformerEncoder]:
        """One encoder, or two if each text has its own."""
        return [self.encoder_a] if self.share_weights else [self.encoder_a, self.encoder_b]

    @property
    def num_shares(self) -> int:
        """Size of the shares of one text."""
        return SHARES if self.overlap else 0

    def call(self, ids_a, mask_a, ids_b, mask_b, return_attention_weights=False, training=None):
        """See the class."""
        options = {"return_attention_weights": return_attention_weights, "training": training}
        if self.form == "joint":
            return self._joint(ids_a, mask_a, ids_b, mask_b, **options)
        a, weights_a = self.encode(ids_a, mask_a, "a", **options)
        b, weights_b = self.encode(ids_b, mask_b, "b", **options)
        *result, weights = self.compare(ids_a, mask_a, a, ids_b, mask_b, b, **options)
        return *result, {A_TO_A: weights_a, B_TO_B: weights_b, **weights}

    def encode(self, ids, mask, side: str, return_attention_weights=False, training=None):
        """Encodes the text of a side, ids and mask int32 [B, T]: the result of `TransformerEncoder.attend`."""
        encoder = self.encoder_a if side == "a" else self.encoder_b
        x = encoder.embed(ids, training=training)
        return encoder.attend(x, mask, return_attention_weights, training)

    def compare(self, ids_a, mask_a, a, ids_b, mask_b, b, return_attention_weights=False, training=None):
        """The result of `call` from two texts encoded by `encode`, float [B, T, D] and [B, S, D]."""
        marks_a, marks_b, shares_a, shares_b = self._overlap(ids_a, mask_a, ids_b, mask_b)
        if marks_a is not None:
            a, b = a + self.mark(marks_a), b + self.mark(marks_b)
        to_b, to_a = [], []
        for round_a, round_b in zip(self.rounds_a, self.rounds_b, strict=True):
            options = {"return_attention_weights": return_attention_weights, "training": training}
            # Both texts attend to the other one as it was before the round.
            a, b = (
                round_a(a, b, attention_mask=mask_b, **options),
                round_b(b, a, attention_mask=mask_a, **options),
            )
            if return_attention_weights:
                (a, weights_a), (b, weights_b) = a, b
                to_b.append(weights_a)
                to_a.append(weights_b)
        weights = {A_TO_B: to_b, B_TO_A: to_a} if to_b else {}
        return self.pool(a, mask_a), self.pool(b, mask_b), shares_a, shares_b, weights

    def pool(self, x, mask):
        """The vector float [B, D] of a text, from its tokens' vectors float [B, T, D]."""
        pooled = self.pooling(x, padding_mask=mask)
        return pooled if self.norm is None else self.norm(pooled)

    def _joint(self, ids_a, mask_a, ids_b, mask_b, return_attention_weights, training):
        self._check_lengths(ids_a.shape[1], ids_b.shape[1])
        marks_a, marks_b, shares_a, shares_b = self._overlap(ids_a, mask_a, ids_b, mask_b)
        encoder = self.encoder_a
        a = encoder.embed(ids_a, ops.zeros_like(ids_a), training=training)
        # The padding of A stays between the texts, masked, and is not counted in the positions of B. The [CLS] of B is
        # at the position of A's [SEP] and is removed after embedding: it only starts the n-grams of B.
        last_of_a = ops.maximum(ops.cast(ops.sum(mask_a, axis=1), "int32"), 1) - 1
        b = encoder.embed(ids_b, ops.ones_like(ids_b), last_of_a, training=training)
        if marks_a is not None:
            a, b = a + self.mark(marks_a), b + self.mark(marks_b)
        mask = ops.concatenate([mask_a, mask_b[:, 1:]], axis=1)
        x = ops.concatenate([a, b[:, 1:]], axis=1)
        x, weights = encoder.attend(x, mask, return_attention_weights, training)
        pooled = self.pool(x, mask)
        return pooled, pooled, shares_a, shares_b, {PAIR: weights}

    def _check_lengths(self, length_a: int | None, length_b: int | None) -> None:
        if self.config.positions == "none" or length_a is None or length_b is None:
            return
        length = length_a + length_b - 1
        if length > self.config.max_length:
            raise ValueError(
                f"both texts together must be at most max_length {self.config.max_length} long, got {length}"
            )

    def shares(self, ids_a, mask_a, ids_b, mask_b):
        """The shares of `TokenOverlap` for A and B, float32 [B, S] each; only with overlap."""
        return self.token_overlap(ids_a, ids_b, mask_a, mask_b)[2:]

    def _overlap(self, ids_a, mask_a, ids_b, mask_b):
        if not self.overlap:
            return None, None, None, None
        return self.token_overlap(ids_a, ids_b, mask_a, mask_b)

    def get_config(self):
        """The constructor's arguments."""
        return {
            **super().get_config(),
            "config": dataclasses.asdict(self.config),
            "form": self.form,
            "rounds": self.rounds,
            "pooling": self.pooling.mode,
            "overlap": self.overlap,
            "share_weights": self.share_weights,
        }

    @classmethod
    def from_config(cls, config):
        """Creates the layer from `get_config`."""
        return cls(**{**config, "config": EncoderConfig(**config["config"])})


def _check(
    config: EncoderConfig, form: str, rounds: int, pooling: str, overlap: bool, share_weights: bool
) -> None:
    for name, value, known in (("form", form, typing.get_args(Form)), ("pooling", pooling, MODES)):
        if value not in known:
            raise InputError(f"{name} must be one of {', '.join(known)}, got {value!r}")
    sizes = len(config.round_sizes)
    if sizes not in (0, rounds if form == "cross" else 0):
        raise InputError(
            f"round_sizes must be one for each of the {rounds} rounds of the cross form, got {sizes}"
        )
    if form == "bi" and overlap:
        raise InputError(
            "overlap must be off in the bi form, whose texts do not attend to each other, got on"
        )
    if form != "joint":
        return
    if config.num_segments != 2:
        raise InputError(f"num_segments must be 2 in the joint form, got {config.num_segments}")
    if config.positions == "rotary":
        raise InputError("positions must be learned, sinusoidal or none in the joint form, got rotary")
    if not share_weights:
        raise InputError("share_weights must be on in the joint form, which has one encoder, got off")
