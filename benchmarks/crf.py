"""python -m benchmarks.crf [--rounds 15]

Measures the CRF layer. Training: loss and gradient at batch 32, length 128, 28 tags, compared with two
encoder blocks of width 256 and with the same loss through `keras.ops.scan`. Inference: the best path in
TFLite (batch 1), compared with encoders. The calls alternate in one process; weights are random. A table of
medians on stdout.
"""

import argparse
import statistics
import sys
import tempfile
import time
from collections.abc import Callable

import numpy as np

from kmha.quiet import import_tensorflow

import_tensorflow()

import tensorflow as tf  # noqa: E402
from keras import ops  # noqa: E402

from kmha.layers.crf import (  # noqa: E402  # noqa: E402
    CRF,
    FORBIDDEN,
    Potentials,
    decode,
    log_likelihood,  # noqa: E402
    path_score,
    viterbi,
)
from kmha.layers.encoder_block import EncoderBlock  # noqa: E402

ROWS, WIDTH, TAGS = 32, 128, 28
ENCODERS = ((2, 128), (4, 256))
WIDTHS = (64, 128)


def scanned_log_likelihood(potentials: Potentials, tag_ids):
    """The log-likelihood with `keras.ops.scan`: one logsumexp per word."""
    emissions, word_mask, transitions, start, end = potentials
    words = ops.transpose(emissions[:, 1:], (1, 0, 2))
    mask = ops.expand_dims(ops.transpose(ops.cast(word_mask[:, 1:], "float32")), -1)

    def step(state, inputs):
        word, here = inputs[..., :-1], inputs[..., -1:]
        after = ops.logsumexp(ops.expand_dims(state, 2) + transitions, axis=1) + word
        state = here * after + (1 - here) * state
        return state, state

    last, _ = ops.scan(step, emissions[:, 0] + start, ops.concatenate([words, mask], axis=-1))
    return path_score(potentials, tag_ids) - ops.logsumexp(last + end, axis=-1)


