"""Settings of the tasks: the flags `--classify.*`, `--match.*`, `--tag.*` and `--masked-lm.*`."""

import dataclasses
from typing import TYPE_CHECKING, Annotated, Literal, Self

from kmha.config import EncoderConfig
from kmha.errors import InputError
from kmha.tags import Scheme
from training.cli.bounds import Count, OpenShare, Positive, Probability, Range

if TYPE_CHECKING:
    from kmha.document_windows import WindowShape

TEXT, LABEL, LABELS = "text", "label", "labels"
DEFAULT_SMOOTHING = 0.1
# The default overlap is this fraction of a window.
DEFAULT_OVERLAP_DIVISOR = 4
SPECIAL_TOKENS_PER_WINDOW = 2
Target = Literal["binary", "classes", "graded"]
Loss = Literal["cross-entropy", "squares", "triplet", "listwise", "contrastive"]
Metric = Literal[
    "accuracy",
    "f1",
    "macro_f1",
    "roc_auc",
    "average_precision",
    "map",
    "mrr",
    "ndcg_at_10",
    "pearson",
    "spearman",
]
Tokenization = Literal["wordpiece", "char", "word"]
# Values of `hard_negatives` that are not a run folder.
NONE, BM25 = "none", "bm25"
# Losses that compare the candidates of a query, which must be in one batch.
LISTS = ("triplet", "listwise")
BY_QUERY: tuple[Metric, ...] = ("map", "mrr", "ndcg_at_10")
DEFAULT_FORM = "cross"


class TaskSettings:
    """Base of the settings of a task: fields are flags, methods follow from the fields alone."""

    def tokenizations(self, default: str) -> tuple[str, ...]:
        """The tokenizations of the task, by default that of the text settings; one encoder is built for each."""
        return (default,)

    def encoder(self, config: EncoderConfig) -> EncoderConfig:
        """The shape of the encoder for this task, from the one that the encoder settings describe."""
        return config

    def for_pretrained(self) -> Self:
        """The settings with the defaults for a pretrained encoder."""
        return self

    def without_encoder(self) -> Self:
        """The settings of a model that is its linear path."""
        return self

    @property
    def allow_few_labels(self) -> bool:
        """Whether a model may be trained from few labels: the task supports it, and no setting is for fine-tuning."""
        return False


