"""The wheel, the source distribution, the Dockerfile and the citation file."""

import re
import shutil
import subprocess
import sys
import tarfile
import tomllib
import zipfile

import pytest
import yaml

from tests.command_runs import ROOT, clean_environment

PACKAGES = ("kmha", "training", "export")
PYPROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))
PROJECT = PYPROJECT["project"]
# setuptools replaces sys.argv.
BUILD = "import sys, setuptools.build_meta as b; f = sys.argv[1]; b.build_wheel(f); b.build_sdist(f)"
COMMANDS = (
    *("training.fit", "training.evaluate", "training.predict", "training.report", "training.suggest"),
    *("export.savedmodel", "export.tflite", "export.onnx", "export.verify", "export.benchmark"),
)


@pytest.fixture(scope="module")
def built(tmp_path_factory):
    """A folder with the wheel and the source distribution of a copy of the project without its tests."""
    folder = tmp_path_factory.mktemp("built")
    source = folder / "source"
    for name in PACKAGES:
        shutil.copytree(ROOT / name, source / name, ignore=shutil.ignore_patterns("__pycache__"))
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, source / name)
    backend = folder / "backend"
    subprocess.run([sys.executable, "-m", "venv", str(backend)], check=True)
    python = str(backend / "bin" / "python")
    (requirement,) = PYPROJECT["build-system"]["requires"]
    installed = subprocess.run(
        [python, "-m", "pip", "install", "--quiet", requirement], capture_output=True, text=True
    )
    if installed.returncode:
        pytest.skip(f"cannot install {requirement}: {installed.stderr.splitlines()[-1]}")
    subprocess.run([python, "-c", BUILD, str(folder)], cwd=source, check=True, capture_output=True)
    return folder


@pytest.mark.second
def test_wheel_and_source_distribution_have_the_same_files(built):
    (wheel,), (archive,) = built.glob("*.whl"), built.glob("*.tar.gz")
    with zipfile.ZipFile(wheel) as file:
        packed = {name for name in file.namelist() if name.split("/")[0] in PACKAGES}
    with tarfile.open(archive) as file:
        in_sdist = {name.split("/", 1)[1] for name in file.getnames() if "/" in name}
    own = {
        str(path.relative_to(ROOT))
        for name in PACKAGES
        for path in (ROOT / name).rglob("*.*")
        if path.is_file() and path.suffix != ".pyc"
    }
    assert packed == own <= in_sdist
    assert {f"{name}/py.typed" for name in PACKAGES} <= packed


@pytest.mark.second
def test_commands_of_the_wheel_run_in_another_folder(built, tmp_path):
    (wheel,) = built.glob("*.whl")
    with zipfile.ZipFile(wheel) as file:
        file.extractall(tmp_path / "site")
    environment = clean_environment() | {"PYTHONPATH": str(tmp_path / "site")}
    for command in COMMANDS:
        found = subprocess.run(
            [sys.executable, "-m", command, "--help"],
            cwd=tmp_path,
            env=environment,
            capture_output=True,
            text=True,
        )
        assert found.returncode == 0 and command.split(".")[1] in found.stdout, found.stderr
    origin = [sys.executable, "-c", "import kmha, training, export; print(kmha.__file__)"]
    where = subprocess.run(origin, cwd=tmp_path, env=environment, capture_output=True, text=True).stdout
    assert where.startswith(str(tmp_path))


def test_the_citation_names_the_version():
    citation = yaml.safe_load((ROOT / "CITATION.cff").read_text("utf-8"))
    assert (citation["version"], citation["license"]) == (PROJECT["version"], PROJECT["license"])
    assert citation["title"] == PROJECT["name"] and citation["authors"]


def test_the_dockerfile_copies_what_the_build_needs():
    lines = (ROOT / "Dockerfile").read_text("utf-8").splitlines()
    copied = {name for line in lines if line.startswith("COPY ") for name in line.split()[1:-1]}
    sent = {line[1:] for line in (ROOT / ".dockerignore").read_text("utf-8").split() if line[0] == "!"}
    assert {*PACKAGES, "pyproject.toml", "constraints.txt", PROJECT["readme"]} <= copied == sent
    assert all((ROOT / name).exists() for name in copied)
    (extras,) = (line.split("=")[1].split(",") for line in lines if line.startswith("ARG EXTRAS="))
    assert set(extras) <= PROJECT["optional-dependencies"].keys()
    (version,) = re.findall(r"^ARG BASE=python:(\d+\.\d+)", "\n".join(lines), re.MULTILINE)
    assert f"Programming Language :: Python :: {version}" in PROJECT["classifiers"]


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("docker") is None, reason="needs Docker")
def test_the_image_prints_help():
    subprocess.run(["docker", "build", "--tag", "kmha-test", str(ROOT)], check=True)
    found = subprocess.run(["docker", "run", "--rm", "kmha-test"], check=True, capture_output=True, text=True)
    assert "--data.train" in found.stdout
