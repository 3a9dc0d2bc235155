"""Multi-head-attention text models: layers, models, text processing, the bundle and inference.

`Bundle` loads a run folder and predicts from raw text, `EncoderConfig` is the shape of an encoder, `layers` and
`models` are Keras classes. All are imported on first use, so that `import kmha` does not import Keras. Layers and
models are registered with Keras as soon as both packages are imported, in either order. Keras is imported without the
startup messages of TensorFlow if `kmha` is imported first.
"""

import importlib
import importlib.abc
import importlib.machinery
import sys
from typing import TYPE_CHECKING, Any

from kmha.quiet import without_messages

if TYPE_CHECKING:
    from kmha import layers as layers
    from kmha import models as models
    from kmha.bundle.bundle import Bundle as Bundle
    from kmha.config import EncoderConfig as EncoderConfig

    __version__: str

__all__ = ["Bundle", "EncoderConfig", "__version__", "layers", "models"]


def __getattr__(name: str) -> Any:
    if name == "Bundle":
        from kmha.bundle.bundle import Bundle

        return Bundle
    if name == "EncoderConfig":
        from kmha.config import EncoderConfig

        return EncoderConfig
    if name in ("layers", "models"):
        return importlib.import_module(f"kmha.{name}")
    if name == "__version__":
        from kmha.version import package_version

        return package_version()
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return __all__


class _KerasImport(importlib.abc.MetaPathFinder):
    """Imports Keras, if it is not imported yet, and then the modules that register classes with it."""

    def find_spec(self, fullname: str, path: Any = None, target: Any = None) -> Any:
        """The spec of Keras; None for other modules."""
        spec = importlib.machinery.PathFinder.find_spec(fullname, path) if fullname == "keras" else None
        if spec is None or spec.loader is None:
            return None
        execute = spec.loader.exec_module

        def exec_module(module: Any) -> None:
            with without_messages():
                execute(module)
            importlib.import_module("kmha.models")

        spec.loader.exec_module = exec_module
        return spec


if sys.modules.get("keras") is not None:
    # The models import every layer.
    importlib.import_module("kmha.models")
else:
    sys.meta_path.insert(0, _KerasImport())
