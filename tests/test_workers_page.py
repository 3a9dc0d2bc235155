"""The examples of docs/how-to/workers.md for Kubernetes and Slurm set the expected TF_CONFIG."""

import os
import re
import subprocess

import pytest
import yaml

from tests.command_runs import ROOT
from training.cli.parser import parse
from training.config.config import FitConfig
from training.distributed.tf_config import Cluster, parse_tf_config

PAGE = (ROOT / "docs" / "how-to" / "workers.md").read_text("utf-8")
PRINTED = 'echo "$TF_CONFIG"; echo ---; echo '


def block(language: str) -> str:
    found = re.search(rf"```{language}\n(.*?)```", PAGE, re.DOTALL)
    assert found
    return found[1]


def run_worker(script: str, folder, **environment: str) -> tuple[Cluster | None, FitConfig]:
    """Returns the cluster and the settings of a worker; its command is printed instead of run."""
    script, count = re.subn(r"exec python -m training\.fit (.*?)('?\n)", PRINTED + r"\1\2", script + "\n")
    assert count == 1
    variables = {"PATH": f"{folder}:{os.environ['PATH']}", **environment}
    done = subprocess.run(["bash", "-c", script], env=variables, cwd=folder, capture_output=True, text=True)
    assert done.returncode == 0 and done.stderr == "", done.stderr
    text, flags = done.stdout.split("---\n")
    return parse_tf_config(text), parse(FitConfig, flags.split(), "fit")


@pytest.fixture
def tools(tmp_path):
    """Fake Slurm commands: the host names, and one of the four tasks."""
    for name, body in (("scontrol", 'printf "n1\\nn2\\nn3\\nn4\\n"'), ("srun", 'shift; "$@"')):
        path = tmp_path / name
        path.write_text(f"#!/bin/bash\n{body}\n")
        path.chmod(0o755)
    return tmp_path


def test_the_kubernetes_example_sets_cluster_and_settings(tools):
    service, job = yaml.safe_load_all(block("yaml"))
    (container,) = job["spec"]["template"]["spec"]["containers"]
    assert job["spec"]["template"]["spec"]["subdomain"] == service["metadata"]["name"]
    assert service["spec"]["selector"] == {"job-name": job["metadata"]["name"]}
    workers = {each["name"]: each["value"] for each in container["env"]}
    assert int(workers["WORKERS"]) == job["spec"]["completions"] == job["spec"]["parallelism"]
    name = f"{job['metadata']['name']}-{{}}.{service['metadata']['name']}:2222"
    cluster, config = run_worker(container["args"][0], tools, JOB_COMPLETION_INDEX="3", **workers)
    assert cluster == Cluster(tuple(name.format(index) for index in range(4)), 3)
    assert not config.resume and str(config.out) == "/runs/news"


@pytest.mark.parametrize("has_checkpoint", [False, True])
def test_the_slurm_example_sets_cluster_and_settings(tools, has_checkpoint):
    if has_checkpoint:
        path = tools / "runs" / "news.partial" / "checkpoint" / "00000001" / "progress.json"
        path.parent.mkdir(parents=True)
        path.write_text("{}")
    cluster, config = run_worker(block("sh"), tools, SLURM_JOB_NODELIST="n[1-4]", SLURM_PROCID="2")
    assert cluster == Cluster(("n1:2222", "n2:2222", "n3:2222", "n4:2222"), 2)
    assert config.resume == has_checkpoint and config.out_folder().name == "news"
