"""Processor time of training steps and predictions by kind of operation, from TensorFlow's profiler."""

import json
import os
import re
import sys
import tempfile
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import keras
import tensorflow as tf

from training.runtime.mixed_precision import POLICIES
from training.speed.kmha_trainer import build, tokenize_workload, training_batches, training_step
from training.speed.workload import read_workload

_STEPS = 10


def operation_seconds(job: Callable[[], object]) -> dict[str, float]:
    """Seconds of each kind of operation, summed over threads, during one call of a job."""
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
    """The kind of an operation, whose event name is path:kind; None for other events."""
    path, colon, kind = name.rpartition(":")
    if not colon or path.endswith(":") or path.startswith(("Eager", "Iterator")) or not kind.isidentifier():
        return None
    # "_MklNativeFusedMatMul" is a product with its bias.
    return re.sub("^_(Mkl)?(Native)?(Fused)?", "", kind).removesuffix("V2")


def main() -> None:
    """Prints the times of training steps and predictions as JSON, after a warm-up."""
    path, precision = sys.argv[1:]
    output = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)
    work = read_workload(path)
    keras.config.set_dtype_policy(POLICIES[precision])
    model = build(work)
    step, average = training_step(model)
    source = tokenize_workload(work)
    batches = training_batches(source, work.batch_rows)
    spec = {name: tf.TensorSpec([None, None], tf.int32) for name in source.feature_names}
    predict = tf.function(
        lambda features: model(features, training=False), input_signature=[spec], autograph=False
    )

    def train() -> None:
        for _, (_, batch) in zip(range(_STEPS), batches, strict=False):
            float(step(batch)["loss"])
            average.after_step(step.optimizer.steps_done)

    def infer() -> None:
        for _, (_, batch) in zip(range(_STEPS), batches, strict=False):
            predict(batch["features"]).numpy()

    train()
    infer()
    times = {"training": operation_seconds(train), "inference": operation_seconds(infer)}
    print(json.dumps(times, allow_nan=False), file=output, flush=True)


if __name__ == "__main__":
    main()
