"""python benchmarks/memory.py [--rows 10000 1000000]

Measures the peak memory of `python -m training.fit` on generated files of different sizes: JSON lines on
stdout. The model is small, so that memory that grows with the file is visible.
"""

import argparse
import csv
import json
import random
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path

FLAGS = [
    "--no-baseline",
    "--train.epochs=1",
    "--encoder.hidden-dim=32",
    "--encoder.num-layers=1",
    "--encoder.num-heads=2",
    "--encoder.intermediate-dim=64",
    "--train.batch-tokens=16384",
    "--train.batch-rows=1024",
]
WORDS = 20_000


def write_rows(path: Path, rows: int) -> None:
    """Writes a CSV of texts of 5 to 25 words; the label is odd or even, from the number in the first word."""
    rng = random.Random(0)
    with open(path, "w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file)
        writer.writerow(["text", "label"])
        for _ in range(rows):
            words = [int(WORDS * rng.random() ** 2) for _ in range(rng.randint(5, 25))]
            writer.writerow([" ".join(f"w{word}" for word in words), "odd" if words[0] % 2 else "even"])


def fit(train: Path, out: Path) -> tuple[float, float]:
    """Peak resident memory in MiB and seconds of one fit in a separate process."""
    code = (
        "import resource, sys\n"
        "from training.fit import main\n"
        "status = main(sys.argv[1:])\n"
        "print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024, file=sys.stderr)\n"
        "sys.exit(status)\n"
    )
    started = time.monotonic()
    done = subprocess.run(
        [sys.executable, "-c", code, "--data.train", str(train), "--out", str(out), *FLAGS],
        stderr=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        text=True,
        check=True,
    )
    return float(done.stderr.splitlines()[-1]), time.monotonic() - started


def main() -> int:
    """Measures each size."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rows", type=int, nargs="+", default=[10_000, 1_000_000])
    sizes = parser.parse_args().rows
    first = None
    for rows in sizes:
        with tempfile.TemporaryDirectory() as folder:
            train = Path(folder) / "train.csv"
            write_rows(train, rows)
            megabytes = train.stat().st_size / 2**20
            peak, seconds = fit(train, Path(folder) / "run")
        first = first or peak
        line = {
            "rows": rows,
            "file_mib": round(megabytes),
            "peak_mib": round(peak),
            "ratio": round(peak / first, 3),
        }
        print(json.dumps(line | {"seconds": round(seconds)}), flush=True)
    return 0


if __name__ == "__main__":
    if resource.getrusage(resource.RUSAGE_SELF).ru_maxrss == 0:
        sys.exit("this system does not report the peak memory of a process")
    sys.exit(main())
