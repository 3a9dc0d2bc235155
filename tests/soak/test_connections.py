"""No command opens a connection to another machine."""

import shutil
import subprocess
import sys

import pytest

from tests.command_runs import ROOT, clean_environment

EARLIER = ROOT / "tests" / "earlier_run"
RUN, ROWS, ONNX = "earlier/run", "earlier/test.csv", "earlier/model.onnx"


@pytest.mark.soak
@pytest.mark.skipif(shutil.which("strace") is None, reason="needs strace: apt-get install strace")
@pytest.mark.parametrize(
    "command",
    [
        ["training.fit", "--data.train", ROWS, "--out", "run", "--train.epochs", "1", "--no-report"],
        ["training.predict", RUN],
        ["training.evaluate", RUN, "--data", ROWS],
        ["export.savedmodel", RUN, "served"],
        ["export.tflite", RUN, "m.tflite"],
        ["export.onnx", RUN, "m.onnx"],
        ["export.verify", RUN, ONNX, "--data", ROWS],
        ["export.benchmark", RUN, ONNX, "--seconds", "0.1"],
    ],
    ids=lambda command: command[0],
)
def test_no_command_opens_a_connection(tmp_path, command):
    environment = {**clean_environment(), "HOME": str(tmp_path), "TMPDIR": str(tmp_path)}
    environment.pop("ORT_DISABLE_TELEMETRY", None)
    shutil.copytree(EARLIER, tmp_path / "earlier")
    trace = tmp_path / "trace"
    traced = ["strace", "-f", "--seccomp-bpf", "-e", "trace=connect,sendto,sendmsg", "-o", str(trace)]
    result = subprocess.run(
        [*traced, sys.executable, "-m", *command],
        cwd=tmp_path,
        env=environment,
        input="a good day\n",
        capture_output=True,
        text=True,
    )
    assert result.returncode == 0, result.stderr
    calls = [line for line in trace.read_text().splitlines() if "AF_INET" in line and "127.0.0.1" not in line]
    assert not calls
