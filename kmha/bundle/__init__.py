"""The run folder as a model that takes raw text: save, load, predict. `Bundle` is imported on first use."""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from kmha.bundle.bundle import Bundle as Bundle


def __getattr__(name: str) -> Any:
    # On first use only: `kmha.bundle.manifest` must import without TensorFlow.
    if name == "Bundle":
        from kmha.bundle.bundle import Bundle

        return Bundle
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
