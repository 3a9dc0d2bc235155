"""Training configuration. The string under each field is its help text on the command line."""

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any, Literal

import tyro

from kmha.config import Activation, Norm, Positions
from kmha.pretrained.checkpoint import Checkpoint
from kmha.text.vocabulary import Tokenization
from training.cli.bounds import Count, NotNegative, OpenShare, Positive, Probability, Range
from training.io.tables import TableFormat
from training.tasks.settings import (
    ClassifySettings,
    MaskedLmSettings,
    MatchSettings,
    TagSettings,
    TaskSettings,
)

BATCH_ROWS = 64
NO_ENCODER = "none"  # --encoder.size
# The settings that most runs need, which --help shows with those of the task.
MAIN_FLAGS = (
    "--config",
    "--task",
    "--out",
    "--overwrite",
    "--resume",
    "--data.train",
    "--data.validation",
    "--data.test",
    "--data.text-column",
    "--data.label-column",
    "--text.max-length",
    "--encoder.pretrained",
    "--encoder.size",
    "--optimizer.learning-rate",
    "--train.epochs",
    "--train.seed",
)
# Maximum sequence length by default, and that of long documents.
MAX_LENGTH, LONG_MAX_LENGTH = 256, 512


@dataclass(frozen=True)
class DataSection:
    """Input data. Without --data.train and --data.tfds: the sample of an installed package."""

    train: Path | None = None
    """Training rows: .csv, .tsv, .jsonl; for tagging .conll, .conllu, .bio, .iob; for texts alone .txt; also .gz; or
    .parquet, .arrow (extra: tables)."""
    validation: Path | None = None
    """Validation rows. Default: a fraction of the training rows is held out, or few rows are cross-validated."""
    test: Path | None = None
    """Test rows, evaluated once after training."""
    text_column: str = ""
    """Column of the text. Default: text; for pairs text_a; for tagging words (CoNLL: column 1)."""
    text_b_column: str = ""
    """Column of the second text of a pair. Default: text_b."""
    label_column: str = ""
    """Column of the label. Default: label; for multi-label rows labels; for tagging tags (CoNLL: the last column)."""
    label_separator: str = "|"
    """Separates the labels of a multi-label row."""
    query_column: str = ""
    """Column of the query id of a pair. Default: query_id, if the file has it."""
    delimiter: str | None = None
    """Separates the columns of .csv and .tsv files: one character, or \\t. Default: a comma, in .tsv files a tab."""
    encoding: str | None = None
    """Text encoding of all files, for example cp1252 or utf-16. Default: utf-8."""
    validation_fraction: OpenShare = 0.1
    """Fraction of the training rows to hold out if there is no --data.validation; see --data.large-rows."""
    large_rows: Count = 500_000
    """Above this number of training rows, rows are tokenized in parts during training. The vocabulary is then learned
    from a tenth of this number, and the held-out fraction is a fraction of this number."""
    sample: Literal["auto", "reviews", "pos"] = "auto"
    """Sample data without --data.train (extra: samples): reviews with labels, or part-of-speech tags."""
    tfds: str = ""
    """TensorFlow Datasets name, instead of files (extra: tfds)."""
    tfds_dir: Path | None = None
    """Folder of the prepared TensorFlow Datasets."""
    tfds_test: str = "test"
    """Test split of the --data.tfds data set; empty: none."""

    @property
    def form(self) -> TableFormat:
        """The format of the files; raises InputError if it cannot be used."""
        return TableFormat(self.delimiter or "", self.encoding or "")


@dataclass(frozen=True)
class TextSection:
    """Tokenization."""

    tokenization: Tokenization | None = None
    """Tokens: WordPiece subwords, characters or words. Default: wordpiece, or as in the checkpoint."""
    vocabulary: Path | None = None
    """A vocab.txt file. Default: the vocabulary is learned from the training rows."""
    prune: bool = False
    """Remove tokens that do not occur in the training texts from the vocabulary; single characters are retained."""
    vocabulary_size: int = 16_000
    """Maximum size of a learned vocabulary."""
    min_frequency: Count | None = None
    """Minimum number of occurrences of a token in a learned vocabulary. Default: 2, or 1 for --task classify from
    scratch with fewer than 1,000 training rows."""
    lower_case: bool | None = None
    """Lower-case texts and strip accents. Default: on, except for tagging, where case marks names."""
    max_length: Annotated[int | None, Range(at_least=3)] = None
    """Maximum sequence length in tokens, with [CLS] and [SEP]; longer texts are truncated and counted. Default: 256, or
    512 for --task classify from scratch without windows if more than a tenth of the training texts are longer."""

    @property
    def longest(self) -> int:
        """`max_length`; if it depends on training texts that have not been read, the largest default."""
        return self.max_length or LONG_MAX_LENGTH


