import pkgutil
import re
import subprocess
import sys

import pytest

import export
import training
from export.commands import MODULES, SHELLS, main
from kmha.version import package_version
from tests.command_runs import ROOT, call, clean_environment


def test_every_command_has_a_name(capsys):
    assert main(["--help"]) == 0
    text = capsys.readouterr().out
    assert all(f"\n  {name} " in text for name in MODULES)
    for package in (training, export):
        for module in pkgutil.iter_modules(package.__path__):
            name = f"{package.__name__}.{module.name}"
            folder = ROOT / package.__name__ / module.name
            file = folder / "__main__.py" if module.ispkg else folder.with_suffix(".py")
            is_command = file.exists() and "def main(argv" in file.read_text("utf-8")
            assert (name in MODULES.values()) == (is_command and name != "export.commands"), name


@pytest.mark.parametrize("name", MODULES)
def test_help_of_each_command_names_its_arguments(capsys, name):
    assert main([*name.split(), "--help"]) == 0
    usage, *lines = capsys.readouterr().out.splitlines()
    assert "None" not in usage and not any(line.startswith("  PATH") for line in lines)
    if any(line.startswith("  RUN") for line in lines):
        missing = call(main, *name.split()).err
        assert re.match(r"error: missing (RUN|RUN_OR_SAVEDMODEL) \(", missing) and "(required)" not in missing


def test_the_version_is_printed(capsys):
    assert main(["--version"]) == 0
    assert capsys.readouterr().out == f"kmha {package_version()}\n"


def test_commands_are_dispatched(tmp_path, capsys):
    assert main(["fit", "--help"]) == 0 and "--data.train" in capsys.readouterr().out
    assert main(["export", "tflite", "--help"]) == 0 and "--quantize" in capsys.readouterr().out
    outcome = call(main, "predict", tmp_path / "none")
    assert outcome.status == 2 and "none" in outcome.err
    assert call(main, "fti").err == "error: kmha: unknown command fti; did you mean fit?\n"
    assert (
        call(main, "export", "zip").err == "error: kmha: unknown command export zip; kmha --help lists all\n"
    )


def test_help_imports_nothing_heavy():
    program = (
        "import sys; from export.commands import main\n"
        "assert main([]) == main(['fit', '--help']) == main(['export', 'tflite', '--help']) == 0\n"
        "assert not {'tensorflow', 'keras', 'sklearn', 'scipy'} & set(sys.modules)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], env=clean_environment(), capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr


def test_the_program_is_named_as_it_was_started(monkeypatch):
    assert call(main, "fit", "--help").out.startswith("usage: python -m training.fit ")
    monkeypatch.setattr(sys, "argv", ["/usr/bin/kmha"])
    assert call(main, "fit", "--help").out.startswith("usage: kmha fit ")
    assert call(main, "export", "tflite", "--help").out.startswith("usage: kmha export tflite ")
    outcome = call(main, "predict", ROOT / "tests/earlier_run/run", stdin=b"text,label\n")
    assert outcome.status == 2 and "; kmha predict RUN --data FILE.csv " in outcome.err


@pytest.mark.parametrize(
    ("line", "completed"),
    [
        ("kmha ex", ["explain", "export"]),
        ("kmha export tf", ["tflite"]),
        ("kmha fit --train.ep", ["--train.epochs"]),
        (
            "kmha fit --encoder.ng",
            ["--encoder.ngram-buckets", "--encoder.ngram-dim", "--encoder.ngram-orders"],
        ),
        ("kmha fit --encoder.size m", ["mini"]),
        ("kmha fit --data.train ne", ["news.csv"]),
        ("kmha predict runs/n", ["runs/news"]),
    ],
)
def test_bash_completes_commands_flags_values_and_files(tmp_path, script, line, completed):
    (tmp_path / "news.csv").touch()
    (tmp_path / "runs" / "news").mkdir(parents=True)
    words = line.split()
    command = (
        f'COMP_WORDS=({line}); COMP_CWORD={len(words) - 1}; _tyro_kmha; printf "%s\\n" "${{COMPREPLY[@]}}"'
    )
    done = subprocess.run(
        ["bash", "-c", f"{script}\n{command}"], cwd=tmp_path, capture_output=True, text=True
    )
    assert (done.stdout.split(), done.stderr) == (completed, "")


@pytest.fixture(scope="module")
def script() -> str:
    return call(main, "completion", "bash").out


def test_completion_of_other_shells():
    for shell in SHELLS:
        assert "kmha" in call(main, "completion", shell).out
    assert call(main, "completion", "cmd").err == (
        "error: kmha completion: expected one of bash, zsh, fish, got 'cmd'\n"
    )
