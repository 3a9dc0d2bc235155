"""python -m benchmarks.planted_faults [--only NAME]

Plants one fault at a time in a copy of the source code and runs the tests of `make test` that should catch it. Prints a
table on stdout: the fault, and the first test that fails. Exit 1 where a fault passes.
"""

import argparse
import os
import re
import shutil
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent


@dataclass(frozen=True)
class Fault:
    """One change of the code that must not pass.

    Attributes:
        name: What is wrong.
        path: The file that is changed.
        old: The text that is replaced; it occurs exactly once.
        new: The text put in its place.
        tests: Test files to run, separated by spaces.
    """

    name: str
    path: str
    old: str
    new: str
    tests: str


FAULTS = (
    Fault(
        "a mask dropped",
        "kmha/layers/attention.py",
        "attended = _softmax(scores + mask_bias(mask))",
        "attended = _softmax(scores)",
        "tests/kmha/layers/test_attention.py",
    ),
    Fault(
        "a wrong scale in attention",
        "kmha/layers/attention.py",
        "query.shape[-1] ** -0.5",
        "query.shape[-1] ** -1.0",
        "tests/kmha/layers/test_attention.py",
    ),
    Fault(
        "a wrong scale in an export",
        "export/graph.py",
        "model.probabilities(logits)}",
        "model.probabilities(1.05 * logits)}",
        "tests/export/onnx",
    ),
    Fault(
        "a lost gradient",
        "training/engine/train_step.py",
        "        return gradients, total, tf.reduce_sum(weights)",
        "        gradients[0] = tf.zeros_like(gradients[0])\n        return gradients, total, tf.reduce_sum(weights)",
        "tests/training/engine/test_train_step.py",
    ),
    Fault(
        "a resume that skips a batch",
        "training/engine/loop.py",
        "        elif self.evaluate_first:",
        "            progress.batch += 1\n        elif self.evaluate_first:",
        "tests/training/engine/test_loop.py",
    ),
    Fault(
        "an average that forgets its past",
        "training/engine/optimizer.py",
        "(1.0 - d) * (a - v)",
        "a - v",
        "tests/training/engine/test_optimizer.py",
    ),
    Fault(
        "padding read by a pooling",
        "kmha/layers/pooling.py",
        "ops.where(mask, inputs, ops.cast(lowest, inputs.dtype))",
        "inputs",
        "tests/kmha/layers/test_pooling.py",
    ),
    Fault(
        "a temperature multiplied",
        "kmha/calibration.py",
        "np.asarray(logits, np.float64) / np.array(self.temperatures)",
        "np.asarray(logits, np.float64) * np.array(self.temperatures)",
        "tests/kmha/test_calibration.py",
    ),
    Fault(
        "tag transitions read backwards",
        "kmha/layers/crf.py",
        "pairs = tag_ids[:, :-1] * num_tags + tag_ids[:, 1:]",
        "pairs = tag_ids[:, 1:] * num_tags + tag_ids[:, :-1]",
        "tests/kmha/layers/test_crf.py",
    ),
    Fault(
        "test rows left in the training rows",
        "training/data/split.py",
        "rows = np.flatnonzero(~(in_test | in_validation))",
        "rows = np.flatnonzero(~in_validation)",
        "tests/training/data/test_split.py",
    ),
    Fault(
        "label smoothing of the wrong sign",
        "training/losses/classification.py",
        "targets * (1 - smoothing) + smoothing / logits.shape[-1]",
        "targets * (1 + smoothing) - smoothing / logits.shape[-1]",
        "tests/training/losses",
    ),
    Fault(
        "an overwritten run folder",
        "training/io/disk.py",
        "    if overwrite:\n",
        "    if True:\n",
        "tests/training/io/test_disk.py",
    ),
)


def copy_sources(folder: Path) -> None:
    """Copies all files that git tracks."""
    listed = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, text=True, check=True)
    for name in filter(None, listed.stdout.split("\0")):
        target = folder / name
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(ROOT / name, target)


def run_tests(folder: Path, tests: str) -> tuple[int, str]:
    """The exit status of the tests in a copy, and the first test that failed."""
    command = [sys.executable, "-m", "pytest", "-q", "-x", "-p", "no:cacheprovider", *tests.split()]
    environment = os.environ | {"PYTHONPATH": str(folder)}
    done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True)
    found = re.search(r"^(?:FAILED|ERROR) (\S+)", done.stdout, re.MULTILINE)
    return done.returncode, found[1] if found else done.stdout.strip().rpartition("\n")[2]


def main() -> int:
    """Runs the program; returns its exit status."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--only", default="", help="faults whose name contains this text")
    chosen = [fault for fault in FAULTS if parser.parse_args().only in fault.name]
    missed = 0
    print("| fault | caught by |\n|---|---|")
    with tempfile.TemporaryDirectory() as folder:
        copy_sources(Path(folder))
        for fault in chosen:
            path = Path(folder) / fault.path
            source = path.read_text("utf-8")
            if source.count(fault.old) != 1:
                raise SystemExit(
                    f"{fault.path}: expected one place of {fault.old!r}, got {source.count(fault.old)}"
                )
            path.write_text(source.replace(fault.old, fault.new), "utf-8")
            status, test = run_tests(Path(folder), fault.tests)
            path.write_text(source, "utf-8")
            missed += status != 1
            print(f"| {fault.name} | {test if status == 1 else f'NOT CAUGHT ({test})'} |", flush=True)
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main())
