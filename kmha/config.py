"""The configuration of an encoder."""

import collections
import dataclasses
import numbers
import typing
from typing import Literal

from kmha.errors import InputError

# n-gram hashes are computed as (hash * 8191 + id) in int32, which cannot overflow below 2**18.
MAX_HASHED_ID = 2**18
# Hashes are computed token by token.
MAX_NGRAM_ORDER = 64

Norm = Literal["pre", "post"]
Positions = Literal["learned", "sinusoidal", "rotary", "none"]
Activation = Literal["relu", "gelu", "gelu_tanh"]


@dataclasses.dataclass(frozen=True)
class EncoderConfig:
    """Shape and regularization of a `TransformerEncoder`.

    Args:
        vocabulary_size: Rows of the token embedding, special tokens included.
        hidden_dim: Size of each token's vector.
        num_layers: Number of encoder blocks.
        num_heads: Attention heads of a block.
        head_dim: Size of one head; None: hidden_dim / num_heads.
        intermediate_dim: Inner size of the feed-forward network.
        max_length: Maximum sequence length, special tokens included.
        num_segments: Rows of the segment embedding; 0: no segment embedding.
        positions: Position encoding: added vectors (learned, sinusoidal), rotated queries and keys, or none.
        norm: Layer normalization: "post" as in the Transformer of 2017 and BERT; "pre" is easier to train.
        norm_epsilon: Added to the variance in layer normalization.
        activation: Activation of the feed-forward network; "gelu" is the exact form.
        dropout: Dropout rate of the embedding output and of both branches of each block.
        attention_dropout: Dropout rate of attention weights.
        token_dropout: Probability of replacing a token by [UNK] in training.
        unknown_id: Id of [UNK]; [CLS], [SEP] and [MASK] have the next ids, as in every BERT vocabulary.
        ngram_buckets: Rows of each hashed n-gram table; 0: no n-grams.
        ngram_dim: Size of an n-gram's vector before its projection to hidden_dim.
        ngram_orders: The n of each n-gram table.
        attention_window: Maximum distance of two tokens in self-attention; None: no limit.
        attention_globals: With a window, number of first tokens ([CLS] included) that attend to all tokens and that
            all tokens attend to.
        layer_sizes: Heads and inner size of each block of a pruned model; empty: num_heads and intermediate_dim. The
            size of a head does not change.
        round_sizes: The same for each round of cross-attention of a matcher.

    Raises:
        InputError: A value is out of range, or num_heads does not divide hidden_dim.
    """

    vocabulary_size: int
    hidden_dim: int = 128
    num_layers: int = 2
    num_heads: int = 4
    head_dim: int | None = None
    intermediate_dim: int = 512
    max_length: int = 128
    num_segments: int = 0
    positions: Positions = "learned"
    norm: Norm = "pre"
    norm_epsilon: float = 1e-6
    activation: Activation = "gelu"
    dropout: float = 0.1
    attention_dropout: float = 0.1
    token_dropout: float = 0.0
    unknown_id: int = 1
    ngram_buckets: int = 0
    ngram_dim: int = 64
    ngram_orders: tuple[int, ...] = (2, 3)
    attention_window: int | None = None
    attention_globals: int = 1
    layer_sizes: tuple[tuple[int, int], ...] = ()
    round_sizes: tuple[tuple[int, int], ...] = ()

    def __post_init__(self):
        object.__setattr__(self, "ngram_orders", tuple(self.ngram_orders))
        for name in ("layer_sizes", "round_sizes"):
            # JSON has lists.
            object.__setattr__(self, name, tuple(map(tuple, getattr(self, name))))
            for size in getattr(self, name):
                is_valid = len(size) == 2 and all(_is_count(number, 1) for number in size)
                _require(is_valid, name, "heads and inner size, at least 1 each", size)
        sizes, expected = len(self.layer_sizes), f"one for each of the {self.num_layers} blocks, or none"
        _require(sizes in (0, self.num_layers), "layer_sizes", expected, f"{sizes} sizes")
        for name in "vocabulary_size hidden_dim num_heads intermediate_dim max_length ngram_dim".split():
            _require(_is_count(getattr(self, name), 1), name, "at least 1", getattr(self, name))
        window = self.attention_window
        _require(window is None or _is_count(window, 1), "attention_window", "at least 1", window)
        for name in ("num_layers", "num_segments", "ngram_buckets", "attention_globals"):
            _require(_is_count(getattr(self, name), 0), name, "at least 0", getattr(self, name))
        for name in ("dropout", "attention_dropout", "token_dropout"):
            _require(0 <= getattr(self, name) < 1, name, "a probability in [0, 1)", getattr(self, name))
        for name, known in (("norm", Norm), ("positions", Positions), ("activation", Activation)):
            words = typing.get_args(known)
            _require(getattr(self, name) in words, name, f"one of {', '.join(words)}", getattr(self, name))
        if self.head_dim is None and self.hidden_dim % self.num_heads:
            raise InputError(
                f"num_heads must divide hidden_dim, got hidden_dim {self.hidden_dim} and num_heads"
                f" {self.num_heads}; or give head_dim"
            )
        _require(
            self.head_dim is None or _is_count(self.head_dim, 1), "head_dim", "at least 1", self.head_dim
        )
        is_even, expected = self.head_size % 2 == 0, "even for rotary positions"
        _require(self.positions != "rotary" or is_even, "head_dim", expected, self.head_size)
        if self.ngram_buckets:
            below, size = f"below {MAX_HASHED_ID}", self.vocabulary_size
            _require(self.ngram_buckets < MAX_HASHED_ID, "ngram_buckets", below, self.ngram_buckets)
            _require(size < MAX_HASHED_ID, "vocabulary_size", f"{below} with n-grams", size)
            are_valid = bool(self.ngram_orders) and all(
                _is_count(order, 2) and order <= MAX_NGRAM_ORDER for order in self.ngram_orders
            )
            _require(are_valid, "ngram_orders", f"2 to {MAX_NGRAM_ORDER} each", self.ngram_orders)

    @property
    def head_size(self) -> int:
        """Size of one head."""
        return self.head_dim or self.hidden_dim // self.num_heads

    @property
    def least_weights(self) -> int:
        """A lower bound of the number of weights of an encoder with at least one block, computed in no time."""
        if not self.num_layers:
            return 0
        width = self.hidden_dim
        sizes = collections.Counter(
            self.layer_sizes or {(self.num_heads, self.intermediate_dim): self.num_layers}
        )
        blocks = sum(
            count * width * (4 * heads * self.head_size + 2 * inner)
            for (heads, inner), count in sizes.items()
        )
        positions = self.max_length * width if self.positions == "learned" else 0
        ngrams = self.ngram_buckets * self.ngram_dim * len(self.ngram_orders)
        return self.vocabulary_size * width + blocks + positions + ngrams

    def layer_size(self, index: int) -> tuple[int, int]:
        """Heads and inner size of a block."""
        return self.layer_sizes[index] if self.layer_sizes else (self.num_heads, self.intermediate_dim)

    def round_size(self, index: int) -> tuple[int, int]:
        """Heads and inner size of a round of cross-attention."""
        return self.round_sizes[index] if self.round_sizes else (self.num_heads, self.intermediate_dim)

    @classmethod
    def bert(cls, vocabulary_size: int, hidden_dim: int, num_layers: int, **overrides) -> "EncoderConfig":
        """A BERT of any size: heads of 64, inner size 4 · hidden_dim, post-norm, learned positions.

        Source: Devlin et al. 2019, arXiv:1810.04805; the miniatures: Turc et al. 2019, arXiv:1908.08962.
        """
        sizes = {"hidden_dim": hidden_dim, "num_layers": num_layers, "num_heads": max(1, hidden_dim // 64)}
        sizes |= {"intermediate_dim": 4 * hidden_dim, "max_length": 512, "num_segments": 2}
        return cls(vocabulary_size, **{**sizes, "norm": "post", "norm_epsilon": 1e-12, **overrides})

    @classmethod
    def bert_tiny(cls, vocabulary_size: int = 30522, **overrides) -> "EncoderConfig":
        """2 layers of 128."""
        return cls.bert(vocabulary_size, 128, 2, **overrides)

    @classmethod
    def bert_mini(cls, vocabulary_size: int = 30522, **overrides) -> "EncoderConfig":
        """4 layers of 256."""
        return cls.bert(vocabulary_size, 256, 4, **overrides)

    @classmethod
    def bert_small(cls, vocabulary_size: int = 30522, **overrides) -> "EncoderConfig":
        """4 layers of 512."""
        return cls.bert(vocabulary_size, 512, 4, **overrides)

    @classmethod
    def bert_base(cls, vocabulary_size: int = 30522, **overrides) -> "EncoderConfig":
        """12 layers of 768."""
        return cls.bert(vocabulary_size, 768, 12, **overrides)


def _require(is_valid: bool, name: str, expected: str, actual: object) -> None:
    if not is_valid:
        raise InputError(f"{name} must be {expected}, got {actual}")


def _is_count(value: object, least: int) -> bool:
    # A float, as JSON may have, would fail in an array's shape.
    return isinstance(value, numbers.Integral) and int(value) >= least
