"""How fast each part of a model learns: the lower it stands, the less of what it knows should be lost."""

from collections.abc import Sequence
from typing import Any

from kmha.errors import InputError
from training.config.config import FinetuneSection
from training.engine.optimizer import LearningRateSchedule


def freeze(model: Any, layers: int, new_ngrams: bool = False) -> None:
    """Keeps the lowest blocks of every encoder as they are, and the embedding below them.

    Args:
        model: A built model.
        layers: How many; 0 freezes nothing.
        new_ngrams: Whether n-grams start from nothing; they are not frozen.

    Raises:
        InputError: There are fewer blocks.
    """
    if not layers:
        return
    for encoder in _encoders(model):
        if layers > len(encoder.blocks):
            raise InputError(
                f"--finetune.frozen-layers: expected at most the {len(encoder.blocks)} of the encoder, got {layers}"
            )
        own = encoder.embedding.ngrams.trainable_variables if new_ngrams else ()
        kept = {id(variable) for variable in own}
        for part in (*_below_blocks(encoder), *encoder.blocks[:layers]):
            for variable in part.trainable_variables:
                variable.trainable = id(variable) in kept


def learning_rate_schedules(
    model: Any,
    section: FinetuneSection,
    steps: int,
    variables: Sequence[Any] | None = None,
    new_ngrams: bool = False,
) -> list[LearningRateSchedule]:
    """The course of each trainable variable's rate, in their order.

    Args:
        model: A built model.
        section: The settings.
        steps: Of the whole run.
        variables: Those that are trained, where there are others beside the model's.
        new_ngrams: Whether n-grams start from nothing; they learn as the head does.

    Source: layer-wise decay and gradual unfreezing: Howard and Ruder 2018, arXiv:1801.06146.
    """
    decay = section.layer_decay or 1.0
    head_steps, all_steps = round(section.head_fraction * steps), round(section.unfreeze_fraction * steps)
    outside = LearningRateSchedule(section.head_factor or 1.0)
    schedules: dict[int, LearningRateSchedule] = {}
    for encoder in _encoders(model):
        # The highest block first; after the lowest one comes the embedding.
        levels = [[block] for block in reversed(encoder.blocks)] + [_below_blocks(encoder)]
        for depth, parts in enumerate(levels):
            first_step = head_steps + all_steps * depth // max(1, len(levels) - 1)
            schedule = LearningRateSchedule(decay**depth, first_step)
            schedules |= {id(variable): schedule for part in parts for variable in part.trainable_variables}
        if new_ngrams:
            schedules |= {id(variable): outside for variable in encoder.embedding.ngrams.trainable_variables}
    trained = model.trainable_variables if variables is None else variables
    return [schedules.get(id(variable), outside) for variable in trained]


def _encoders(model: Any) -> list[Any]:
    return [encoder for index in range(len(model.encoder_configs)) for encoder in model.encoders_of(index)]


def _below_blocks(encoder: Any) -> list[Any]:
    """The embedding and, in the post-norm form, the normalisation of what leaves it."""
    post = encoder.config.norm == "post" and encoder.norm is not None
    return [encoder.embedding, *([encoder.norm] if post else [])]
