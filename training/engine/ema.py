"""Exponential moving average of the weights."""

from collections.abc import Sequence

import tensorflow as tf


class WeightAverage(tf.Module):
    """Exponential moving average of variables.

    Args:
        variables: What to average; create the average in the scope of their strategy.
        strategy: The strategy of the variables.
        decay: Share of the average that each optimizer step keeps. The first steps keep less.
        every: Largest number of optimizer steps between two updates. One update then decays by that power of
            `decay`. With large embedding tables an update costs as much as a training step.

    Source: Polyak and Juditsky 1992; the warm-up of the decay as in tf.train.ExponentialMovingAverage.
    """

    def __init__(
        self, variables: Sequence, strategy: tf.distribute.Strategy, decay: float = 0.999, every: int = 8
    ):
        super().__init__(name="weight_average")
        self.live = list(variables)
        self.strategy = strategy
        self.decay = decay
        self.every = every
        self.averages = [tf.Variable(v, trainable=False, name="average") for v in self.live]

    def after_step(self, step: int) -> None:
        """Updates the average if an update is due after this optimizer step; the first step is 1."""
        interval = self.update_interval(step)
        if step % interval == 0:
            decay = min(self.decay, (1 + step) / (10 + step)) ** interval
            self._update(tf.constant(decay, tf.float32))

    def update_interval(self, step: int) -> int:
        """Steps between two updates: 1 at first, doubled each time that `every` updates were done at the old interval.

        With a fixed interval the average of a short run would stay near the initial weights.
        """
        interval = 1
        while 2 * interval <= self.every and 2 * interval * self.every <= step:
            interval *= 2
        return interval

    @tf.function(autograph=False)
    def _update(self, decay):
        for average, live in zip(self.averages, self.live, strict=True):
            self.strategy.extended.update(
                average, lambda a, v, d: a.assign_sub((1.0 - d) * (a - v)), args=(live, decay), group=False
            )

    @tf.function(autograph=False)
    def swap(self) -> None:
        """Exchanges the weights and their average."""

        def exchange(average, live):
            copy = tf.identity(live)
            with tf.control_dependencies([copy]):
                live.assign(average)
            average.assign(copy)

        for average, live in zip(self.averages, self.live, strict=True):
            self.strategy.extended.update(average, exchange, args=(live,), group=False)
