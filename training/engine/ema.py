"""An exponential moving average of the weights, which often answers better than the last weights do."""

from collections.abc import Sequence

import tensorflow as tf


class WeightAverage(tf.Module):
    """Follows variables at a distance.

    Args:
        variables: What to average; create the average in the scope of their strategy.
        strategy: The strategy of the variables.
        decay: Share of the average kept at each optimizer step; early on less, so that the start is
            forgotten.
        every: Most optimizer steps from one update to the next (the decay is raised to the power of the steps): large
            embedding tables make an update as dear as the step itself.

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
        """Moves the average if it is due after this optimizer step (1 = the first)."""
        gap = self.gap(step)
        if step % gap == 0:
            decay = min(self.decay, (1 + step) / (10 + step)) ** gap
            self._update(tf.constant(decay, tf.float32))

    def gap(self, step: int) -> int:
        """Steps from one update to the next by this step: at first 1, doubled as `every` times that has been done.

        A short fit would else be over before the average has left the start.
        """
        gap = 1
        while 2 * gap <= self.every and 2 * gap * self.every <= step:
            gap *= 2
        return gap

    @tf.function(autograph=False)
    def _update(self, decay):
        for average, live in zip(self.averages, self.live, strict=True):
            self.strategy.extended.update(
                average, lambda a, v, d: a.assign_sub((1.0 - d) * (a - v)), args=(live, decay), group=False
            )

    @tf.function(autograph=False)
    def swap(self) -> None:
        """Exchanges the live weights and the average."""

        def exchange(average, live):
            kept = tf.identity(live)
            with tf.control_dependencies([kept]):
                live.assign(average)
            average.assign(kept)

        for average, live in zip(self.averages, self.live, strict=True):
            self.strategy.extended.update(average, exchange, args=(live,), group=False)