def loss_and_gradient(log_likelihood: Callable, jit_compile: bool) -> Callable:
    """A function without arguments that computes both for a random batch."""
    rng = np.random.default_rng(0)
    lengths = rng.integers(WIDTH // 2, WIDTH + 1, (ROWS, 1))
    mask = tf.constant(np.arange(WIDTH) < lengths, tf.int32)
    tag_ids = tf.constant(rng.integers(0, TAGS, (ROWS, WIDTH)), tf.int32)
    forbidden = rng.random((TAGS, TAGS)) < 0.3
    arrays = [
        rng.normal(size=(ROWS, WIDTH, TAGS)),
        np.where(forbidden, FORBIDDEN, rng.normal(size=forbidden.shape)),
        *rng.normal(size=(2, TAGS)),
    ]
    parts = [tf.constant(array, tf.float32) for array in arrays]

    def compute(emissions, transitions, start, end):
        with tf.GradientTape() as tape:
            tape.watch((emissions, transitions, start, end))
            potentials = Potentials(emissions, mask, transitions, start, end)
            loss = -tf.reduce_sum(log_likelihood(potentials, tag_ids))
        return loss, tape.gradient(loss, (emissions, transitions, start, end))

    compiled = tf.function(compute, autograph=False, jit_compile=jit_compile)
    return lambda: tf.nest.map_structure(lambda x: x.numpy(), compiled(*parts))


def two_blocks(jit_compile: bool) -> Callable:
    """Forward and backward pass of two encoder blocks of width 256 for a batch of the same size."""
    blocks = [EncoderBlock(8, 1024, name=f"block_{index}") for index in range(2)]
    for block in blocks:
        block.build((ROWS, WIDTH, 256))
    inputs = tf.random.stateless_normal((ROWS, WIDTH, 256), (0, 0))
    mask = tf.ones((ROWS, WIDTH), tf.int32)
    weights = [variable.value for block in blocks for variable in block.trainable_variables]

    def compute():
        with tf.GradientTape() as tape:
            tape.watch(inputs)
            hidden = inputs
            for block in blocks:
                hidden = block(hidden, attention_mask=mask)
            loss = tf.reduce_sum(hidden * inputs)
        return tape.gradient(loss, [inputs, *weights])

    compiled = tf.function(compute, autograph=False, jit_compile=jit_compile)
    return lambda: compiled()[0].numpy()


def to_tflite(function: Callable, variables: list, shape: tuple[int, ...]) -> Callable:
    """Converts a function of one float32 input to TFLite; returns a call on one thread."""
    from ai_edge_litert.interpreter import Interpreter

    with tempfile.TemporaryDirectory() as folder:
        module = tf.Module()
        module.model_variables = variables
        module.call = tf.function(
            function, input_signature=[tf.TensorSpec(shape, tf.float32)], autograph=False
        )
        tf.saved_model.save(module, folder, signatures=module.call)
        converter = tf.lite.TFLiteConverter.from_saved_model(folder)
        converter.target_spec.supported_ops = [tf.lite.OpsSet.TFLITE_BUILTINS]
        interpreter = Interpreter(model_content=converter.convert(), num_threads=1)
    interpreter.allocate_tensors()
    inputs = np.random.default_rng(0).normal(size=shape).astype("float32")
    interpreter.set_tensor(interpreter.get_input_details()[0]["index"], inputs)
    return interpreter.invoke


def decoder(decode: Callable, width: int) -> Callable:
    """The best path of one sentence in TFLite; `decode` returns a dictionary of outputs from potentials."""
    crf = CRF(TAGS, (1 - np.eye(TAGS, k=3, dtype=int)).tolist())
    crf.build()
    mask = tf.ones((1, width), tf.int32)
    variables = [weight.value for weight in crf.weights]
    return to_tflite(lambda emissions: decode(crf(emissions, mask)), variables, (1, width, TAGS))


def encoder(layers: int, size: int, width: int) -> Callable:
    """Encoder blocks for one sentence in TFLite."""
    blocks = [EncoderBlock(size // 32, 4 * size, name=f"block_{index}") for index in range(layers)]
    for block in blocks:
        block.build((1, width, size))
    mask = tf.ones((1, width), tf.int32)

    def encode(hidden):
        for block in blocks:
            hidden = block(hidden, attention_mask=mask)
        return {"hidden": hidden}

    variables = [variable.value for block in blocks for variable in block.variables]
    return to_tflite(encode, variables, (1, width, size))


def device_calls(width: int) -> dict[str, Callable]:
    """Decoders and encoders of this sentence length by name."""
    calls = {
        "viterbi": decoder(lambda potentials: {"tag_ids": viterbi(potentials)}, width),
        "decode": decoder(lambda potentials: decode(potentials)._asdict(), width),
    }
    return calls | {f"{layers} layers d {size}": encoder(layers, size, width) for layers, size in ENCODERS}


def medians(calls: dict[str, Callable], rounds: int) -> dict[str, float]:
    """Median milliseconds of alternating calls, without the first two rounds (tracing)."""
    times = {name: [] for name in calls}
    for _ in range(rounds + 2):
        for name, call in calls.items():
            started = time.perf_counter()
            call()
            times[name].append(1000 * (time.perf_counter() - started))
    return {name: statistics.median(values[2:]) for name, values in times.items()}


def main() -> int:
    """Runs the measurements and prints the table."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rounds", type=int, default=15)
    rounds = parser.parse_args().rounds
    training = {
        "crf": loss_and_gradient(log_likelihood, False),
        "crf, XLA": loss_and_gradient(log_likelihood, True),
        "ops.scan": loss_and_gradient(scanned_log_likelihood, False),
        "two blocks d 256": two_blocks(False),
        "two blocks d 256, XLA": two_blocks(True),
    }
    ours, theirs = training["crf"](), training["ops.scan"]()
    for one, other in zip(tf.nest.flatten(ours), tf.nest.flatten(theirs), strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-4, atol=1e-3)
    found = medians(training, rounds)
    print(f"loss and gradient, batch {ROWS}, length {WIDTH}, {TAGS} tags: ms")
    for name, value in found.items():
        print(f"  {name:22} {value:8.2f}")
    print(f"  crf / two blocks       {found['crf'] / found['two blocks d 256']:8.3f}")
    print(f"  crf / two blocks, XLA  {found['crf, XLA'] / found['two blocks d 256, XLA']:8.3f}")
    # The gradient of a scan does not compile under XLA, so the scan without XLA is the only reference.
    print(f"  scan / crf             {found['ops.scan'] / found['crf']:8.2f}")
    print(f"  scan / crf, XLA        {found['ops.scan'] / found['crf, XLA']:8.2f}")
    for width in WIDTHS:
        found = medians(device_calls(width), 20 * rounds)
        print(f"TFLite, batch 1, length {width}, {TAGS} tags, one thread: ms, share of an encoder's time")
        for name, value in found.items():
            shares = [f"{value / found[f'{layers} layers d {size}']:8.3f}" for layers, size in ENCODERS]
            print(f"  {name:22} {value:8.3f} {' '.join(shares)}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
