import pkgutil
import subprocess
import sys

import export
import training
from export.commands import MODULES, main
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
