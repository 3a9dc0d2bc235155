"""The workload of a benchmark, and the protocol of its trainer processes.

It uses the standard library only, because PyTorch may be in an environment without kmha's dependencies.
"""

import dataclasses
import json
import os
import sys
import time
from collections.abc import Callable, Iterable
from pathlib import Path


@dataclasses.dataclass(frozen=True)
class Workload:
    """Training rows and the sizes of the model."""

    texts: list[str]
    labels: list[int]
    vocabulary: str  # path of a vocab.txt, WordPiece
    lower_case: bool
    sizes: dict[str, int]  # vocabulary_size, hidden_dim, num_layers, num_heads, intermediate_dim, num_labels
    pretrained: str  # folder of a pretrained BERT to fine-tune; empty: new weights
    max_length: int
    batch_rows: int

    def write(self, path: Path) -> None:
        """Writes the workload as JSON."""
        path.write_text(json.dumps(dataclasses.asdict(self), allow_nan=False), "utf-8")


def read_workload(path: str) -> Workload:
    """Reads a workload that `Workload.write` wrote."""
    return Workload(**json.loads(Path(path).read_text("utf-8")))


def serve(make_trainer: Callable[[Workload, str], Callable[[int], Iterable[tuple[int, int, int]]]]) -> None:
    """Trains for each request on stdin, `{"steps": 20}`, and prints the time and sizes of the steps.

    `make_trainer` takes the workload and the precision, and returns a function that trains a number of steps and yields
    for each its rows, padded length, and real tokens.
    """
    path, precision = sys.argv[1:]
    # Replies use a copy of stdout; what libraries print goes to stderr.
    output = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)
    train = make_trainer(read_workload(path), precision)
    print(json.dumps({"ready": True}, allow_nan=False), file=output, flush=True)
    for line in sys.stdin:
        start, cpu_start = time.perf_counter(), time.process_time()
        steps = list(train(json.loads(line)["steps"]))
        reply = {
            "seconds": time.perf_counter() - start,
            "cpu_seconds": time.process_time() - cpu_start,
            "shapes": [(rows, length) for rows, length, _ in steps],
            "tokens": sum(tokens for _, _, tokens in steps),
        }
        print(json.dumps(reply, allow_nan=False), file=output, flush=True)