@dataclass(frozen=True)
class EncoderSection:
    """Encoder architecture (kmha.config.EncoderConfig). Default with --encoder.pretrained: as in the checkpoint."""

    pretrained: str = ""
    """Initial weights: minilm (extra: minilm), folder or name of a published BERT, or a run folder. Default: random."""
    size: Literal["", "none", "tiny", "mini", "small"] = ""
    """Named shape: tiny (2 layers of 128), mini (4 of 256) or small (4 of 512), heads of 64; none: only the linear
    path. Default: values below."""
    hidden_dim: int | None = None
    """Size of the token vectors. Default: 128."""
    num_layers: int | None = None
    """Number of encoder blocks. Default: 2. Fewer than in the checkpoint: evenly spaced blocks of it."""
    num_heads: int | None = None
    """Attention heads per block. Default: 4."""
    head_dim: int | None = None
    """Size of a head. Default: hidden_dim / num_heads."""
    intermediate_dim: int | None = None
    """Inner size of the feed-forward network. Default: 512."""
    positions: Positions | None = None
    """Position encoding. Default: learned; for tagging rotary."""
    norm: Norm | None = None
    """Layer normalization before (pre) or after (post, as in BERT) each sublayer. Default: pre."""
    activation: Activation | None = None
    """Activation of the feed-forward network. Default: gelu (exact)."""
    dropout: float | None = None
    """Dropout probability. Default: 0.3; for character tagging 0.05; with a checkpoint 0.1."""
    attention_dropout: float = 0.1
    """Dropout probability of attention weights."""
    attention_window: Annotated[int | None, Range(at_least=1)] = None
    """Local attention: tokens on each side that a token attends to. Default: all, or as in the checkpoint."""
    attention_globals: Annotated[int | None, Range(at_least=0)] = None
    """Local attention: number of first tokens with global attention. Default: 1, the [CLS] token."""
    token_dropout: float | None = None
    """Share of random tokens that training batches leave out; models without a linear path and those of pairs or words
    replace them by [UNK]. Default: 0.3 or 0.4; for tagging 0.2 or 0.05."""
    linear: bool | None = None
    """Add the logits of a linear model: on n-grams, for pairs on their overlap, in tagging on features of words.
    Default: on without a teacher, but off for pairs in the bi form, from scratch without overlap or from few labels,
    and for tagging with a checkpoint."""
    ngram_buckets: int | None = None
    """Rows of each hashed n-gram table, best a prime; 0: no n-grams. Default: 131071, or as in the checkpoint; 0 with
    --encoder.linear or --encoder.size. N-grams can be added to a checkpoint without n-grams."""
    ngram_dim: int | None = None
    """Size of the n-gram vectors. Default: 64."""
    ngram_orders: tuple[int, ...] | None = None
    """The n of each n-gram table. Default: 2 3."""
    vectors: Path | None = None
    """Word vectors (word2vec or GloVe text format) that initialize the token embedding."""


@dataclass(frozen=True)
class FinetuneSection:
    """Fine-tuning of a pretrained encoder; layers are counted from the embedding up."""

    layer_decay: Annotated[float | None, Range(above=0, at_most=1)] = None
    """Learning rate of a block relative to the block above it. Default: 1; with a checkpoint 0.9."""
    head_factor: Annotated[float | None, Range(above=0)] = None
    """Learning rate of the layers above the encoder relative to the encoder. Default: 1; with a checkpoint 5."""
    frozen_layers: Annotated[int, Range(at_least=0)] = 0
    """Number of lowest blocks to freeze, together with the embedding."""
    head_fraction: Probability = 0.0
    """Fraction of all steps in which only the layers above the encoder are trained."""
    unfreeze_fraction: Probability = 0.0
    """Fraction of all steps over which the blocks are unfrozen one by one, highest first; 0: all at once."""


