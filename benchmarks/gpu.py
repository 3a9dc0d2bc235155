"""python benchmarks/gpu.py [--precision bfloat16] [--shapes 64x128 16x512] [--rounds 7] [--torch-python PYTHON]

Measures the forward and backward pass of kmha's classifier on Keras' JAX backend, compiled by XLA. Compares
it with Hugging Face's BERT in PyTorch and with PyTorch's own encoder (both use fused SDPA) on the same ids,
in alternating rounds. Requires JAX and keras, optionally PyTorch, but no TensorFlow; without a GPU it runs on
the CPU. JSON on stdout: tokens per second, their ratios, and the share of the matrix multiplication speed
that JAX reaches in the same rounds.
"""

import argparse
import json
import os
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from training.io.json_subprocess import Crashed, WorkerProcess, has_package  # noqa: E402
from training.speed.flops import step_flops  # noqa: E402

SIZES = {
    "vocabulary_size": 30_522,
    "hidden_dim": 384,
    "num_layers": 6,
    "num_heads": 12,
    "intermediate_dim": 1536,
    "num_labels": 4,
}
Step = Callable[[], None]


def random_ids(rows: int, length: int):
    """Random token ids without padding, and labels."""
    import numpy as np

    rng = np.random.default_rng(0)
    ids = rng.integers(5, SIZES["vocabulary_size"], (rows, length), dtype=np.int32)
    return ids, rng.integers(0, SIZES["num_labels"], rows, dtype=np.int32)


def kmha_steps(precision: str, shapes: list[tuple[int, int]]) -> tuple[str, list[Step], Step]:
    """The device, a step for each shape, and 10 matrix multiplications; all wait until the device is done."""
    os.environ["KERAS_BACKEND"] = "jax"
    import jax
    import jax.numpy as jnp
    import keras
    import numpy as np

    from kmha.config import EncoderConfig
    from kmha.features import PADDING_MASK, SEGMENT_IDS, TOKEN_IDS
    from kmha.models.classifier import TextClassifier

    keras.config.set_dtype_policy("mixed_bfloat16" if precision == "bfloat16" else "float32")
    sizes: dict[str, Any] = {name: size for name, size in SIZES.items() if name != "num_labels"}
    config = EncoderConfig(**sizes, max_length=max(length for _, length in shapes), norm="post")
    model = TextClassifier(config, SIZES["num_labels"])
    model.build()
    weights = [variable.value for variable in model.trainable_variables]
    others = [variable.value for variable in model.non_trainable_variables]

    def loss(weights, others, features, labels):
        logits, others = model.stateless_call(weights, others, features, training=True)
        chosen = jnp.take_along_axis(jax.nn.log_softmax(logits), labels[:, None], axis=1)
        return -jnp.mean(chosen), others

    compute = jax.jit(jax.value_and_grad(loss, has_aux=True))

    def step_of(rows: int, length: int) -> Step:
        ids, labels = random_ids(rows, length)
        features = {TOKEN_IDS: ids, SEGMENT_IDS: np.zeros_like(ids), PADDING_MASK: np.ones_like(ids)}
        inputs = jax.device_put((features, labels))

        def step() -> None:
            nonlocal others
            (_, others), gradients = compute(weights, others, *inputs)
            jax.block_until_ready(gradients)

        return step

    device = jax.devices()[0]
    size = 8192 if device.platform == "gpu" else 2048
    square = jax.random.normal(jax.random.key(0), (size, size), jnp.dtype(precision))
    product = jax.jit(lambda left: left @ square)

    def matmuls() -> None:
        result = square
        for _ in range(10):
            result = product(result)
        result.block_until_ready()

    matmuls.flops = 20 * size**3  # pyright: ignore[reportFunctionMemberAccess]
    return f"{device.platform}: {device.device_kind}", [step_of(*shape) for shape in shapes], matmuls


def torch_steps(name: str, precision: str, shapes: list[tuple[int, int]]) -> tuple[str, list[Step]]:
    """The device and a step for each shape, of Hugging Face's BERT or of PyTorch's encoder."""
    import torch  # pyright: ignore[reportMissingImports]

    device = "cuda" if torch.cuda.is_available() else "cpu"
    max_length = max(length for _, length in shapes)
    model = (_huggingface(max_length) if name == "huggingface" else _sdpa(max_length)).to(device).train()

    def step_of(rows: int, length: int) -> Step:
        ids, labels = (torch.from_numpy(each).long().to(device) for each in random_ids(rows, length))

        def step() -> None:
            model.zero_grad(set_to_none=True)
            with torch.autocast(device, torch.bfloat16, enabled=precision == "bfloat16"):
                logits = model(ids)
            torch.nn.functional.cross_entropy(logits.float(), labels).backward()
            if device == "cuda":
                torch.cuda.synchronize()

        return step

    return torch.cuda.get_device_name() if device == "cuda" else "cpu", [step_of(*shape) for shape in shapes]


