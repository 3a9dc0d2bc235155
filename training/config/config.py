"""Everything a fit can be told. The string under each field is its help on the command line."""

import dataclasses
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any, Literal

from kmha.config import Activation, Norm, Positions
from kmha.text.vocabulary import Tokenization
from training.cli.bounds import Count, NotNegative, OpenShare, Positive, Probability, Range
from training.tasks.classify.settings import ClassifySettings
from training.tasks.masked_lm.settings import MaskedLmSettings
from training.tasks.match.settings import MatchSettings
from training.tasks.settings import TaskSettings
from training.tasks.tag.settings import TagSettings

BATCH_ROWS = 64


@dataclass(frozen=True)
class DataSection:
    """Where the rows come from. Without train and tfds: the sample that an installed package carries."""

    train: Path | None = None
    """Training rows: .csv, .tsv, .jsonl, of sentences .conll, .conllu, .bio or .iob, of texts alone .txt; also .gz."""
    validation: Path | None = None
    """Validation rows; without it a share of the training rows is held out."""
    test: Path | None = None
    """Test rows, read once at the end."""
    text_column: str = ""
    """Column of the text, or of the first of a pair; empty: text, of pairs text_a, of sentences words (CoNLL: 1)."""
    text_b_column: str = ""
    """Column of the second text of a pair; empty: text_b."""
    label_column: str = ""
    """Column of the label; empty: label, or labels for several to a row, of sentences tags (CoNLL: the last)."""
    label_separator: str = "|"
    """What stands between the labels of a row that has several."""
    query_column: str = ""
    """Column of the name of the query that a pair belongs to; empty: query_id, where there is one."""
    validation_fraction: OpenShare = 0.1
    """Share of the training rows held out where no validation rows are given; see large_rows."""
    large_rows: Count = 500_000
    """More rows to train on than this are cut into tokens a part at a time while training goes on; the vocabulary is
    learnt from a tenth as many, and as many are held out as of this number."""
    sample: Literal["auto", "reviews", "pos"] = "auto"
    """The sample used when no rows are given (extra: samples): reviews with labels, or, for tags, parts of speech."""
    tfds: str = ""
    """Name of a TensorFlow data set to use instead of files (extra: tfds)."""
    tfds_dir: Path | None = None
    """Folder of prepared TensorFlow data sets."""
    tfds_test: str = "test"
    """Its split of test rows; empty: none."""


@dataclass(frozen=True)
class TextSection:
    """How strings become tokens."""

    tokenization: Tokenization | None = None
    """wordpiece splits Chinese characters and rare words; char and word do what they say; None: wordpiece."""
    vocabulary: Path | None = None
    """A vocab.txt to use instead of learning one from the training rows."""
    prune: bool = False
    """Leave out what of the vocabulary the training texts lack; their characters stay."""
    vocabulary_size: int = 16_000
    """Most tokens of a learnt vocabulary."""
    min_frequency: Count = 2
    """Rarer tokens are not learnt."""
    lower_case: bool | None = None
    """Lower-case and strip accents; None: yes, but not for tags, where names are told by their case."""
    max_length: Annotated[int, Range(at_least=3)] = 256
    """Longest sequence in tokens, the two special ones included; the rest is cut and counted."""