@dataclass(frozen=True)
class OptimizerSection:
    """AdamW optimizer, learning rate schedule, gradient clipping and weight averaging."""

    learning_rate: Annotated[float | None, Range(above=0)] = None
    """Peak learning rate. Default: 0.001; under 5,000 pairs 0.0003; with a checkpoint 0.0002, for pairs 0.00008."""
    embedding_rate: Annotated[float | None, Range(above=0)] = None
    """Learning rate of the embedding tables relative to the rest. Default: 4 for multi-label rows, else 1."""
    weight_decay: NotNegative = 0.01
    """Decoupled weight decay; biases and normalization weights have none."""
    warmup_fraction: Annotated[float, Range(at_least=0, at_most=1)] = 0.1
    """Fraction of all steps in which the learning rate rises linearly."""
    decay: Literal["linear", "cosine", "constant"] = "linear"
    """Learning rate schedule after the warmup."""
    clip_norm: NotNegative = 1.0
    """Maximum global norm of the gradients; 0: no clipping."""
    accumulation_steps: Count = 1
    """Number of batches per optimizer step."""
    ema_decay: Probability = 0.999
    """Decay of the moving average of the weights, which is evaluated and saved; 0: no averaging."""


@dataclass(frozen=True)
class TrainSection:
    """Epochs, batches, seed and checkpoints."""

    epochs: Annotated[int, Range(at_least=0)] = 0
    """Maximum number of epochs; 0: about 1,200 batches in all, 400 with a linear path, from 1 to 20 epochs.

    With a linear path, also more epochs, up to 4, if a label has fewer than 1,000 training rows on average."""
    patience: Count = 2
    """Early stopping: epochs without a better validation metric."""
    batch_tokens: Count = 2048
    """Maximum number of padded tokens in a batch."""
    batch_rows: Annotated[int | None, Range(at_least=1)] = None
    """Maximum number of rows in a batch. Default: 64; with a checkpoint 32."""
    buckets: Count = 8
    """Maximum number of length buckets (padded sequence lengths)."""
    jit: Literal["auto", "on", "off"] = "auto"
    """Compile the training step with XLA; auto: on GPUs."""
    seed: Annotated[int, Range(at_least=0, below=2**32)] = 0
    """Random seed of the split, the initial weights, the order of rows and dropout."""
    checkpoint_minutes: NotNegative = 10.0
    """Minutes between checkpoints for --resume."""
    checkpoint_steps: Annotated[int, Range(at_least=0)] = 0
    """Optimizer steps between checkpoints, in addition to --train.checkpoint-minutes; 0: by time alone."""
    checkpoints_kept: Count = 2
    """Number of checkpoints to keep; if the newest is damaged, --resume uses the one before it."""


@dataclass(frozen=True)
class DistillSection:
    """Knowledge distillation from another run; see docs/how-to/distill.md."""

    teacher: Path | None = None
    """Run folder of the teacher: a model of the same task and labels."""
    temperature: Positive = 2.0
    """Temperature that softens the predictions of teacher and student."""
    weight: Annotated[float, Range(at_least=0, at_most=1)] = 0.9
    """Weight of the teacher's loss; the loss of the labels has the rest."""
    hidden_states: NotNegative = 0.0
    """Weight of the distance to the teacher's token vectors; needs the teacher's tokenization."""
    attention: NotNegative = 0.0
    """Weight of the distance to the teacher's attention weights; needs the teacher's tokenization."""
    texts: Path | None = None
    """More texts without labels: .txt with one text per line (pairs: tab-separated), or a table like --data.train."""
    cache: Path | None = None
    """Folder that caches the teacher's predictions for other runs with the same teacher and texts."""


@dataclass(frozen=True)
class FewshotSection:
    """Classification and matching from few labels with a pretrained encoder; see docs/how-to/few-labels.md."""

    mode: Annotated[Literal["auto", "contrastive", "probe", "off"], tyro.conf.arg(aliases=("--fewshot",))] = (
        "auto"
    )
    """With under 100 training rows a label: contrastive trains the encoder on pairs of rows, probe trains only a linear
    head, auto chooses by cross-validated loss, off holds rows out and fine-tunes. auto is off with --train.epochs,
    --optimizer.learning-rate or --distill.teacher."""
    texts: Path | None = None
    """Texts without labels: .txt with one text per line, or a table like --data.train. They join the contrastive stage
    with predicted labels if that does not raise the cross-validated loss."""


