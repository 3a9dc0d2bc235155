import json
import socket

import pytest

from tests.command_runs import refused
from training.config.config import FitConfig, ResolvedConfig
from training.distributed.coordinator import SINGLE_WORKER
from training.distributed.tf_config import TF_CONFIG
from training.fit import main
from training.job.run import join_cluster, worker_config, worker_folder


def config(addresses: list[str], index: int = 0) -> str:
    return json.dumps({"cluster": {"worker": addresses}, "task": {"type": "worker", "index": index}})


def test_a_single_worker_trains_alone(monkeypatch):
    for text in ("", config(["localhost:1"])):
        monkeypatch.setenv(TF_CONFIG, text)
        with join_cluster(FitConfig()) as coordinator:
            assert coordinator is SINGLE_WORKER and coordinator.is_chief
            assert worker_config(ResolvedConfig(resume=True), coordinator).resume
            assert coordinator.broadcast("what", lambda: 3) == 3 and coordinator.all_gather("what", 4) == [4]
            assert coordinator.any_signaled([15]) == [15] and coordinator.any_signaled([]) == []


@pytest.mark.parametrize(
    ("text", "flags", "message"),
    [
        ("{", [], "TF_CONFIG: expected JSON, got '{'"),
        (config(["a:1", "b:2"], 5), [], "TF_CONFIG: expected the index of a worker from 0 to 1, got 5"),
        (
            config(["a:1", "b:2"]),
            ["--fewshot=probe", "--encoder.pretrained=minilm"],
            "--fewshot: expected auto or off for the 2 workers of TF_CONFIG, got probe",
        ),
        (
            config(["a:1", "b:2"]),
            ["--strategy=mirrored"],
            "--strategy: expected auto for the 2 workers of TF_CONFIG, got mirrored",
        ),
    ],
)
def test_invalid_cluster_is_refused(monkeypatch, tmp_path, text, flags, message):
    monkeypatch.setenv(TF_CONFIG, text)
    error = refused(tmp_path, main, f"--out={tmp_path / 'run'}", *flags)
    assert error.startswith(message)


def test_port_in_use_is_refused_before_training(monkeypatch, tmp_path):
    with socket.create_server(("", 0)) as taken:
        address = f"localhost:{taken.getsockname()[1]}"
        monkeypatch.setenv(TF_CONFIG, config([address, "localhost:1"]))
        message = refused(tmp_path, main, f"--out={tmp_path / 'run'}")
    assert message.startswith(f"TF_CONFIG: expected a free port for worker 0, got {address}: ")


def test_only_the_chief_worker_writes_the_run_folder(tmp_path):
    class Other:
        is_chief = False

    config = FitConfig(out=tmp_path / "run")
    with worker_folder(config, Other()) as folder:  # pyright: ignore
        (folder / "epochs.csv").write_text("")
        assert not list(tmp_path.iterdir())
    assert not folder.exists()
    with worker_folder(config, SINGLE_WORKER) as folder:
        assert folder.parent == tmp_path
    assert (tmp_path / "run").is_dir()
