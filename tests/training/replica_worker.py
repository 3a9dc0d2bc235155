"""Trains a small classifier on one device and on two replicas and prints how far the weights are apart.

A process of its own for each case: several mirrored models in one process collide in TensorFlow's
collectives. From the root of the repository:

    python -m tests.training.replica_worker '{"accumulation_steps": 3, "jit": true}'
"""

import json
import os
import sys

os.environ["TF_CPP_MIN_LOG_LEVEL"] = "3"

import keras  # noqa: E402
import numpy as np  # noqa: E402
import tensorflow as tf  # noqa: E402

from tests.training.tiny_runs import distance, make_batch, make_step, tiny_model, trainable  # noqa: E402
from training.engine.optimizer import warmup_then_decay  # noqa: E402
from training.engine.train_step import make_strategy  # noqa: E402
from training.runtime.mixed_precision import POLICIES, LossScale  # noqa: E402

STEPS = 20


def train(case: dict, strategy: tf.distribute.Strategy, clip_norm: float | None, jit: bool) -> dict:
    """Trains for 20 optimizer steps, the last of an uneven batch."""
    keras.utils.set_random_seed(1)
    accumulation_steps = case.get("accumulation_steps", 1)
    with strategy.scope():
        model = tiny_model()
        step = make_step(
            model,
            warmup_then_decay(3e-3, STEPS, 2),
            strategy,
            jit_compile=jit,
            clip_norm=clip_norm,
            accumulation_steps=accumulation_steps,
            loss_scale=LossScale() if case.get("precision") == "float16" else None,
        )
    rng = np.random.default_rng(2)
    # With accumulation the last step has one batch fewer: flush() has to move by what is there.
    count = STEPS * accumulation_steps - (accumulation_steps > 1)
    before = [variable.numpy() for variable in trainable(model)]
    for index in range(count):
        rows = 5 if index in (4, count - 1) else 8
        # XLA gets one shape, filled up with rows of weight 0; else rows need only divide by the replicas.
        filled, length = (8, 12) if case.get("jit") else (rows + rows % 2, 12 if index % 2 else 8)
        sums = step(make_batch(rng, rows, filled, length, case.get("class_weights")))
    step.flush()
    after = [variable.numpy() for variable in trainable(model)]
    return {
        "after": after,
        "steps": step.optimizer.steps_done,
        "sums": [float(sums["loss"]), float(sums["weight"])],
        "least_move": min(float(np.abs(a - b).max()) for a, b in zip(after, before, strict=True)),
        "loss_scale": None if step.loss_scale is None else float(step.loss_scale.value()),
    }


def main() -> None:
    """Prints one JSON object."""
    case = json.loads(sys.argv[1])
    cpus = tf.config.list_physical_devices("CPU")
    tf.config.set_logical_device_configuration(cpus[0], [tf.config.LogicalDeviceConfiguration()] * 2)
    keras.config.set_dtype_policy(POLICIES[case.get("precision", "float32")])
    clip_norm = case.get("clip_norm")
    # The one device never uses XLA: what XLA computes has to be the same.
    one = train(case, make_strategy("one"), clip_norm, False)
    two = train(case, make_strategy("mirrored"), clip_norm, case.get("jit", False))
    unclipped = train(case, make_strategy("one"), None, False) if case.get("compare_unclipped") else one
    apart, moved = distance(one["after"], two["after"]), distance(one["after"], unclipped["after"])
    for result in (one, two):
        del result["after"]
    print(json.dumps({"apart": apart, "moved_by_clipping": moved, "one": one, "two": two}))


if __name__ == "__main__":
    main()
