"""The kinds of models that the benchmark measures, and the module that loads each kind."""

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

# By kind: the module that loads it, the packages that this module needs, and the extra that installs them.
_LOADERS = {
    BUNDLE: ("export.benchmark.load_bundle", ("tensorflow", "tensorflow_text"), "kmha"),
    SAVEDMODEL: ("export.benchmark.load_savedmodel", ("tensorflow", "tensorflow_text"), "kmha"),
    TFLITE: ("export.benchmark.load_tflite", ("ai_edge_litert",), "kmha[litert]"),
    ONNX: ("export.benchmark.load_onnx", ("onnxruntime",), "kmha[onnx]"),
    KERAS_HUB: ("export.benchmark.load_keras_hub", ("tensorflow", "keras_hub"), "kmha[pretrained]"),
    TORCH: ("export.benchmark.load_torch", ("torch", "transformers"), "torch and transformers"),
}


@dataclass(frozen=True)
class LoadedModel:
    """A loaded model as functions.

    Attributes:
        from_ids: From token_ids and padding_mask, int32 [B, T] each, to numbers [B, C].
        from_texts: From texts to numbers [B, C]; None: the model has no tokenizer.
        lengths: The T that `from_ids` takes, ascending; None: any.
        batched: Whether the model takes several rows at once.
        run: Of a bundle the values that other models need; see `export.benchmark.load_bundle.load`.
        encode: Of a bundle: from texts and a length to token_ids and padding_mask.
    """

    from_ids: Callable[[np.ndarray, np.ndarray], np.ndarray]
    from_texts: Callable[[Sequence[bytes]], np.ndarray] | None = None
    lengths: list[int] | None = None
    batched: bool = True
    run: dict[str, Any] = dataclasses.field(default_factory=dict)
    encode: Callable[[Sequence[bytes], int], tuple[np.ndarray, np.ndarray]] | None = None


def loader(kind: str, path: str) -> Callable[[str, int, dict[str, Any]], LoadedModel]:
    """Imports the runtime of a kind.

    Args:
        kind: The kind of the model.
        path: The model's path, for messages.

    Returns:
        A function from path, threads and the sizes of an encoder to the loaded model. TensorFlow reads the number of
        threads from the environment. Only the kinds of other libraries use the sizes: the values of an
        `EncoderConfig`, "window" and "labels". It raises InputError if the model cannot be loaded or built.

    Raises:
        InputError: The runtime is not installed.
    """
    module, packages, extra = _LOADERS[kind]
    for package in packages:
        if importlib.util.find_spec(package) is None:
            raise InputError(f"{path}: expected the package {package}, got none; install {extra}")
    return importlib.import_module(module).load


def check_sizes(path: str, sizes: dict[str, Any]) -> None:
    """Raises InputError for sizes that encoders of other libraries cannot have.

    Args:
        path: The model's path, for messages.
        sizes: The values of an `EncoderConfig`, and "window".
    """
    if sizes["window"]:
        raise InputError(
            f"{path}: expected a run that reads whole texts, got one that reads windows of {sizes['window']} tokens"
        )
    if sizes["layer_sizes"]:
        raise InputError(f"{path}: expected blocks of equal sizes, got those of a pruned encoder")
    if sizes["head_dim"] is not None and sizes["head_dim"] * sizes["num_heads"] != sizes["hidden_dim"]:
        heads = f"{sizes['num_heads']} of {sizes['head_dim']} in {sizes['hidden_dim']}"
        raise InputError(f"{path}: expected heads that fill the hidden size, got {heads}")
