"""Shape of the encoder: from the settings, or from a pretrained checkpoint."""

import dataclasses
from typing import Any

from kmha.config import EncoderConfig
from kmha.errors import InputError
from kmha.pretrained.checkpoint import Checkpoint, shorten_config
from kmha.pretrained.sources import find_checkpoint
from training.config.config import EncoderSection, FitConfig, ResolvedConfig, TextSection

# For training from scratch.
DEFAULT_SHAPE: dict[str, Any] = {
    "hidden_dim": 128,
    "num_layers": 2,
    "num_heads": 4,
    "intermediate_dim": 512,
    "norm": "pre",
    "activation": "gelu",
    "ngram_buckets": 131_071,
    "ngram_dim": 64,
    "ngram_orders": (2, 3),
    "attention_globals": 1,
}
# Taken from a checkpoint. Exceptions: blocks may be removed, and n-grams added if the checkpoint has none.
_OF_CHECKPOINT = (*(name for name in DEFAULT_SHAPE if name != "attention_globals"), "head_dim", "positions")
# Also in a checkpoint, but any value fits its weights.
_FREE = ("attention_window", "attention_globals")
_OF_NGRAMS = ("ngram_buckets", "ngram_dim", "ngram_orders")


def _find_checkpoint(config: FitConfig) -> Checkpoint | None:
    """Loads the checkpoint of --encoder.pretrained; None without it."""
    if isinstance(config, ResolvedConfig):
        return config.checkpoint
    name = config.encoder.pretrained
    if not name:
        return None
    try:
        return find_checkpoint(name)
    except InputError as error:
        raise InputError(f"--encoder.pretrained {error}") from None


def has_new_ngrams(config: ResolvedConfig) -> bool:
    """Whether n-gram features are added to a checkpoint without them and trained from scratch."""
    checkpoint = config.checkpoint
    return (
        checkpoint is not None and not checkpoint.config.ngram_buckets and bool(config.encoder.ngram_buckets)
    )


def resolve_shape(config: FitConfig) -> ResolvedConfig:
    """Fills in the shape of the encoder and, with a checkpoint, the tokenization.

    Raises:
        InputError: The checkpoint is invalid, or a setting contradicts it or the encoder size.
    """
    checkpoint = _find_checkpoint(config)
    values = {f.name: getattr(config, f.name) for f in dataclasses.fields(FitConfig)}
    config = ResolvedConfig(**{**values, "encoder": resolve_size(config.encoder)}, checkpoint=checkpoint)
    if checkpoint is None:
        return dataclasses.replace(config, encoder=_filled(config.encoder, DEFAULT_SHAPE))
    for flag, given in (
        ("text.vocabulary", config.text.vocabulary),
        ("encoder.vectors", config.encoder.vectors),
    ):
        if given is not None:
            raise InputError(f"--{flag}: expected none with --encoder.pretrained, got {given}")
    shape = {name: getattr(checkpoint.config, name) for name in _OF_CHECKPOINT}
    if not checkpoint.config.ngram_buckets and config.encoder.ngram_buckets:
        shape |= {name: getattr(config.encoder, name) or DEFAULT_SHAPE[name] for name in _OF_NGRAMS}
    _check_shape(config.encoder, shape)
    shape |= {name: getattr(checkpoint.config, name) for name in _FREE}
    text = _text(config, checkpoint)
    return dataclasses.replace(config, encoder=_filled(config.encoder, shape), text=text)


def encoder_config(config: ResolvedConfig, vocabulary_size: int, unknown_id: int) -> EncoderConfig:
    """Creates the `EncoderConfig`.

    Args:
        config: The result of `resolve_config`.
        vocabulary_size: Number of tokens.
        unknown_id: Id of [UNK].

    Raises:
        InputError: A value is out of range, or `hidden_dim` is not a multiple of `num_heads`.
    """
    section = dataclasses.asdict(config.encoder)
    del section["vectors"], section["pretrained"], section["size"]
    # None if the settings are checked before the rows are read.
    section["token_dropout"] = section["token_dropout"] or 0.0
    section["dropout"] = section["dropout"] or 0.0
    if section["attention_globals"] is None:
        section["attention_globals"] = DEFAULT_SHAPE["attention_globals"]
    section |= {"vocabulary_size": vocabulary_size, "max_length": config.text.max_length}
    checkpoint = config.checkpoint
    if checkpoint is None:
        return EncoderConfig(unknown_id=unknown_id, **section)
    shape = shorten_config(checkpoint.config, section["num_layers"])
    return dataclasses.replace(shape, unknown_id=unknown_id, **section)


def _filled(section: EncoderSection, values: dict[str, Any]) -> EncoderSection:
    missing = {name: value for name, value in values.items() if getattr(section, name) is None}
    return dataclasses.replace(section, **missing)


def _check_shape(section: EncoderSection, shape: dict[str, Any]) -> None:
    for name, value in shape.items():
        given = getattr(section, name)
        if given is None or given == value or (name == "num_layers" and 1 <= given < value):
            continue
        flag = f"--encoder.{name.replace('_', '-')}"
        most = "at most " if name == "num_layers" else ""
        raise InputError(f"{flag}: expected {most}the {value} of --encoder.pretrained, got {given}")


def _text(config: FitConfig, checkpoint: Checkpoint) -> TextSection:
    """Checks the text settings against the checkpoint and fills in its tokenization."""
    text = config.text
    for name in ("tokenization", "lower_case"):
        given, expected = getattr(text, name), getattr(checkpoint, name)
        if given is not None and given != expected:
            flag = f"--text.{name.replace('_', '-')}"
            raise InputError(f"{flag}: expected {expected} as in --encoder.pretrained, got {given}")
    positions = checkpoint.config.max_length
    is_classifier = config.task == "classify"
    window = config.classify.window if is_classifier else 0
    longest = window or text.max_length
    if checkpoint.config.positions == "learned" and longest > positions:
        flag = "--classify.window" if window else "--text.max-length"
        hint = "" if window or not is_classifier else "; --classify.window reads longer texts in windows"
        raise InputError(
            f"{flag}: expected at most the {positions} positions of --encoder.pretrained, got {longest}{hint}"
        )
    return dataclasses.replace(text, tokenization=checkpoint.tokenization, lower_case=checkpoint.lower_case)


def resolve_size(encoder: EncoderSection) -> EncoderSection:
    """Fills in the dimensions of --encoder.size.

    Raises:
        InputError: A given dimension differs from that of the size; the message names the flag.

    Source: Turc et al. 2019, arXiv:1908.08962.
    """
    if not encoder.size:
        return encoder
    sizes = {
        "tiny": EncoderConfig.bert_tiny,
        "mini": EncoderConfig.bert_mini,
        "small": EncoderConfig.bert_small,
    }
    named = sizes[encoder.size]()
    expected: dict[str, Any] = {
        name: getattr(named, name) for name in ("hidden_dim", "num_layers", "num_heads", "intermediate_dim")
    }
    defaults = EncoderSection()
    for name, value in (*expected.items(), ("head_dim", named.hidden_dim // named.num_heads)):
        given = getattr(encoder, name)
        if given not in (value, getattr(defaults, name)):
            raise InputError(
                f"--encoder.{name.replace('_', '-')}: expected {value} for --encoder.size {encoder.size}, got {given}"
            )
    return dataclasses.replace(encoder, **expected)
