"""What the benchmark can time, by kind, and the module that loads each."""

import dataclasses
import importlib
import importlib.util
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from export.predictors.artifacts import ONNX, SAVEDMODEL, TFLITE
from kmha.errors import InputError

BUNDLE, KERAS_HUB, TORCH = "bundle", "keras_hub", "torch"
PEERS = (KERAS_HUB, TORCH)

# Kind to the module that loads it, the packages that module needs, and what installs them.
_LOADERS = {
    BUNDLE: ("export.benchmark.bundle", ("tensorflow", "tensorflow_text"), "kmha"),
    SAVEDMODEL: ("export.benchmark.savedmodel", ("tensorflow", "tensorflow_text"), "kmha"),
    TFLITE: ("export.benchmark.tflite", ("ai_edge_litert",), "kmha[litert]"),
    ONNX: ("export.benchmark.onnx", ("onnxruntime",), "kmha[onnx]"),
    KERAS_HUB: ("export.benchmark.peer_keras_hub", ("tensorflow", "keras_hub"), "kmha[pretrained]"),
    TORCH: ("export.benchmark.peer_torch", ("torch", "transformers"), "torch and transformers"),
}


@dataclass(frozen=True)
class Timed:
    """A loaded model as functions to time.

    Attributes:
        from_ids: token_ids and padding_mask, int32 [B, T] each, to numbers [B, C].
        from_texts: Texts to numbers [B, C]; None: it has no tokenizer.
        lengths: The T that `from_ids` takes, ascending; None: any.
        batched: Whether several rows go through the model at once.
        run: Of a bundle what the others need: see `export.benchmark.bundle.load`.
        encode: Of a bundle: texts and a length to token_ids and padding_mask.
    """

    from_ids: Callable[[np.ndarray, np.ndarray], np.ndarray]
    from_texts: Callable[[Sequence[bytes]], np.ndarray] | None = None
    lengths: list[int] | None = None
    batched: bool = True
    run: dict[str, Any] = dataclasses.field(default_factory=dict)
    encode: Callable[[Sequence[bytes], int], tuple[np.ndarray, np.ndarray]] | None = None


def loader(kind: str, path: str) -> Callable[[str, int, dict[str, Any]], Timed]:
    """Imports a kind's runtime.

    Args:
        kind: Of the model.
        path: For messages.

    Returns:
        A function from path, threads and the sizes of an encoder to the loaded model.

    Raises:
        InputError: The runtime is not installed.
    """
    module, packages, extra = _LOADERS[kind]
    for package in packages:
        if importlib.util.find_spec(package) is None:
            raise InputError(f"{path}: expected the package {package}, got none; install {extra}")
    return importlib.import_module(module).load


def check_sizes(path: str, sizes: dict[str, Any]) -> None:
    """Whether a model is one that the encoders of others can be: texts read whole, heads that fill the hidden size.

    Args:
        path: For messages.
        sizes: An `EncoderConfig`'s numbers and "window".

    Raises:
        InputError: It is not.
    """
    if sizes["window"]:
        raise InputError(
            f"{path}: expected a run that reads texts whole, got one that reads windows of {sizes['window']} tokens"
        )
    if sizes["layer_sizes"]:
        raise InputError(f"{path}: expected blocks that are all alike, got those of a pruned encoder")
    if sizes["head_dim"] is not None and sizes["head_dim"] * sizes["num_heads"] != sizes["hidden_dim"]:
        heads = f"{sizes['num_heads']} of {sizes['head_dim']} in {sizes['hidden_dim']}"
        raise InputError(f"{path}: expected heads that fill the hidden size, got {heads}")
