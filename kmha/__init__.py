"""Multi-head-attention text models: layers, models, text processing, the bundle and inference.

`Bundle` loads a run folder and predicts from raw text; `EncoderConfig` is the shape of an encoder. Both are imported on
first use, so that `import kmha` does not import TensorFlow.
"""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from kmha.bundle.bundle import Bundle as Bundle
    from kmha.config import EncoderConfig as EncoderConfig

    __version__: str

__all__ = ["Bundle", "EncoderConfig", "__version__"]


def __getattr__(name: str) -> Any:
    if name == "Bundle":
        from kmha.bundle.bundle import Bundle

        return Bundle
    if name == "EncoderConfig":
        from kmha.config import EncoderConfig

        return EncoderConfig
    if name == "__version__":
        import importlib.metadata

        return importlib.metadata.version("kmha")
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
