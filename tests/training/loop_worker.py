"""Runs a tiny loop in a process of its own and saves the weights it ends with.

From the root of the repository:

    python -m tests.training.loop_worker FOLDER '{"strategy": "mirrored", "stop_at": 7}'

With "stop_at" the run is stopped by a signal at that batch and then resumed.
"""

import json
import os
import signal
import sys
from pathlib import Path

os.environ["TF_CPP_MIN_LOG_LEVEL"] = "3"

import keras  # noqa: E402
import numpy as np  # noqa: E402
import tensorflow as tf  # noqa: E402

from tests.training.tiny_runs import make_loop, weights_of  # noqa: E402
from training.cli.exceptions import Interrupted  # noqa: E402
from training.engine.train_step import make_strategy  # noqa: E402


def main() -> None:
    """Prints how many batches came before the stop, and the best metric."""
    folder, case = Path(sys.argv[1]), json.loads(sys.argv[2])
    cpu = tf.config.list_physical_devices("CPU")[0]
    tf.config.set_logical_device_configuration(cpu, [tf.config.LogicalDeviceConfiguration()] * 2)
    strategy = make_strategy(case.pop("strategy", "one"))
    stop_at = case.pop("stop_at", None)
    before_stop: list[int] = []

    def count(batch, logs):
        before_stop.append(batch)
        if len(before_stop) == stop_at:
            os.kill(os.getpid(), signal.SIGTERM)

    loop = make_loop(
        folder, strategy, callbacks=[keras.callbacks.LambdaCallback(on_train_batch_end=count)], **case
    )
    try:
        progress = loop.run()
    except Interrupted:
        loop = make_loop(folder, strategy, **case)
        progress = loop.run(resume=True)
    np.savez(folder / "weights.npz", *weights_of(loop.model))
    print(json.dumps({"before_stop": len(before_stop), "best": progress.best_metric}))


if __name__ == "__main__":
    main()