def _huggingface(max_length: int):
    import torch  # pyright: ignore[reportMissingImports]
    import transformers  # pyright: ignore[reportMissingImports]

    from training.speed.torch_trainer import bert_config

    config = bert_config(SIZES, max_length)

    class Logits(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.bert = transformers.BertForSequenceClassification(config)

        def forward(self, ids):
            return self.bert(ids).logits

    return Logits()


def _sdpa(max_length: int):
    import torch  # pyright: ignore[reportMissingImports]

    dim = SIZES["hidden_dim"]

    class Encoder(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.tokens = torch.nn.Embedding(SIZES["vocabulary_size"], dim)
            self.positions = torch.nn.Parameter(torch.zeros(max_length, dim))
            block = torch.nn.TransformerEncoderLayer(
                dim, SIZES["num_heads"], SIZES["intermediate_dim"], 0.1, "gelu", batch_first=True
            )
            self.blocks = torch.nn.TransformerEncoder(block, SIZES["num_layers"])
            self.head = torch.nn.Linear(dim, SIZES["num_labels"])

        def forward(self, ids):
            return self.head(self.blocks(self.tokens(ids) + self.positions[: ids.shape[1]]).mean(1))

    return Encoder()


def run_trainer(name: str, precision: str, shapes: list[tuple[int, int]]) -> None:
    """Worker process: measures steps of a shape, or matrix multiplications, for each request on stdin."""
    responses = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)
    matmuls = None
    if name == "kmha":
        device, steps, matmuls = kmha_steps(precision, shapes)
    else:
        device, steps = torch_steps(name, precision, shapes)
    for step in (*steps, *filter(None, [matmuls])):
        step()  # warm-up and compilation
    print(json.dumps({"device": device}), file=responses, flush=True)
    for line in sys.stdin:
        request = json.loads(line)
        step = matmuls if request["shape"] is None else steps[request["shape"]]
        assert step is not None
        began = time.perf_counter()
        for _ in range(request["steps"]):
            step()
        seconds = (time.perf_counter() - began) / request["steps"]
        flops = getattr(matmuls, "flops", 0) / seconds if request["shape"] is None else None
        print(json.dumps({"seconds": seconds, "flops_per_second": flops}), file=responses, flush=True)


def measure(options: argparse.Namespace) -> dict[str, Any]:
    """Runs all trainers in alternating rounds; returns JSON values."""
    shapes = options.shapes
    python = options.torch_python or sys.executable
    peers = [
        name
        for name, package in (("huggingface", "transformers"), ("sdpa", "torch"))
        if has_package(package, python)
    ]
    environment = {"XLA_PYTHON_CLIENT_PREALLOCATE": "false", "TF_CPP_MIN_LOG_LEVEL": "3"}
    workers = {
        name: WorkerProcess(
            [
                sys.executable if name == "kmha" else python,
                __file__,
                *("--learner", name, "--precision", options.precision),
                *("--shapes", *(f"{rows}x{length}" for rows, length in shapes)),
            ],
            environment,
        )
        for name in ("kmha", *peers)
    }
    try:
        devices = {name: worker.listen()["device"] for name, worker in workers.items()}
        found = []
        for number, (rows, length) in enumerate(shapes):
            seconds: dict[str, list[float]] = {name: [] for name in workers}
            matmul_speeds = []
            for _ in range(options.rounds):
                matmul_speeds.append(workers["kmha"].request(shape=None, steps=1)["flops_per_second"])
                for name, worker in workers.items():
                    seconds[name].append(worker.request(shape=number, steps=options.steps)["seconds"])
            flops = step_flops(SIZES, [(rows, length)])
            found += [
                {
                    "learner": name,
                    "shape": f"{rows}x{length}",
                    "tokens_per_second": round(rows * length / statistics.median(times)),
                    "kmha_over": round(
                        statistics.median(a / b for a, b in zip(times, seconds["kmha"], strict=True)), 2
                    ),
                    "matmul_share": round(
                        statistics.median(
                            flops / time / speed for time, speed in zip(times, matmul_speeds, strict=True)
                        ),
                        3,
                    ),
                    "matmul_tflops": round(statistics.median(matmul_speeds) / 1e12, 3),
                }
                for name, times in seconds.items()
            ]
            for each in found[-len(workers) :]:
                print(json.dumps(each), file=sys.stderr, flush=True)
    finally:
        for worker in workers.values():
            worker.end()
    return {"devices": devices, "precision": options.precision, "sizes": SIZES, "found": found}


def _shape(text: str) -> tuple[int, int]:
    rows, length = map(int, text.split("x"))
    return rows, length


def main() -> int:
    """Runs the benchmark, or one of its worker processes."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--precision", choices=["float32", "bfloat16"], default="bfloat16")
    parser.add_argument(
        "--shapes",
        nargs="+",
        type=_shape,
        default=[(64, 128), (16, 512)],
        help="rows x length of the batches",
    )
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--steps", type=int, default=10, help="steps per round")
    parser.add_argument("--torch-python", default="", help="Python that has torch and transformers")
    parser.add_argument("--learner", choices=["kmha", "huggingface", "sdpa"], help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.learner:
        run_trainer(options.learner, options.precision, options.shapes)
        return 0
    try:
        print(json.dumps(measure(options)))
    except Crashed as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
