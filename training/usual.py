"""Settings that follow from the data where nobody gave them."""

import dataclasses

import numpy as np

from training.config import FitConfig
from training.encoder_sizes import with_size
from training.tasks.task import Task

# Past this many batches the validation scores of every data set in docs/results.md fell again.
USUAL_BATCHES = 1200
FEWEST_EPOCHS, MOST_EPOCHS = 3, 20
# Of a short text each token is needed; a long one says everything several times.
SHORT_TOKENS = 32
SHORT_TOKEN_DROPOUT, LONG_TOKEN_DROPOUT = 0.3, 0.4
# A few thousand pairs are learnt by heart at the usual rate before the texts have been compared.
LEARNING_RATE, LEARNING_RATE_OF_FEW_PAIRS, FEW_PAIRS = 1e-3, 3e-4, 5_000


def with_usual_of_task(config: FitConfig) -> FitConfig:
    """The settings with those filled in that were left to the task, or to the size's name.

    Raises:
        InputError: A number contradicts the size.
    """
    text, encoder = config.text, with_size(config.encoder)
    tags = config.task == "tag"
    if text.lower_case is None:
        text = dataclasses.replace(text, lower_case=not tags)
    if encoder.positions is None:
        encoder = dataclasses.replace(encoder, positions="rotary" if tags else "learned")
    return dataclasses.replace(config, text=text, encoder=encoder)


def with_usual(config: FitConfig, task: Task, lengths: np.ndarray, batches: int, pairs: int = 0) -> FitConfig:
    """The settings with those filled in that were left to the data.

    Args:
        config: All settings.
        task: Knows what it usually takes.
        lengths: Tokens of each training text, integers [R].
        batches: Of one epoch.
        pairs: Training rows, where they are pairs; else 0.
    """
    train, encoder, optimizer = config.train, config.encoder, config.optimizer
    if not train.epochs:
        train = dataclasses.replace(train, epochs=usual_epochs(batches))
    usual = task.usual
    if encoder.dropout is None:
        encoder = dataclasses.replace(encoder, dropout=usual.dropout)
    if encoder.token_dropout is None:
        rate = usual_token_dropout(lengths) if usual.token_dropout is None else usual.token_dropout
        encoder = dataclasses.replace(encoder, token_dropout=rate)
    if optimizer.embedding_rate is None:
        optimizer = dataclasses.replace(optimizer, embedding_rate=usual.embedding_rate)
    if optimizer.learning_rate is None:
        rate = LEARNING_RATE_OF_FEW_PAIRS if 0 < pairs < FEW_PAIRS else LEARNING_RATE
        optimizer = dataclasses.replace(optimizer, learning_rate=rate)
    return dataclasses.replace(config, train=train, encoder=encoder, optimizer=optimizer)


def usual_epochs(batches: int) -> int:
    """How often to see all rows: a small set more often, so that it is learnt at all.

    Args:
        batches: Of one epoch.
    """
    return min(MOST_EPOCHS, max(FEWEST_EPOCHS, -(-USUAL_BATCHES // batches)))


def usual_token_dropout(lengths: np.ndarray) -> float:
    """The probability of dropping a token: less where texts are short.

    Args:
        lengths: Tokens of each training row, integers [R].
    """
    return SHORT_TOKEN_DROPOUT if lengths.mean() < SHORT_TOKENS else LONG_TOKEN_DROPOUT
