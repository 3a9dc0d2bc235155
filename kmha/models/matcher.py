"""Text matching: a score or a class for two texts."""

import dataclasses
import typing
from typing import Literal

import keras
from keras import ops

from kmha.config import EncoderConfig
from kmha.errors import InputError
from kmha.features import SIDES, input_names, swap_sides
from kmha.layers.comparison import Standardise, comparison_features, unit_vectors
from kmha.layers.dropout import Dropout
from kmha.layers.linear_pairs import PARTS, LinearPairs
from kmha.layers.overlap_network import OverlapNetwork
from kmha.models.encoder import SPECIAL_FROM_UNKNOWN, TransformerEncoder, copy_of
from kmha.models.pair_encoder import Form, PairEncoder

Target = Literal["binary", "classes", "graded"]


def _check_arguments(
    encoders, num_labels: int, target: str, form: str, rounds: int, symmetric, share_weights
):
    """Raises InputError if the arguments of `TextMatcher` contradict each other."""
    if not encoders:
        raise InputError("encoders must be one granularity or more, got none")
    if target not in typing.get_args(Target):
        raise InputError(f"target must be one of {', '.join(typing.get_args(Target))}, got {target!r}")
    if target != "classes" and num_labels != 1:
        raise InputError(f"num_labels must be 1 for a {target} target, got {num_labels}")
    if target == "classes" and num_labels < 2:
        raise InputError(f"num_labels must be at least 2 for a classes target, got {num_labels}")
    if form == "bi" and target == "classes":
        raise InputError("target must be binary or graded in the bi form, which has one score, got classes")
    if not 0 <= rounds <= 4:
        raise InputError(f"rounds must be from 0 to 4, got {rounds}")
    if symmetric and not share_weights:
        raise InputError("share_weights must be on in a symmetric matcher, got off")


# Cosines are in [-1, 1]; a probability needs a slope steeper than 1.
COSINE_SCALE = 10.0