@dataclass(frozen=True)
class EncoderSection:
    """Shape of the encoder, see kmha.config.EncoderConfig, and what it starts from, whose shape None then means."""

    pretrained: str = ""
    """Where it starts from: minilm (extra: minilm), a published BERT's folder or name, or a run folder; empty: anew."""
    size: Literal["", "tiny", "mini", "small"] = ""
    """Named shape: tiny 2 layers of 128, mini 4 of 256, small 4 of 512; heads of 64; empty: the numbers below."""
    hidden_dim: int | None = None
    """Size of every token's vector; None: 128."""
    num_layers: int | None = None
    """Encoder blocks; None: 2. With fewer than the checkpoint has, some of its blocks are taken."""
    num_heads: int | None = None
    """Attention heads of a block; None: 4."""
    head_dim: int | None = None
    """Size of a head; None: hidden_dim / num_heads."""
    intermediate_dim: int | None = None
    """Inner size of the feed-forward network; None: 512."""
    positions: Positions | None = None
    """How order enters; None: learned, for tags rotary."""
    norm: Norm | None = None
    """Where layer normalisation stands, None: pre; post is the form of 2017 and of BERT."""
    activation: Activation | None = None
    """Of the feed-forward network; None: gelu, the exact one."""
    dropout: float | None = None
    """Probability of dropping a value; None: 0.3, for tags of single characters 0.05, of a checkpoint 0.1."""
    attention_dropout: float = 0.1
    """Probability of dropping an attention weight."""
    attention_window: Annotated[int | None, Range(at_least=1)] = None
    """How many tokens before and behind itself a token sees; None: all of the text, of a checkpoint as it does."""
    attention_globals: Annotated[int | None, Range(at_least=0)] = None
    """With a window, how many first tokens see all and are seen by all; None: 1, the [CLS]."""
    token_dropout: float | None = None
    """Probability of replacing a token by [UNK] in training; None: 0.3 or 0.4, for tags 0.2 or 0.05."""
    ngram_buckets: int | None = None
    """Rows of each hashed n-gram table, best a prime; 0: none; None: 131071, of a checkpoint its own. N-grams decide
    on small data; a checkpoint that has none may get some."""
    ngram_dim: int | None = None
    """Size of an n-gram's vector; None: 64."""
    ngram_orders: tuple[int, ...] | None = None
    """The n of each n-gram table; None: 2 and 3."""
    vectors: Path | None = None
    """Word vectors (word2vec or GloVe text form) that start the token embedding."""


@dataclass(frozen=True)
class FinetuneSection:
    """How an encoder that knows something already is trained on; counted from the embedding up."""

    layer_decay: Annotated[float | None, Range(above=0, at_most=1)] = None
    """Rate of a block over that of the block above it; None: 1, of a checkpoint 0.9."""
    head_factor: Annotated[float | None, Range(above=0)] = None
    """Rate of what is not of the encoder over the encoder's; None: 1, of a checkpoint 5."""
    frozen_layers: Annotated[int, Range(at_least=0)] = 0
    """Lowest blocks that stay as they are, the embedding with them."""
    head_fraction: Probability = 0.0
    """Share of all steps in which only what is above the encoder moves."""
    unfreeze_fraction: Probability = 0.0
    """Share of all steps over which the blocks begin to move one by one, the highest first; 0: all at once."""


@dataclass(frozen=True)
class OptimizerSection:
    """AdamW, its learning rate's course, and what happens to gradients and weights around it."""

    learning_rate: Annotated[float | None, Range(above=0)] = None
    """The highest rate; None: 0.001, for fewer than 5,000 training pairs 0.0003; of a checkpoint 0.0002 or 0.00008."""
    embedding_rate: Annotated[float | None, Range(above=0)] = None
    """Rate of the embedding tables over that of the rest; None: 4 with several labels a row, else 1."""
    weight_decay: NotNegative = 0.01
    """Share of a weight lost each step, times the rate; biases and norms lose none."""
    warmup_fraction: Annotated[float, Range(at_least=0, at_most=1)] = 0.1
    """Share of all steps in which the rate rises."""
    decay: Literal["linear", "cosine", "constant"] = "linear"
    """How the rate falls after that."""
    clip_norm: NotNegative = 1.0
    """Largest global norm of a gradient; 0: no clipping."""
    accumulation_steps: Count = 1
    """Batches of one optimizer step."""
    ema_decay: Probability = 0.999
    """Decay of the moving average of weights that is judged and kept; 0: none."""


@dataclass(frozen=True)
class TrainSection:
    """How long, and how much at once."""

    epochs: Annotated[int, Range(at_least=0)] = 0
    """Passes over the training rows at most; 0: as many as make about 1,200 batches, from 3 to 20."""
    patience: Count = 2
    """Epochs without a better validation metric before training ends."""
    batch_tokens: Count = 2048
    """Padded tokens of a batch at most."""
    batch_rows: Annotated[int | None, Range(at_least=1)] = None
    """Rows of a batch at most; None: 64, of an encoder that starts from a checkpoint 32."""
    buckets: Count = 8
    """Padded lengths to compute at most."""
    jit: Literal["auto", "on", "off"] = "auto"
    """Whether XLA compiles forward and backward; auto: on GPUs."""
    seed: Annotated[int, Range(at_least=0, below=2**32)] = 0
    """Of the split, the weights, the order of rows and dropout."""
    checkpoint_minutes: NotNegative = 10.0
    """Time between checkpoints, from which --resume goes on after a kill."""
    checkpoint_steps: Annotated[int, Range(at_least=0)] = 0
    """Optimizer steps between checkpoints, where the time has not come before; 0: by time alone."""
    checkpoints_kept: Count = 2
    """Checkpoints that stay; where the newest is damaged --resume takes the one before it."""


