"""What every learner of a benchmark is given, and how it is asked; for programs in any environment.

Only the standard library is used: PyTorch may live in an environment that has nothing else of ours.
"""

import dataclasses
import json
import os
import sys
import time
from collections.abc import Callable, Iterable
from pathlib import Path


@dataclasses.dataclass(frozen=True)
class Work:
    """Rows to learn from and the model that learns.

    Attributes:
        texts: In the order of the batches.
        labels: Id of each text's label.
        vocabulary: Path of a vocab.txt, WordPiece.
        lower_case: Whether texts are lower-cased.
        sizes: vocabulary_size, hidden_dim, num_layers, num_heads, intermediate_dim and num_labels.
        pretrained: Folder of a published BERT to go on with; empty: new weights.
        max_length: Most tokens of a text.
        batch_rows: Rows of a batch.
    """

    texts: list[str]
    labels: list[int]
    vocabulary: str
    lower_case: bool
    sizes: dict[str, int]
    pretrained: str
    max_length: int
    batch_rows: int

    def write(self, path: Path) -> None:
        """Writes it as JSON."""
        path.write_text(json.dumps(dataclasses.asdict(self)), "utf-8")


def read_work(path: str) -> Work:
    """Reads what `Work.write` wrote."""
    return Work(**json.loads(Path(path).read_text("utf-8")))


def answer(learner: Callable[[Work, str], Callable[[int], Iterable[tuple[int, int, int]]]]) -> None:
    """Trains whenever stdin asks for steps, `{"steps": 20}`; says how long that took and on what.

    Args:
        learner: From the work and the precision to a function from a number of steps to what each computed: rows,
            padded length, and real tokens.
    """
    path, precision = sys.argv[1:]
    # Libraries print; what they print must not mix with the answers.
    answers = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)
    train = learner(read_work(path), precision)
    print(json.dumps({"ready": True}), file=answers, flush=True)
    for line in sys.stdin:
        began, worked = time.perf_counter(), time.process_time()
        batches = list(train(json.loads(line)["steps"]))
        done = {
            "seconds": time.perf_counter() - began,
            "cpu_seconds": time.process_time() - worked,
            "shapes": [(rows, length) for rows, length, _ in batches],
            "tokens": sum(tokens for _, _, tokens in batches),
        }
        print(json.dumps(done), file=answers, flush=True)