@dataclass(frozen=True)
class FitConfig:
    """Trains a model from a file of examples and writes the model and its scores to a run folder.

    Flags override the --config file, which overrides the defaults.
    """

    config: Path | None = None
    """TOML file of settings, with the sections below."""
    task: Literal["classify", "match", "tag", "masked-lm"] = "classify"
    """Task: labels of texts (classify), scores of pairs (match), tags of words (tag), or pretraining (masked-lm)."""
    out: Path | None = None
    """Run folder to write. Default: runs/NAME, with the name of the data."""
    overwrite: bool = False
    """Replace an existing run folder."""
    resume: bool = False
    """Resume an interrupted run with the same settings."""
    resume_or_begin: bool = False
    """Resume if there is an interrupted run, else start a new one: one command for the first start and all restarts."""
    baseline: bool = True
    """Also train the linear baseline on the same rows."""
    calibrate: bool = True
    """Calibrate the probabilities by a temperature fitted on the validation rows."""
    report: bool = True
    """Write report.html and report.md into the run: scores, figures and example rows."""
    mask_texts: bool = False
    """Hide digits and e-mail addresses in the texts of the report."""
    json: bool = False
    """Print the result as JSON on a terminal too. Default: a table on a terminal, otherwise JSON."""
    precision: Literal["float32", "bfloat16", "float16"] = "float32"
    """Compute dtype; weights stay float32."""
    strategy: Literal["auto", "one", "mirrored"] = "auto"
    """One device (one) or all GPUs (mirrored; without GPUs all virtual CPUs); auto: all GPUs."""
    tensorboard: bool = False
    """Write TensorBoard logs (extra: tensorboard)."""
    data: DataSection = field(default_factory=DataSection)
    text: TextSection = field(default_factory=TextSection)
    encoder: EncoderSection = field(default_factory=EncoderSection)
    classify: ClassifySettings = field(default_factory=ClassifySettings)
    match: MatchSettings = field(default_factory=MatchSettings)
    tag: TagSettings = field(default_factory=TagSettings)
    masked_lm: MaskedLmSettings = field(default_factory=MaskedLmSettings)
    finetune: FinetuneSection = field(default_factory=FinetuneSection)
    optimizer: OptimizerSection = field(default_factory=OptimizerSection)
    train: TrainSection = field(default_factory=TrainSection)
    distill: DistillSection = field(default_factory=DistillSection)
    fewshot: FewshotSection = field(default_factory=FewshotSection)

    def out_folder(self) -> Path:
        """The run folder: --out, or one named after the data."""
        if self.out is not None:
            return self.out
        if self.data.train is not None:
            name = self.data.train.name.split(".")[0]
        else:
            name = self.data.tfds.split("/")[0].split(":")[0] or sample_name(self)
        return Path("runs") / name


@dataclass(frozen=True)
class ResolvedConfig(FitConfig):
    """A `FitConfig` after `resolve_config`: every default that does not depend on the data is filled in."""

    checkpoint: Checkpoint | None = field(default=None, compare=False)
    """The checkpoint that --encoder.pretrained names; not a setting."""


def task_section(config: FitConfig) -> TaskSettings:
    """The settings of the task, with the defaults for a pretrained encoder or for none."""
    given = given_task_section(config)
    if config.encoder.size == NO_ENCODER:
        return given.without_encoder()
    return given.for_pretrained() if config.encoder.pretrained else given


def given_task_section(config: FitConfig) -> TaskSettings:
    """The section of the task's settings, without defaults."""
    return getattr(config, config.task.replace("-", "_"))


def sample_name(config: FitConfig) -> str:
    """The sample data set: the one in the settings, or that of the task."""
    if config.data.sample != "auto":
        return config.data.sample
    return "pos" if config.task == "tag" else "reviews"


def settings(config: FitConfig) -> dict[str, Any]:
    """A config as nested plain values for TOML: without None and --config, paths as strings."""
    no_settings = ("config", "checkpoint")

    def plain(value: Any) -> Any:
        if dataclasses.is_dataclass(value):
            fields = {f.name: plain(getattr(value, f.name)) for f in dataclasses.fields(value)}
            return {
                name: item for name, item in fields.items() if item is not None and name not in no_settings
            }
        if isinstance(value, Path):
            return str(value)
        return list(value) if isinstance(value, tuple) else value

    return plain(config)


def differences(began: dict[str, Any], now: dict[str, Any], free: Sequence[str] = ()) -> str:
    """Lists the settings that differ between two nested dicts: the flag, the old value and the new value.

    Settings in `free`, as `section.name`, are ignored. The result is empty if all others are equal.
    """
    before, after = flatten(began), flatten(now)
    return "; ".join(
        f"--{name.replace('_', '-')} {_word(before.get(name))}, got {_word(after.get(name))}"
        for name in before | after
        if name not in free and before.get(name) != after.get(name)
    )


def flatten(table: dict[str, Any], prefix: str = "") -> dict[str, Any]:
    """The values of nested tables by their names, `section.name`."""
    flat: dict[str, Any] = {}
    for name, value in table.items():
        flat |= flatten(value, f"{prefix}{name}.") if isinstance(value, dict) else {prefix + name: value}
    return flat


def _word(value: Any) -> str:
    return "unset" if value is None else str(value)
