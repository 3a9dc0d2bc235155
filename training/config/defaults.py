"""Default settings that depend on the task, the encoder size, the checkpoint or the data."""

import dataclasses
from typing import Any

import numpy as np

from kmha.config import MAX_HASHED_ID, EncoderConfig
from kmha.errors import InputError
from kmha.pretrained.checkpoint import Checkpoint, shorten_config
from kmha.pretrained.sources import find_checkpoint
from training.cli.bounds import check_ranges
from training.config.config import (
    BATCH_ROWS,
    LONG_MAX_LENGTH,
    MAX_LENGTH,
    NO_ENCODER,
    EncoderSection,
    FitConfig,
    ResolvedConfig,
    TextSection,
)
from training.tasks.protocol import Defaults, Task

FEWEST_EPOCHS, MOST_EPOCHS = 3, 20
# On a linear path, a third of the training has the same accuracy. From RESIDUAL_ROWS on, the encoder is trained on
# what the path leaves. With fewer, with several labels per row, or of pairs, one that is trained alone makes other
# mistakes than the path, and both together are better; see docs/decisions/017-linear-path.md.
RESIDUAL_ROWS, LINEAR_SHARE = 20_000, 1 / 3
FEWEST_EPOCHS_ALONE, MOST_EPOCHS_ALONE, FEWEST_EPOCHS_RESIDUAL = 2, 4, 1
# Long texts fill many batches, so few epochs would do. But an encoder alone should read so many texts of each label.
TEXTS_OF_LABEL = 2_000
# Texts may be longer if more than a tenth would be truncated; a token has about four bytes.
BYTES_PER_TOKEN, LONG_SHARE = 4, 0.1
# Short texts need each token; long texts are redundant, so more tokens can be dropped.
SHORT_TOKENS = 32
SHORT_TOKEN_DROPOUT, LONG_TOKEN_DROPOUT = 0.3, 0.4
# Fine-tuning of a checkpoint ("on"): smaller batches, fewer epochs.
BATCH_ROWS_ON, FEWEST_EPOCHS_ON, MOST_EPOCHS_ON = 32, 2, 6
# The default of training from scratch makes a checkpoint forget. Pairs in joint form need the lowest learning rate.
LEARNING_RATE_ON, LEARNING_RATE_OF_PAIRS_ON = 2e-4, 8e-5
LAYER_DECAY, HEAD_FACTOR = 0.9, 5.0
# With the default learning rate, models overfit a few thousand pairs.
LEARNING_RATE, LEARNING_RATE_OF_FEW_PAIRS, FEW_PAIRS = 1e-3, 3e-4, 5_000
# In few texts most words occur once. Pieces of them say less about a label than whole words.
FEW_TEXTS = 1_000

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


def resolve_config(config: FitConfig) -> ResolvedConfig:
    """Fills in the defaults that do not depend on the data: of the task, the encoder size and the checkpoint.

    A job calls this once, at its start. A resolved config is unchanged. Raises InputError, which names the flag, if a
    setting is out of range or contradicts the size or the checkpoint.
    """
    check_ranges(config)
    if config.encoder.size == NO_ENCODER and config.encoder.linear is False:
        raise InputError("--encoder.size none: expected --encoder.linear, got none of both")
    scratch = not config.encoder.pretrained
    # The overlap features of a checkpoint's encoder are off by default.
    has_overlap = config.match.form != "bi" and (config.match.overlap is not False or not scratch)
    # A path of words was not compared with a checkpoint's encoder.
    linear = config.distill.teacher is None and (
        config.task == "classify"
        or (config.task == "match" and has_overlap)
        or (config.task == "tag" and scratch)
    )
    if config.encoder.size == NO_ENCODER and not (linear and scratch and config.task != "tag"):
        raise InputError(
            "--encoder.size none: expected --task classify, or match with overlap, without --encoder.pretrained and"
            " --distill.teacher"
        )
    if config.encoder.linear and not linear:
        raise InputError(
            "--encoder.linear: expected --task classify, match with overlap, or without --encoder.pretrained also tag;"
            " and no --distill.teacher"
        )
    # A linear path and its encoder profit from whole documents; a window has a length of its own.
    is_path_of_texts = linear and scratch and config.task == "classify" and config.encoder.linear is not False
    if config.classify.window or not is_path_of_texts:
        config = dataclasses.replace(config, text=_filled(config.text, max_length=MAX_LENGTH))
    given = config.encoder.linear
    config = resolve_shape(dataclasses.replace(config, encoder=_filled(config.encoder, linear=linear)))
    checkpoint = config.checkpoint
    if given is None and checkpoint is not None and len(checkpoint.vocabulary) >= MAX_HASHED_ID:
        config = dataclasses.replace(config, encoder=dataclasses.replace(config.encoder, linear=False))
    tags, pretrained = config.task == "tag", bool(config.encoder.pretrained)
    return dataclasses.replace(
        config,
        train=_filled(config.train, batch_rows=BATCH_ROWS_ON if pretrained else BATCH_ROWS),
        text=_filled(config.text, tokenization="wordpiece", lower_case=not tags),
        encoder=_filled(config.encoder, positions="rotary" if tags else "learned"),
    )


