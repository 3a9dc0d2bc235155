"""Where the time of a training step and of an answer goes, by kind of operation, as TensorFlow's profiler saw it."""

import json
import os
import sys
import tempfile
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import keras
import tensorflow as tf

from training.runtime.mixed_precision import POLICIES
from training.speed.kmha_trainer import batches_of, build, tokens_of, training_step
from training.speed.workload import read_work

_STEPS = 10


def op_times(job: Callable[[], object]) -> dict[str, float]:
    """Seconds of each kind of operation, summed over threads, while a job runs.

    Args:
        job: Is run once.
    """
    from tensorflow.tsl.profiler.protobuf import xplane_pb2

    options = tf.profiler.experimental.ProfilerOptions(host_tracer_level=2, python_tracer_level=0)
    with tempfile.TemporaryDirectory(prefix="kmha-") as folder:
        with tf.profiler.experimental.Profile(folder, options=options):
            job()
        (path,) = Path(folder).rglob("*.xplane.pb")
        space = xplane_pb2.XSpace.FromString(path.read_bytes())
    seconds: Counter[str] = Counter()
    for plane in space.planes:
        for line in plane.lines:
            for event in line.events:
                kind = _kind(plane.event_metadata[event.metadata_id].name)
                if kind:
                    seconds[kind] += event.duration_ps * 1e-12
    return {kind: round(value, 6) for kind, value in seconds.most_common()}


def _kind(name: str) -> str | None:
    """The kind of an operation; None for what is not one: operations are called path:kind."""
    path, colon, kind = name.rpartition(":")
    if not colon or path.endswith(":") or path.startswith(("Eager", "Iterator")) or not kind.isidentifier():
        return None
    return kind.removeprefix("_Mkl").removeprefix("_").removesuffix("V2")


def main() -> None:
    """Prints the times of steps and of answers, after some that are not counted: tracing happens once."""
    path, precision = sys.argv[1:]
    answers = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)
    work = read_work(path)
    keras.config.set_dtype_policy(POLICIES[precision])
    model = build(work)
    step, average = training_step(model)
    source = tokens_of(work)
    batches = batches_of(source, work.batch_rows)
    spec = {name: tf.TensorSpec([None, None], tf.int32) for name in source.feature_names}
    answered = tf.function(
        lambda features: model(features, training=False), input_signature=[spec], autograph=False
    )

    def train() -> None:
        for _, (_, batch) in zip(range(_STEPS), batches, strict=False):
            float(step(batch)["loss"])
            average.after_step(step.optimizer.steps_done)

    def infer() -> None:
        for _, (_, batch) in zip(range(_STEPS), batches, strict=False):
            answered(batch["features"]).numpy()

    train()
    infer()
    print(json.dumps({"training": op_times(train), "inference": op_times(infer)}), file=answers, flush=True)


if __name__ == "__main__":
    main()
