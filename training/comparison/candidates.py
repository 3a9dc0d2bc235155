"""The candidates of a comparison, and their sizes for equal numbers of weights."""

import dataclasses
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Literal, get_args

from kmha.config import EncoderConfig
from training.runtime.resource_usage import count_trainable_weights
from training.tasks.classify import ClassifyTask

if TYPE_CHECKING:
    import keras

Name = Literal["heads", "one-head", "no-positions", "cnn", "bilstm", "averages", "linear"]
HEADS, LINEAR = "heads", "linear"
NAMES: tuple[Name, ...] = get_args(Name)
ATTENTION: tuple[Name, ...] = ("heads", "one-head", "no-positions")

# The number of weights is a polynomial of at most degree 2 in the size; three small models define it.
_PROBED_SIZES = (4, 8, 12)


@dataclasses.dataclass(frozen=True)
class Shape:
    """Shared arguments of the candidates."""

    encoder: EncoderConfig
    num_labels: int
    pooling: str
    dropout: float


def build(name: str, shape: Shape, size: int) -> "keras.Model":
    """Builds a candidate; the size is the feed-forward width, number of filters or units, or width of the embedding."""
    from kmha.models.classifier import TextClassifier
    from training.comparison import architectures

    encoder = shape.encoder
    if name in ATTENTION:
        changes: dict[str, Any] = {"intermediate_dim": size}
        changes |= {"num_heads": 1, "head_dim": None} if name == "one-head" else {}
        changes |= {"positions": "none"} if name == "no-positions" else {}
        encoder = dataclasses.replace(encoder, **changes)
        model = TextClassifier(encoder, shape.num_labels, pooling=shape.pooling, dropout=shape.dropout)
    else:
        readers: dict[str, Callable[[], Any]] = {
            "cnn": lambda: architectures.CNN(size),
            "bilstm": lambda: architectures.BiLSTM(size),
            "averages": architectures.MeanPooling,
        }
        embedding = architectures.embedding_only(encoder, size if name == "averages" else None)
        model = architectures.PeerClassifier(embedding, shape.num_labels, readers[name](), shape.dropout)
    model.build()
    return model


def match_weights(name: str, shape: Shape, target: int) -> int:
    """The size, at least 1, with which a candidate's number of weights is closest to the target."""
    counts = [count_trainable_weights(build(name, shape, size)) for size in _PROBED_SIZES]
    # Centered on the middle size, for precision next to large constant terms.
    first, middle, last = counts
    step = _PROBED_SIZES[1] - _PROBED_SIZES[0]
    square = (first - 2 * middle + last) / (2 * step**2)
    slope = (last - first) / (2 * step)

    def count(size: int) -> float:
        distance = size - _PROBED_SIZES[1]
        return middle + slope * distance + square * distance**2

    low, high = 1, 2
    while count(high) < target:
        low, high = high, 2 * high
    while high - low > 1:
        between = (low + high) // 2
        low, high = (between, high) if count(between) < target else (low, between)
    return min((low, high), key=lambda size: abs(count(size) - target))


def describe(name: str, encoder: EncoderConfig, size: int) -> str:
    """A short description of a candidate."""
    width, layers, heads = encoder.hidden_dim, encoder.num_layers, encoder.num_heads
    blocks = f"{layers} layer{'s' * (layers != 1)} of {width}, feed-forward {size}"
    return {
        "heads": f"attention, {heads} head{'s' * (heads != 1)}, {encoder.positions} positions, {blocks}",
        "one-head": f"attention, 1 head, {encoder.positions} positions, {blocks}",
        "no-positions": f"attention, {heads} head{'s' * (heads != 1)}, no positions, {blocks}",
        "cnn": f"CNN, {size} filters each of 3, 4 and 5 tokens over {width}",
        "bilstm": f"BiLSTM, {size} units each way over {width}",
        "averages": f"average of vectors of {size}",
    }[name]


@dataclasses.dataclass(frozen=True)
class CandidateTask(ClassifyTask):
    """The classify task with a candidate as the model."""

    candidate: str = HEADS
    size: int = 1

    @classmethod
    def of(cls, task: ClassifyTask, candidate: str, size: int) -> "CandidateTask":
        """Copies a task, with a candidate as its model."""
        values = {field.name: getattr(task, field.name) for field in dataclasses.fields(ClassifyTask)}
        return cls(**values, candidate=candidate, size=size)

    def build_model(self, encoders: dict[str, EncoderConfig], labels: Sequence[str], linear: Any = None):
        """Builds the candidate."""
        (encoder,) = encoders.values()
        return build(self.candidate, Shape(encoder, len(labels), self.pooling, self.dropout), self.size)