def _filled(section: Any, **values: Any) -> Any:
    """The section with these values in place of None."""
    missing = {name: value for name, value in values.items() if getattr(section, name) is None}
    return dataclasses.replace(section, **missing)


def resolve_text(config: ResolvedConfig, text_bytes: np.ndarray) -> ResolvedConfig:
    """Fills in the settings of tokenization that depend on the bytes of the training texts, int [R]."""
    is_long = (text_bytes > BYTES_PER_TOKEN * MAX_LENGTH).mean() > LONG_SHARE
    text = _filled(config.text, max_length=LONG_MAX_LENGTH if is_long else MAX_LENGTH)
    if has_few_texts(config, len(text_bytes)):
        text = _filled(text, min_frequency=1)
    return dataclasses.replace(config, text=text)


def has_few_texts(config: ResolvedConfig, rows: int) -> bool:
    """Whether a classifier with a linear path is trained from scratch on few rows."""
    is_scratch = config.checkpoint is None and bool(config.encoder.linear)
    return config.task == "classify" and is_scratch and rows < FEW_TEXTS


def resolve_data_defaults(
    config: ResolvedConfig,
    task: Task,
    lengths: np.ndarray,
    batches: int,
    pairs: int = 0,
    num_labels: int = 1,
) -> ResolvedConfig:
    """Fills in the defaults that depend on the data: epochs, dropout, token dropout and learning rates.

    The rows have been read. `lengths` are the tokens of each training text, int [R]; `batches` are those of an epoch,
    and `pairs` the training rows if they are pairs. `num_labels` are the labels of the training rows.
    """
    config = resolve_token_dropout(config, task, lengths)
    train, defaults = config.train, task.defaults
    if config.encoder.pretrained:
        epochs = min(MOST_EPOCHS_ON, max(FEWEST_EPOCHS_ON, -(-defaults.batches_on // batches)))
        learning_rate = LEARNING_RATE_OF_PAIRS_ON if config.task == "match" else LEARNING_RATE_ON
        config = dataclasses.replace(
            config,
            encoder=_filled(config.encoder, dropout=0.1),
            optimizer=_filled(config.optimizer, learning_rate=learning_rate, embedding_rate=1.0),
            finetune=_filled(config.finetune, layer_decay=LAYER_DECAY, head_factor=HEAD_FACTOR),
        )
    else:
        epochs = default_epochs(batches, defaults.batches)
        if config.task == "classify" and config.encoder.linear:
            fewest = FEWEST_EPOCHS_RESIDUAL
            if not learns_residual(task, len(lengths)):
                epochs_of_rows = -(-TEXTS_OF_LABEL * num_labels // len(lengths))
                fewest = min(MOST_EPOCHS_ALONE, max(FEWEST_EPOCHS_ALONE, epochs_of_rows))
            epochs = default_epochs(batches, round(defaults.batches * LINEAR_SHARE), fewest)
        elif config.task == "tag" and config.encoder.linear:
            epochs = default_epochs(batches, defaults.batches // 2)
    learning_rate = LEARNING_RATE_OF_FEW_PAIRS if 0 < pairs < FEW_PAIRS else LEARNING_RATE
    return dataclasses.replace(
        config,
        train=dataclasses.replace(train, epochs=train.epochs or epochs),
        encoder=_filled(config.encoder, dropout=defaults.dropout),
        optimizer=_filled(
            config.optimizer, embedding_rate=defaults.embedding_rate, learning_rate=learning_rate
        ),
    )


def resolve_token_dropout(config: ResolvedConfig, task: Task, lengths: np.ndarray) -> ResolvedConfig:
    """Fills in the token dropout; `lengths` are the tokens of each training text, int [R]."""
    default = 0.0 if config.encoder.pretrained else task.defaults.token_dropout
    if default is None:
        default = default_token_dropout(lengths)
    return dataclasses.replace(config, encoder=_filled(config.encoder, token_dropout=default))


def left_out_share(config: ResolvedConfig) -> float:
    """The share of tokens that training batches leave out; 0 if the model replaces them by [UNK].

    n-grams, local attention and rotary positions need neighboring tokens, and windows their length.
    """
    encoder = config.encoder
    needs_neighbors = encoder.ngram_buckets or encoder.attention_window or encoder.positions == "rotary"
    if config.task != "classify" or not encoder.linear or needs_neighbors or config.classify.window:
        return 0.0
    return encoder.token_dropout or 0.0


def default_epochs(batches: int, expected: int = Defaults.batches, fewest: int = FEWEST_EPOCHS) -> int:
    """The default number of epochs for about `expected` batches in all, from `fewest` to 20."""
    return min(MOST_EPOCHS, max(fewest, -(-expected // batches)))


def learns_residual(task: Task, rows: int) -> bool:
    """Whether an encoder on a linear path is trained on what the path leaves of so many training rows."""
    return rows >= RESIDUAL_ROWS and task.traits.num_texts == 1 and not task.traits.is_multi_label


def default_token_dropout(lengths: np.ndarray) -> float:
    """Returns the default token dropout for texts of these lengths, int [R]; lower for short texts."""
    return SHORT_TOKEN_DROPOUT if lengths.mean() < SHORT_TOKENS else LONG_TOKEN_DROPOUT


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
    """Fills in the shape of the encoder and, with a checkpoint, the tokenization; raises InputError."""
    checkpoint = _find_checkpoint(config)
    values = {f.name: getattr(config, f.name) for f in dataclasses.fields(FitConfig)}
    config = ResolvedConfig(**{**values, "encoder": resolve_size(config.encoder)}, checkpoint=checkpoint)
    if checkpoint is None:
        has_tables = config.encoder.ngram_dim is not None or config.encoder.ngram_orders is not None
        if (config.encoder.linear or config.encoder.size) and not has_tables:
            config = dataclasses.replace(config, encoder=_filled(config.encoder, ngram_buckets=0))
        return dataclasses.replace(config, encoder=_filled(config.encoder, **DEFAULT_SHAPE))
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
    return dataclasses.replace(config, encoder=_filled(config.encoder, **shape), text=text)


def encoder_config(config: ResolvedConfig, vocabulary_size: int, unknown_id: int) -> EncoderConfig:
    """Creates the `EncoderConfig` of a resolved config; raises InputError if a value is out of range."""
    section = dataclasses.asdict(config.encoder)
    del section["vectors"], section["pretrained"], section["size"], section["linear"]
    # None if the settings are checked before the rows are read.
    section["token_dropout"] = section["token_dropout"] or 0.0
    section["dropout"] = section["dropout"] or 0.0
    if section["attention_globals"] is None:
        section["attention_globals"] = DEFAULT_SHAPE["attention_globals"]
    section |= {"vocabulary_size": vocabulary_size, "max_length": config.text.longest}
    checkpoint = config.checkpoint
    if checkpoint is None:
        return EncoderConfig(unknown_id=unknown_id, **section)
    shape = shorten_config(checkpoint.config, section["num_layers"])
    return dataclasses.replace(shape, unknown_id=unknown_id, **section)


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
    longest = window or text.longest
    if checkpoint.config.positions == "learned" and longest > positions:
        flag = "--classify.window" if window else "--text.max-length"
        hint = "" if window or not is_classifier else "; --classify.window reads longer texts in windows"
        raise InputError(
            f"{flag}: expected at most the {positions} positions of --encoder.pretrained, got {longest}{hint}"
        )
    return dataclasses.replace(text, tokenization=checkpoint.tokenization, lower_case=checkpoint.lower_case)


def resolve_size(encoder: EncoderSection) -> EncoderSection:
    """Fills in the dimensions of --encoder.size; raises InputError, which names the flag, if a given one differs.

    Without an encoder, one without blocks remains, whose vectors have one number; it adds nothing to the logits.

    Source: Turc et al. 2019, arXiv:1908.08962.
    """
    if not encoder.size:
        return encoder
    sizes = {
        NO_ENCODER: lambda: EncoderConfig(1, hidden_dim=1, num_layers=0, num_heads=1, intermediate_dim=1),
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
