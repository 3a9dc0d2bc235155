"""Runs a tiny loop in a process of its own, kills it or goes on with it, and saves the final weights.

From the root of the repository:

    python -m tests.training.loop_worker FOLDER '{"strategy": "mirrored", "stop_at": 7, "resume": false}'
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
from training.outcomes import Stopped  # noqa: E402
from training.replicas import make_strategy  # noqa: E402


def main() -> None:
    """Prints what the loop returned."""
    folder, case = Path(sys.argv[1]), json.loads(sys.argv[2])
    if case.get("strategy") == "mirrored":
        cpu = tf.config.list_physical_devices("CPU")[0]
        tf.config.set_logical_device_configuration(cpu, [tf.config.LogicalDeviceConfiguration()] * 2)
    seen: list[int] = []

    def count(batch, logs):
        seen.append(batch)
        if len(seen) == case.get("stop_at"):
            os.kill(os.getpid(), signal.SIGTERM)

    loop = make_loop(
        folder,
        make_strategy(case.get("strategy", "one")),
        callbacks=[keras.callbacks.LambdaCallback(on_train_batch_end=count)],
    )
    try:
        standing = loop.run(resume=case.get("resume", False))
    except Stopped as stopped:
        print(json.dumps({"stopped": str(stopped), "batches": len(seen)}))
        return
    np.savez(folder / "weights.npz", *weights_of(loop.model))
    print(json.dumps({"stopped": None, "batches": len(seen), "best": standing.best_metric}))


if __name__ == "__main__":
    main()
