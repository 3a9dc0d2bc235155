"""Layer-wise learning rates and frozen layers for fine-tuning."""

from collections.abc import Sequence
from typing import Any

from kmha.errors import InputError
from training.config.config import FinetuneSection
from training.engine.optimizer import LearningRateSchedule


def freeze(model: Any, layers: int, new_ngrams: bool = False) -> None:
    """Freezes the lowest blocks of every encoder and the embedding below them.

    Args:
        model: A built model.
        layers: Number of blocks; 0 freezes nothing.
        new_ngrams: Whether the n-gram embeddings are trained from scratch; they are not frozen then.

    Raises:
        InputError: The encoder has fewer blocks.
    """
    if not layers:
        return
    for encoder in _encoders(model):
        if layers > len(encoder.blocks):
            raise InputError(
                f"--finetune.frozen-layers: expected at most {len(encoder.blocks)}, the layers of the encoder,"
                f" got {layers}"
            )
        ngrams = encoder.embedding.ngrams.trainable_variables if new_ngrams else ()
        still_trained = {id(variable) for variable in ngrams}
        for part in (*_embedding_parts(encoder), *encoder.blocks[:layers]):
            for variable in part.trainable_variables:
                variable.trainable = id(variable) in still_trained


def learning_rate_schedules(
    model: Any,
    section: FinetuneSection,
    steps: int,
    variables: Sequence[Any] | None = None,
    new_ngrams: bool = False,
) -> list[LearningRateSchedule]:
    """The learning rate schedule of each trainable variable, in their order.

    Args:
        model: A built model.
        section: The settings.
        steps: Optimizer steps of the run.
        variables: The trained variables, if they are more than those of the model.
        new_ngrams: Whether the n-gram embeddings are trained from scratch; they get the learning rate of the head.

    Source: layer-wise decay and gradual unfreezing: Howard and Ruder 2018, arXiv:1801.06146.
    """
    decay = section.layer_decay or 1.0
    head_steps, all_steps = round(section.head_fraction * steps), round(section.unfreeze_fraction * steps)
    head = LearningRateSchedule(section.head_factor or 1.0)
    schedules: dict[int, LearningRateSchedule] = {}
    for encoder in _encoders(model):
        # From the highest block down to the embedding.
        levels = [[block] for block in reversed(encoder.blocks)] + [_embedding_parts(encoder)]
        for depth, parts in enumerate(levels):
            first_step = head_steps + all_steps * depth // max(1, len(levels) - 1)
            schedule = LearningRateSchedule(decay**depth, first_step)
            schedules |= {id(variable): schedule for part in parts for variable in part.trainable_variables}
        if new_ngrams:
            schedules |= {id(variable): head for variable in encoder.embedding.ngrams.trainable_variables}
    trained = model.trainable_variables if variables is None else variables
    return [schedules.get(id(variable), head) for variable in trained]


def _encoders(model: Any) -> list[Any]:
    return [encoder for index in range(len(model.encoder_configs)) for encoder in model.encoders_of(index)]


def _embedding_parts(encoder: Any) -> list[Any]:
    """The embedding and, in the post-norm form, its layer normalization."""
    is_post_norm = encoder.config.norm == "post" and encoder.norm is not None
    return [encoder.embedding, *([encoder.norm] if is_post_norm else [])]
