"""The encoder's configuration: invalid values, and the sizes of the published BERTs."""

import dataclasses
import json

import pytest

from kmha.config import MAX_HASHED_ID, EncoderConfig
from kmha.errors import InputError
from kmha.layers.embedding import MULTIPLIER
from kmha.models.encoder import TransformerEncoder


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"num_heads": 3}, "num_heads must divide hidden_dim, got hidden_dim 128 and num_heads 3"),
        ({"vocabulary_size": 0}, "vocabulary_size must be at least 1, got 0"),
        ({"hidden_dim": 0}, "hidden_dim must be at least 1"),
        ({"num_heads": 0}, "num_heads must be at least 1"),
        ({"head_dim": 0}, "head_dim must be at least 1, got 0"),
        ({"intermediate_dim": 0}, "intermediate_dim must be at least 1"),
        ({"max_length": -1}, "max_length must be at least 1, got -1"),
        ({"ngram_dim": 0}, "ngram_dim must be at least 1"),
        ({"norm": "none"}, "norm must be one of pre, post, got none"),
        ({"positions": "x"}, "positions must be one of learned, sinusoidal, rotary, none, got x"),
        ({"activation": "swish"}, "activation must be one of relu, gelu, gelu_tanh, got swish"),
        ({"num_layers": -1}, "num_layers must be at least 0"),
        ({"num_segments": -2}, "num_segments must be at least 0"),
        ({"dropout": 1.0}, r"dropout must be a probability in \[0, 1\), got 1.0"),
        ({"attention_dropout": -0.1}, r"attention_dropout must be a probability in \[0, 1\)"),
        ({"token_dropout": 2}, r"token_dropout must be a probability in \[0, 1\)"),
        ({"positions": "rotary", "head_dim": 5}, "head_dim must be even for rotary positions, got 5"),
        ({"ngram_buckets": MAX_HASHED_ID}, "ngram_buckets must be below 262144"),
        ({"ngram_buckets": 9, "vocabulary_size": MAX_HASHED_ID}, "vocabulary_size must be below 262144"),
        ({"ngram_buckets": 9, "ngram_orders": (2, 1)}, "ngram_orders must be 2 to 64 each"),
        ({"ngram_buckets": 9, "ngram_orders": (2, 65)}, "ngram_orders must be 2 to 64 each"),
        ({"ngram_buckets": 9, "ngram_orders": (2, 1e308)}, "ngram_orders must be 2 to 64 each"),
        ({"hidden_dim": 128.0}, "hidden_dim must be at least 1, got 128.0"),
        ({"ngram_buckets": "9"}, "ngram_buckets must be at least 0, got 9"),
        ({"ngram_buckets": 9, "ngram_orders": ()}, "ngram_orders must be 2 to 64 each"),
        (
            {"layer_sizes": [(4, 512)]},
            "layer_sizes must be one for each of the 2 blocks, or none, got 1 sizes",
        ),
        (
            {"layer_sizes": [(4, 512), (0, 9)]},
            r"layer_sizes must be heads and inner size, at least 1 each, got",
        ),
        ({"round_sizes": [(1, 2, 3)]}, r"round_sizes must be heads and inner size, at least 1 each, got"),
    ],
    ids=lambda value: ",".join(value) if isinstance(value, dict) else "",
)
def test_invalid_numbers_are_rejected_in_one_line(changes, message):
    with pytest.raises(InputError, match=message) as refusal:
        EncoderConfig(**{"vocabulary_size": 100} | changes)
    assert "\n" not in str(refusal.value)


def test_heads_need_not_divide_the_hidden_size_if_head_dim_is_set():
    assert EncoderConfig(100, num_heads=3, head_dim=20).head_dim == 20


def test_blocks_have_their_pruned_sizes():
    config = EncoderConfig(100, layer_sizes=((3, 9), (1, 512)), round_sizes=((2, 7),))
    assert (config.head_size, config.layer_size(1), config.round_size(0)) == (32, (1, 512), (2, 7))
    encoder = TransformerEncoder(config)
    encoder.build({"token_ids": (None, None)})
    found = [(block.attention.num_heads, block.feed_forward.intermediate_dim) for block in encoder.blocks]
    assert found == [(3, 9), (1, 512)]
    assert encoder.blocks[0].attention.output_kernel.shape == (3 * 32, 128)


def test_hashes_of_the_largest_ids_fit_in_int32():
    largest = MAX_HASHED_ID - 1
    assert largest * MULTIPLIER + largest < 2**31


def test_a_config_round_trips_through_json():
    sizes = {"layer_sizes": ((3, 9), (1, 512)), "round_sizes": ((2, 7),)}
    config = EncoderConfig(100, ngram_buckets=50, ngram_orders=(2, 4), positions="rotary", **sizes)
    assert EncoderConfig(**json.loads(json.dumps(dataclasses.asdict(config)))) == config


def _parameters(config):
    """Parameters of an encoder without n-grams, by arithmetic."""
    d, inner = config.hidden_dim, config.intermediate_dim
    width = config.num_heads * (config.head_dim or d // config.num_heads)
    attention = 3 * (d * width + width) + width * d + d
    feed_forward = d * inner + inner + inner * d + d
    norm = 2 * d
    tables = config.vocabulary_size + config.max_length + config.num_segments
    return tables * d + norm + config.num_layers * (attention + feed_forward + 2 * norm)


def _pooler(config):
    return config.hidden_dim**2 + config.hidden_dim


@pytest.mark.parametrize(
    ("name", "with_pooler"),
    [
        ("bert_tiny", 4_385_920),
        ("bert_mini", 11_170_560),
        ("bert_small", 28_763_648),
        ("bert_base", 109_482_240),
    ],
)
def test_named_sizes_have_the_published_number_of_parameters(name, with_pooler):
    config = getattr(EncoderConfig, name)()
    assert _parameters(config) + _pooler(config) == with_pooler
    assert config.hidden_dim // config.num_heads == 64


def test_bert_base_without_its_pooler():
    assert _parameters(EncoderConfig.bert_base()) == 108_891_648


@pytest.mark.parametrize(
    "config",
    [
        EncoderConfig.bert(50, 128, 1, max_length=16),
        EncoderConfig(50, 12, 2, 3, head_dim=5, intermediate_dim=7, max_length=9, num_segments=3),
    ],
)
def test_computed_tokens_equal_the_size_of_the_windows(config):
    encoder = TransformerEncoder(config)
    encoder.build({"token_ids": (None, None)})
    assert encoder.count_params() == _parameters(config)
