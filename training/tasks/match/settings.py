"""Settings of text matching, the flags `--match.*`."""

import dataclasses
from typing import Annotated, Literal

from kmha.config import EncoderConfig
from kmha.errors import InputError
from training.cli.bounds import Count, Positive, Probability, Range
from training.tasks.settings import TaskSettings

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


@dataclasses.dataclass(frozen=True)
class MatchSettings(TaskSettings):
    """Text matching: whether two texts match, how well, or which class the pair has."""

    target: Literal["auto"] | Target = "auto"
    """Kind of labels: binary (0 or 1), classes (names) or graded (numbers); auto: detected."""
    form: Literal["cross", "bi", "joint"] | None = None
    """cross: encodes each text, then cross-attention between both; bi: encodes each text, then the cosine; joint:
    encodes both texts as one sequence; None: cross, with a pretrained encoder joint."""
    granularities: tuple[Tokenization, ...] = ()
    """Tokenizations, each with an encoder of its own; default: the one of --text.tokenization."""
    rounds: Annotated[int, Range(at_least=1, at_most=4)] = 1
    """Cross-attention layers of the cross form."""
    pooling: Literal["cls", "mean", "max"] = "mean"
    """How the token vectors of a text are pooled to one vector."""
    symmetric: bool = False
    """Make the score independent of the order of the two texts."""
    overlap: bool | None = None
    """Mark tokens that appear in both texts; None: on, except for the bi form and pretrained encoders."""
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

    def check(self) -> None:
        """Checks that the settings go together, whatever the rows are.

        Raises:
            InputError: Names the flag.
        """
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
        """Checks that the settings allow labels that are classes.

        Args:
            classes: Description of the labels, for the message.

        Raises:
            InputError: A setting needs one score per pair; names the flag.
        """
        if self.loss not in ("auto", "cross-entropy"):
            raise InputError(f"--match.loss: expected cross-entropy for {classes}, got {self.loss}")
        if self.form == "bi":
            raise InputError(f"--match.form: expected cross or joint for {classes}, got bi")
        if self.hard_negatives != NONE:
            raise InputError(
                f"--match.hard-negatives: expected none for {classes}, got {self.hard_negatives}"
            )
