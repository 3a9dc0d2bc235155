"""Programs that run in their own environment or process, and a loader for programs outside of packages."""

import importlib.util
import sys
from pathlib import Path
from types import ModuleType


def load_program(path: Path) -> ModuleType:
    """Imports a Python file that belongs to no package."""
    spec = importlib.util.spec_from_file_location(f"kmha_{path.stem}", path)
    assert spec and spec.loader
    module = importlib.util.module_from_spec(spec)
    # Its dataclasses look up their own module.
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module
