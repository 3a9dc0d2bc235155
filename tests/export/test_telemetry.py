"""onnxruntime sends no events; tests/soak/test_connections.py traces the commands."""

import subprocess
import sys
from pathlib import Path

import pytest

from tests.command_runs import clean_environment

pytest.importorskip("onnxruntime")
EARLIER = Path(__file__).parent.parent / "earlier_run"


def test_onnxruntime_writes_no_device_id(tmp_path):
    environment = {**clean_environment(), "HOME": str(tmp_path), "TMPDIR": str(tmp_path)}
    environment.pop("ORT_DISABLE_TELEMETRY", None)
    command = [sys.executable, "-m", "export.answer", str(EARLIER / "model.onnx")]
    result = subprocess.run(command, input=b"a good day\n", capture_output=True, env=environment)
    assert result.returncode == 0 and result.stdout.startswith(b"\x93NUMPY"), result.stderr
    assert list(tmp_path.iterdir()) == []
