"""Settings that follow from the data where nobody gave them."""

import dataclasses

import numpy as np

from training.config import FitConfig

# Past this many batches the validation scores of every data set in docs/results.md fell again.
USUAL_BATCHES = 1200
FEWEST_EPOCHS, MOST_EPOCHS = 3, 20
# Of a short text each token is needed; a long one says everything several times.
SHORT_TOKENS = 32
SHORT_TOKEN_DROPOUT, LONG_TOKEN_DROPOUT = 0.3, 0.4


def with_usual(config: FitConfig, lengths: np.ndarray, batches: int) -> FitConfig:
    """The settings with those filled in that were left to the data.

    Args:
        config: All settings.
        lengths: Tokens of each training row, integers [R].
        batches: Of one epoch.
    """
    train, encoder = config.train, config.encoder
    if not train.epochs:
        train = dataclasses.replace(train, epochs=usual_epochs(batches))
    if encoder.token_dropout is None:
        encoder = dataclasses.replace(encoder, token_dropout=usual_token_dropout(lengths))
    return dataclasses.replace(config, train=train, encoder=encoder)


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