@keras.saving.register_keras_serializable(package="kmha")
class TextMatcher(keras.Model):
    """Compares two texts by features of their vectors: a, b, |a - b| and a · b, for each granularity.

    Args:
        encoders: Shape of the encoder by granularity ("wordpiece", "char", …): each tokenization has its own encoders,
            rounds and vectors, which are concatenated at the end.
        num_labels: Number of outputs: 1, or the number of classes.
        target: "binary": probability of a match; "classes": one of several; "graded": a number.
        form: "cross", "bi" or "joint"; see `PairEncoder`. In the bi form the score is computed from the cosine.
        rounds: Rounds of cross-attention, in the cross form. Without rounds the features are those of unit vectors, so
            that the sum of a · b is the cosine.
        pooling: "cls", "mean" or "max".
        symmetric: Whether score(a, b) = score(b, a).
        overlap: Whether to use features of token overlap.
        share_weights: Whether both texts use the same encoder and rounds.
        dropout: Dropout rate of the concatenated features.
        linear_rows: Known pairs of tokens of a linear model on the first granularity, whose logits are added to the
            head's; see `LinearPairs`. None: no linear model.
        linear_slots: As in `LinearPairs`.
        linear_trigrams: `trigrams` of `LinearPairs`.
        overlap_units: Hidden units of a network on the overlap features and on the parts of the linear model; see
            `OverlapNetwork`. 0: no network.

    Call:
        features: token_ids_a, padding_mask_a int32 [B, T] and token_ids_b, padding_mask_b int32 [B, S]; with several
            granularities one such set for each, with its name as prefix: char_token_ids_a.
        return_attention_weights: Whether to return the weights of every block too.
        Returns the logits float32 [B, C] (scores for graded pairs), and with the weights also a dictionary of lists of
        float32 [B, N, T, S].

    Raises:
        InputError: The arguments contradict each other.
    Source: the features: Mou et al. 2016, arXiv:1512.08422; co-attention: Lu et al. 2019, arXiv:1908.02265.
    """

    def __init__(
        self,
        encoders: dict[str, EncoderConfig],
        num_labels: int = 1,
        target: Target = "binary",
        form: Form = "cross",
        rounds: int = 1,
        pooling: str = "mean",
        symmetric: bool = False,
        overlap: bool = True,
        share_weights: bool = True,
        dropout: float = 0.1,
        linear_rows: int | None = None,
        linear_slots: int = 1,
        linear_trigrams: int = 0,
        overlap_units: int = 0,
        **kwargs,
    ):
        super().__init__(**kwargs)
        _check_arguments(encoders, num_labels, target, form, rounds, symmetric, share_weights)
        if linear_rows is not None and form == "bi":
            raise InputError("linear_rows must be None in the bi form, whose texts are not compared, got one")
        self.encoder_configs = dict(encoders)
        self.num_labels = num_labels
        self.target = target
        self.form = form
        self.rounds = rounds
        self.symmetric = symmetric
        self.dropout = dropout
        options = {"form": form, "rounds": rounds, "pooling": pooling}
        options |= {"overlap": overlap, "share_weights": share_weights}
        self.pairs = [
            PairEncoder(config, name=f"pair_{name}", dtype=self.dtype_policy, **options)
            for name, config in encoders.items()
        ]
        self.joined_dropout = Dropout(dropout, name="joined_dropout", dtype=self.dtype_policy)
        # A few features with a large influence: standardized, without dropout.
        self.share_scale = Standardise(name="share_scale", dtype="float32") if overlap else None
        # float32 whatever the policy: exports are verified to 1e-4. Zero initial weights: random ones on the many
        # features of vectors would dominate the few shares.
        self.head = (
            keras.layers.Dense(num_labels, kernel_initializer="zeros", name="head", dtype="float32")
            if form != "bi"
            else None
        )
        self.linear = None
        if linear_rows is not None:
            first = next(iter(encoders.values()))
            vocabulary = first.vocabulary_size, first.unknown_id + SPECIAL_FROM_UNKNOWN
            self.linear = LinearPairs(
                num_labels, *vocabulary, linear_rows, linear_slots, symmetric, linear_trigrams, name="linear"
            )
        self.network = None
        if overlap_units:
            if self.linear is None:
                raise InputError(f"overlap_units must be 0 without linear_rows, got {overlap_units}")
            inputs = self.linear.num_features + PARTS * num_labels
            self.network = OverlapNetwork(num_labels, inputs, overlap_units, name="overlap_network")

    @property
    def granularities(self) -> tuple[str, ...]:
        """Names of the tokenizations."""
        return tuple(self.encoder_configs)

    @property
    def input_names(self) -> tuple[str, ...]:
        """Names of the features, in the order of exports."""
        sides = ((granularity, side) for granularity in self.granularities for side in SIDES)
        return tuple(name for granularity, side in sides for name in self._names(side, granularity))

    def _names(self, side: str, granularity: str) -> tuple[str, str]:
        return input_names(side, granularity if len(self.encoder_configs) > 1 else "")

    def encoders_of(self, granularity: int) -> list[TransformerEncoder]:
        """The encoders of a granularity, by index: one, or one for each text."""
        return self.pairs[granularity].encoders

    @property
    def additions(self) -> list:
        """Kernels of additive inputs; if they are zero, nothing is added to the encoders' outputs."""
        return [pair.mark.kernel for pair in self.pairs if pair.overlap]

    @property
    def vector_dim(self) -> int:
        """Size of a text's vector, in the cross and bi forms."""
        return sum(config.hidden_dim for config in self.encoder_configs.values())

    def max_sequence_length(self, text_length: int) -> int:
        """Maximum sequence length in an encoder for texts of at most `text_length` tokens."""
        return 2 * text_length - 1 if self.form == "joint" else text_length

    def build(self, features_shape=None):
        """Builds all parts."""
        for pair in self.pairs:
            pair.build((None, None))
        if self.linear is not None:
            self.linear.build((None, None))
        if self.network is not None:
            self.network.build()
        if self.head is None:
            # float32 whatever the policy, like the head.
            self.cosine_scale, self.cosine_bias = (
                self.add_weight(
                    name=name, shape=(), initializer=keras.initializers.Constant(value), autocast=False
                )
                for name, value in (("cosine_scale", COSINE_SCALE), ("cosine_bias", 0.0))
            )
            return
        vectors = 1 if self.form == "joint" else (3 if self.symmetric else 4)
        self.vector_width = vectors * sum(pair.config.hidden_dim for pair in self.pairs)
        self.joined_dropout.build((None, self.vector_width))
        width = self.vector_width
        if self.share_scale is not None:
            shares = (2 if self.symmetric else 3) * sum(pair.num_shares for pair in self.pairs)
            self.share_scale.build((None, shares))
            width += shares
        self.head.build((None, width))

    def call(self, features, return_attention_weights=False, training=None):
        """See the class."""
        logits, weights = self._score(features, return_attention_weights, training)
        if self.symmetric and self.form == "joint":
            logits = (logits + self._score(swap_sides(features), False, training)[0]) / 2
        if self.linear is not None and not training:
            # The encoder is trained alone: the linear model was fitted on the same rows.
            logits = logits + self.overlap_logits(features)
        return (logits, weights) if return_attention_weights else logits

    def _score(self, features, with_weights, training):
        parts, all_weights = [], {}
        for name, pair in zip(self.granularities, self.pairs, strict=True):
            inputs = self._inputs(features, name)
            *part, weights = pair(*inputs, return_attention_weights=with_weights, training=training)
            parts.append(part)
            prefix = f"{name}_" if len(self.pairs) > 1 else ""
            all_weights |= {f"{prefix}{key}": value for key, value in weights.items()}
        return self._logits(parts, training), all_weights

    def _inputs(self, features, granularity: str):
        return [features[name] for side in SIDES for name in self._names(side, granularity)]

    def encode(self, features, side: str):
        """Encodes one text, so that it can be compared with many: float [B, T, D] for each granularity.

        The features int32 [B, T] are those of the side "a" or "b" only. Raises InputError in the joint form.
        """
        self._require(("cross", "bi"), "to encode texts separately")
        named = zip(self.granularities, self.pairs, strict=True)
        inputs = [(pair, *(features[n] for n in self._names(side, name))) for name, pair in named]
        return [pair.encode(ids, mask, side, training=False)[0] for pair, ids, mask in inputs]

    def compare(self, features, encoded_a, encoded_b):
        """Logits float32 [B, C] of pairs of texts from `encode`; not in the joint form."""
        self._require(("cross", "bi"), "to encode texts separately")
        parts = []
        for name, pair, a, b in zip(self.granularities, self.pairs, encoded_a, encoded_b, strict=True):
            ids_a, mask_a, ids_b, mask_b = self._inputs(features, name)
            parts.append(pair.compare(ids_a, mask_a, a, ids_b, mask_b, b)[:-1])
        logits = self._logits(parts, False)
        return logits if self.linear is None else logits + self.overlap_logits(features)

    def overlap_logits(self, features):
        """The part of the logits that comes from the linear model and the network on the overlap, float32 [B, C].

        Only for matchers with a linear model.
        """
        assert self.linear is not None
        inputs = self._inputs(features, self.granularities[0])
        if self.network is None:
            return self.linear(*inputs)
        return self.network(*self.linear(*inputs, return_parts=True))

    def scale_overlap(self, factors) -> None:
        """Multiplies `overlap_logits` by a number or by one for each label, float [C]."""
        assert self.linear is not None
        (self.network or self.linear).scale(factors)

    def scale_paths(self, linear: float, encoder: float, bias: float = 0.0) -> None:
        """Multiplies `overlap_logits` and the logits of the head by numbers, and adds one to the head's bias."""
        assert self.linear is not None and self.head is not None
        self.scale_overlap(linear)
        self.head.kernel.assign(self.head.kernel * encoder)
        self.head.bias.assign(self.head.bias * encoder + bias)

    def without_linear_path(self) -> "TextMatcher":
        """A copy with the same weights, but without a linear model and its network."""
        return copy_of(self, "linear", "network", linear_rows=None, overlap_units=0)

    def vectors(self, features, side: str, training=None):
        """Unit vectors float32 [B, D of all granularities] of texts; in the cross form before cross-attention.

        The features int32 [B, T] are those of the side "a" or "b" only. Raises InputError in the joint form.
        """
        self._require(("cross", "bi"), "for separate vectors of texts")
        pooled = []
        for name, pair in zip(self.granularities, self.pairs, strict=True):
            ids, mask = (features[n] for n in self._names(side, name))
            pooled.append(pair.pool(pair.encode(ids, mask, side, training=training)[0], mask))
        return unit_vectors(pooled)

    def score_vectors(self, vectors_a, vectors_b):
        """Logits float32 [A, B] of every pair of unit vectors, float32 [A, D] and [B, D], in the bi form."""
        self._require(("bi",), "to compare vectors")
        return self.cosine_scale * ops.matmul(vectors_a, ops.transpose(vectors_b)) + self.cosine_bias

    def all_pairs(self, features, training=None):
        """Logits float32 [B, B] of every A with every B of a batch, in the bi form."""
        return self.score_vectors(*(self.vectors(features, side, training=training) for side in SIDES))

    def _require(self, forms: tuple[Form, ...], purpose: str) -> None:
        if self.form not in forms:
            raise InputError(f"form must be {' or '.join(forms)} {purpose}, got {self.form}")

    def _logits(self, parts, training):
        """Logits from the vectors and shares of every granularity."""
        if self.head is None:
            a, b = (unit_vectors([part[side] for part in parts]) for side in (0, 1))
            cosine = ops.sum(a * b, axis=-1, keepdims=True)
            return self.cosine_scale * cosine + self.cosine_bias
        return self.head(self._head_inputs(parts, self.joined_dropout, training=training))

    def _head_inputs(self, parts, dropout, **options):
        vectors = [ops.cast(each, "float32") for a, b, *_ in parts for each in self._features(a, b)]
        x = dropout(ops.concatenate(vectors, axis=-1), **options)
        if self.share_scale is not None:
            shares = self._shares([each[2:] for each in parts])
            x = ops.concatenate([x, self.share_scale(shares)], axis=-1)
        return x

    def pooled_vectors(self, features, training=None):
        """The head's input float32 [B, W], before dropout; not in the bi form."""
        self._require(("cross", "joint"), "for a head of many inputs")
        inputs = zip(self.granularities, self.pairs, strict=True)
        parts = [pair(*self._inputs(features, name), training=training)[:-1] for name, pair in inputs]
        return self._head_inputs(parts, lambda vectors: vectors)

    def _features(self, a, b):
        if self.form == "joint":
            return [a]
        if not self.rounds:
            a, b = unit_vectors([a]), unit_vectors([b])
        return comparison_features(a, b, self.symmetric)

    def _shares(self, pairs):
        """The shares of both texts in every granularity, concatenated."""
        joined = [comparison_features(a, b, self.symmetric)[:-1] for a, b in pairs]
        return ops.concatenate([each for part in joined for each in part], axis=-1)

    def shares(self, features):
        """Overlap features of pairs before scaling, float32 [B, S]; only with overlap."""
        inputs = [self._inputs(features, name) for name in self.granularities]
        return self._shares([pair.shares(*each) for pair, each in zip(self.pairs, inputs, strict=True)])

    def probabilities(self, logits):
        """Probabilities float32 [B, C] of a match or of each class, from logits [B, C]; graded scores are unchanged."""
        if self.target == "binary":
            return ops.sigmoid(logits)
        return ops.softmax(logits, axis=-1) if self.target == "classes" else logits

    def decode(self, logits, thresholds=None):
        """Predictions from logits float32 [B, C], in the graph: int32 [B], graded: the scores float32 [B].

        They are 1 for a match, whose minimum probability is a threshold float32 [1] (None: 0.5), or the best class.
        """
        if self.target == "graded":
            return logits[:, 0]
        if self.target == "classes":
            return ops.cast(ops.argmax(logits, axis=-1), "int32")
        minimum = 0.5 if thresholds is None else ops.convert_to_tensor(thresholds, "float32")
        return ops.cast(self.probabilities(logits) >= minimum, "int32")[:, 0]

    def get_config(self):
        """The constructor's arguments."""
        first = self.pairs[0]
        return {
            **super().get_config(),
            "encoders": {name: dataclasses.asdict(config) for name, config in self.encoder_configs.items()},
            "num_labels": self.num_labels,
            "target": self.target,
            "form": self.form,
            "rounds": self.rounds,
            "pooling": first.pooling.mode,
            "symmetric": self.symmetric,
            "overlap": first.overlap,
            "share_weights": first.share_weights,
            "dropout": self.dropout,
            "linear_rows": self.linear.rows if self.linear else None,
            "linear_slots": self.linear.slots if self.linear else 1,
            "linear_trigrams": self.linear.trigrams if self.linear else 0,
            "overlap_units": self.network.units if self.network else 0,
        }

    @classmethod
    def from_config(cls, config, custom_objects=None):
        """Creates the model from `get_config`."""
        encoders = {name: EncoderConfig(**values) for name, values in config["encoders"].items()}
        return cls(**{**config, "encoders": encoders})
