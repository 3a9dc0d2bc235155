"""Programs that run in environments or processes of their own, and a way to load one of examples/."""

import importlib.util
import sys
from pathlib import Path
from types import ModuleType


def loaded_program(path: Path) -> ModuleType:
    """The module of a program that belongs to no package.

    Args:
        path: Of its file.
    """
    spec = importlib.util.spec_from_file_location(f"kmha_{path.stem}", path)
    assert spec and spec.loader
    module = importlib.util.module_from_spec(spec)
    # Its dataclasses look their own module up.
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module