@dataclass(frozen=True)
class DistillSection:
    """Learning from the answers of another run beside the labels; see docs/how-to/distill.md."""

    teacher: Path | None = None
    """Run folder of a model of the same task and labels, from whose answers to learn."""
    temperature: Positive = 2.0
    """Softens both models' answers before they are compared, so that what the teacher rules out says something too."""
    weight: Annotated[float, Range(at_least=0, at_most=1)] = 0.9
    """Share of the loss that is the teacher's; the rest is that of the labels."""
    hidden_states: NotNegative = 0.0
    """Weight of the distance to the teacher's vectors of tokens; needs texts cut as by the teacher."""
    attention: NotNegative = 0.0
    """Weight of the distance to the teacher's attention weights; needs texts cut as by the teacher."""
    texts: Path | None = None
    """More texts without labels: .txt, one a line (of pairs a tab between), or a table as the training rows."""
    cache: Path | None = None
    """Folder that keeps the teacher's answers for other runs with the same teacher and texts."""


@dataclass(frozen=True)
class FitConfig:
    """Trains a model from a file of examples and writes it, with its scores, to a run folder.

    Settings come from the defaults, then the --config file, then flags.
    """

    config: Path | None = None
    """TOML file of settings, in sections as below."""
    task: Literal["classify", "match", "tag", "masked-lm"] = "classify"
    """What to learn: the labels of texts, the scores of pairs, the tags of words, or texts alone (masked-lm)."""
    out: Path | None = None
    """Run folder to write; default: runs/ and the name of the data."""
    overwrite: bool = False
    """Replace a run that stands there."""
    resume: bool = False
    """Go on with an interrupted run of the same settings."""
    resume_or_begin: bool = False
    """Go on where an interrupted run stands, else begin: one command for the first start and every restart."""
    baseline: bool = True
    """Also train the linear baseline on the same rows."""
    calibrate: bool = True
    """Divide the logits by a temperature found on validation rows, so that probabilities mean what they say."""
    report: bool = True
    """Write report.html and report.md into the run: scores, pictures, and rows to read with their texts."""
    precision: Literal["float32", "bfloat16", "float16"] = "float32"
    """Number format of the computation; weights stay float32."""
    strategy: Literal["auto", "one", "mirrored"] = "auto"
    """One device, or all GPUs (else all virtual CPUs) together; auto uses all GPUs."""
    tensorboard: bool = False
    """Write logs for TensorBoard (extra: tensorboard)."""
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

    def out_folder(self) -> Path:
        """The run folder, given or derived from the data's name."""
        if self.out is not None:
            return self.out
        if self.data.train is not None:
            name = self.data.train.name.split(".")[0]
        else:
            name = self.data.tfds.split("/")[0].split(":")[0] or sample_name(self)
        return Path("runs") / name


def task_section(config: FitConfig) -> TaskSettings:
    """The settings of the task that --task names."""
    return getattr(config, config.task.replace("-", "_"))


def sample_name(config: FitConfig) -> str:
    """The sample of a config: the one named, or the one its task can learn from."""
    if config.data.sample != "auto":
        return config.data.sample
    return "pos" if config.task == "tag" else "reviews"


def settings(config: FitConfig) -> dict[str, Any]:
    """A config as nested plain values for TOML: no None, no --config, paths as strings."""

    def plain(value: Any) -> Any:
        if dataclasses.is_dataclass(value):
            fields = {f.name: plain(getattr(value, f.name)) for f in dataclasses.fields(value)}
            return {name: item for name, item in fields.items() if item is not None and name != "config"}
        if isinstance(value, Path):
            return str(value)
        return list(value) if isinstance(value, tuple) else value

    return plain(config)