@dataclasses.dataclass(frozen=True)
class ClassifySettings(TaskSettings):
    """Text classification: one label per text, or any number of labels."""

    multi_label: bool | None = None
    """Whether a text may have several labels; default: if the label column is named labels."""
    pooling: Literal["cls", "mean", "max"] = "mean"
    """How the token vectors are pooled to one vector."""
    dropout: Probability = 0.3
    """Dropout probability of the pooled vector."""
    label_smoothing: Annotated[float | None, Range(at_least=0, below=1)] = None
    """Label smoothing; default: 0.1 for one label per text, 0 for several."""
    class_weights: Literal["none", "balanced"] = "none"
    """balanced: rows of rare labels have a higher weight in the loss."""
    window: Annotated[int, Range(at_least=0)] = 0
    """Tokens of a window, special tokens included. Texts up to --text.max-length are read in overlapping windows;
    0: no windows."""
    window_overlap: Annotated[int | None, Range(at_least=0)] = None
    """Text tokens that neighboring windows share; default: a quarter of a window."""
    window_pooling: Literal["mean", "max", "attention"] = "mean"
    """How the vectors of the windows are pooled; mean counts every token once."""

    @property
    def windows(self) -> "WindowShape | None":
        """The windows of long texts; None: texts are read as one sequence."""
        from kmha.document_windows import WindowShape

        if not self.window:
            return None
        # A very small window may have less room than the default overlap.
        overlap = min(self.window // DEFAULT_OVERLAP_DIVISOR, self.window - SPECIAL_TOKENS_PER_WINDOW - 1)
        return WindowShape(self.window, overlap if self.window_overlap is None else self.window_overlap)

    @property
    def smoothing(self) -> float:
        """The label smoothing. With several labels the default is 0: rare labels are below any smoothed target."""
        if self.label_smoothing is not None:
            return self.label_smoothing
        return 0.0 if self.multi_label else DEFAULT_SMOOTHING

    def encoder(self, config: EncoderConfig) -> EncoderConfig:
        """The given shape; with windows, at most one window long."""
        return dataclasses.replace(config, max_length=self.window) if self.window else config

    @property
    def allow_few_labels(self) -> bool:
        """Yes."""
        return True

    def check_windows(self, max_length: int) -> None:
        """Raises InputError if a window setting is out of range, or has no effect without `window`."""
        if not self.window:
            pooling = self.window_pooling if self.window_pooling != "mean" else None
            for flag, value in (("window-overlap", self.window_overlap), ("window-pooling", pooling)):
                if value is not None:
                    raise InputError(
                        f"--classify.{flag}: expected it together with --classify.window, got it alone"
                    )
            return
        if self.window <= SPECIAL_TOKENS_PER_WINDOW:
            raise InputError(f"--classify.window: expected 3 or more, or 0 for none, got {self.window}")
        if self.window > max_length:
            raise InputError(
                f"--classify.window: expected at most the {max_length} tokens of --text.max-length, got {self.window}"
            )
        text_tokens = self.window - SPECIAL_TOKENS_PER_WINDOW
        if self.window_overlap is not None and self.window_overlap >= text_tokens:
            raise InputError(
                f"--classify.window-overlap: expected less than the {text_tokens} text tokens of a window of"
                f" {self.window}, got {self.window_overlap}"
            )


@dataclasses.dataclass(frozen=True)
class MatchSettings(TaskSettings):
    """Text matching: whether two texts match, how well, or which class the pair has."""

    target: Literal["auto"] | Target = "auto"
    """Kind of labels: binary (0 or 1), classes (names) or graded (numbers); auto: detected."""
    form: Literal["cross", "bi", "joint"] | None = None
    """cross: encodes each text, then cross-attention between both; bi: encodes each text, then the cosine; joint:
    encodes both texts as one sequence; default: cross, with a pretrained encoder joint (few labels: see --fewshot)."""
    granularities: tuple[Tokenization, ...] = ()
    """Tokenizations, each with an encoder of its own; default: the one of --text.tokenization."""
    rounds: Annotated[int, Range(at_least=1, at_most=4)] = 1
    """Cross-attention layers of the cross form."""
    pooling: Literal["cls", "mean", "max"] = "mean"
    """How the token vectors of a text are pooled to one vector."""
    symmetric: bool = False
    """Make the score independent of the order of the two texts."""
    overlap: bool | None = None
    """Mark tokens that appear in both texts; default: on, except for the bi form and pretrained encoders."""
    share_weights: bool = True
    """Use one encoder for both texts."""
    dropout: Probability = 0.3
    """Dropout probability of the joined features."""
    loss: Literal["auto"] | Loss = "auto"
    """Training loss; auto: cross-entropy, for graded pairs squares."""
    margin: Positive = 1.0
    """Margin of the triplet loss between the logits of a right and a wrong candidate."""
    label_smoothing: Annotated[float, Range(at_least=0, below=1)] = 0.0
    """Label smoothing of the cross-entropy."""
    hard_negatives: str = NONE
    """Source of additional wrong pairs from the training texts: none, bm25, or a run folder of the bi form."""
    negatives: Count = 4
    """Hard negatives per query."""
    best_by: Literal["auto"] | Metric = "auto"
    """Metric that selects the best weights; auto: map with queries, else accuracy, for graded pairs spearman."""

    def tokenizations(self, default: str) -> tuple[str, ...]:
        """The granularities, each once; else the default."""
        return tuple(dict.fromkeys(self.granularities)) or (default,)

    def encoder(self, config: EncoderConfig) -> EncoderConfig:
        """The given shape; the joint form has two segments and room for both texts."""
        if self.form != "joint":
            return config
        return dataclasses.replace(config, num_segments=2, max_length=2 * config.max_length - 1)

    def for_pretrained(self) -> Self:
        """The joint form, without overlap features: with them a checkpoint has accuracy .757 on MRPC, without .789."""
        return dataclasses.replace(self, form=self.form or "joint", overlap=bool(self.overlap))

    def without_encoder(self) -> Self:
        """The form with the fewest parts, if none is set; the linear path has overlap features of its own."""
        return dataclasses.replace(self, form=self.form or "joint", overlap=False, share_weights=True)

    @property
    def allow_few_labels(self) -> bool:
        """Whether the model and the loss are the default ones."""
        names = ("form", "rounds", "overlap", "share_weights", "granularities", "hard_negatives")
        is_default = all(getattr(self, name) == getattr(MatchSettings, name) for name in names)
        return is_default and self.loss in ("auto", "cross-entropy") and self.target != "graded"

    def check(self) -> None:
        """Raises InputError if the settings do not go together, whatever the rows are."""
        if self.loss == "contrastive" and self.form != "bi":
            raise InputError(
                f"--match.form: expected bi for --match.loss contrastive, which scores all pairs of a batch,"
                f" got {self.form}"
            )
        if self.overlap and self.form == "bi":
            raise InputError(
                "--match.overlap: expected none in the bi form, which encodes the texts separately, got it"
            )
        if self.target == "classes":
            self.check_classes("classes")
        if not self.share_weights and (self.symmetric or self.form == "joint"):
            flag = "--match.symmetric" if self.symmetric else "--match.form joint"
            raise InputError(f"--match.share-weights: expected shared weights with {flag}, got none")

    def check_classes(self, classes: str) -> None:
        """Raises InputError if a setting needs one score per pair, and labels are classes, described by `classes`."""
        if self.loss not in ("auto", "cross-entropy"):
            raise InputError(f"--match.loss: expected cross-entropy for {classes}, got {self.loss}")
        if self.form == "bi":
            raise InputError(f"--match.form: expected cross or joint for {classes}, got bi")
        if self.hard_negatives != NONE:
            raise InputError(
                f"--match.hard-negatives: expected none for {classes}, got {self.hard_negatives}"
            )


@dataclasses.dataclass(frozen=True)
class TagSettings(TaskSettings):
    """Sequence tagging: a tag for each word of a sentence."""

    head: Literal["crf", "softmax"] = "crf"
    """crf learns transitions between tags; softmax only excludes transitions that the scheme forbids."""
    scheme: Literal["auto"] | Scheme = "auto"
    """Tagging scheme that the model learns; auto: the scheme of the training rows."""
    word_pooling: Literal["first", "mean"] = "first"
    """Vector of a word: that of its first token, or the mean of its tokens."""
    characters: bool | None = None
    """Read the characters of each word; default: yes, unless words are single characters."""
    character_dim: Annotated[int, Range(at_least=1)] = 64
    """Size of the character vector of a word."""
    context_width: Annotated[int, Range(at_least=0)] = 5
    """Width of the convolution before the encoder in tokens, an odd number; 0: none."""
    split: Literal["auto", "words", "characters"] = "auto"
    """How raw texts are split for prediction; auto: into characters if nearly all training words are one character."""
    dropout: Probability = 0.5
    """Dropout probability of a word's vector."""
    best_by: Literal["auto", "span_f1", "token_accuracy"] = "auto"
    """Metric that selects the best weights; auto: span_f1, for tags without spans token_accuracy."""
    given_scheme: Literal["auto"] | Scheme = "auto"
    """Tagging scheme of the training rows; auto: detected."""


@dataclasses.dataclass(frozen=True)
class MaskedLmSettings(TaskSettings):
    """Masked language modeling: pretraining on unlabeled text."""

    share: OpenShare = 0.15
    """Fraction of tokens to predict: 80 % of them are masked, 10 % replaced and 10 % unchanged."""
    whole_word: bool = False
    """Mask all tokens of a word together."""
    packed: bool = True
    """Pack short texts into rows of --text.max-length tokens; otherwise each text is a row."""
