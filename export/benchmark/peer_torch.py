"""A BERT classifier of the same sizes by Hugging Face in PyTorch, with random weights: for its speed only."""

from typing import Any

import numpy as np
import torch  # pyright: ignore[reportMissingImports]  (few have it beside TensorFlow)
import transformers  # pyright: ignore[reportMissingImports]

from export.benchmark.timed import Timed, check_sizes
from training.speed.torch_trainer import bert_config

_ACTIVATIONS = {"relu": "relu", "gelu": "gelu", "gelu_tanh": "gelu_new"}


def load(path: str, threads: int, sizes: dict[str, Any]) -> Timed:
    """Builds `BertForSequenceClassification`.

    Args:
        path: For messages.
        threads: Of PyTorch.
        sizes: An `EncoderConfig`'s numbers, "window" and "labels"; n-gram tables are left out, BERT has none.

    Raises:
        InputError: BERT cannot have these sizes.
    """
    check_sizes(path, sizes)
    torch.set_num_threads(threads)
    named = {**sizes, "num_labels": sizes["labels"]}
    config = bert_config(named, sizes["max_length"], hidden_act=_ACTIVATIONS[sizes["activation"]])
    model = transformers.BertForSequenceClassification(config).eval()

    def from_ids(token_ids: np.ndarray, mask: np.ndarray) -> np.ndarray:
        with torch.inference_mode():
            ids, attended = (torch.from_numpy(values).long() for values in (token_ids, mask))
            return model(input_ids=ids, attention_mask=attended).logits.softmax(-1).numpy()

    return Timed(from_ids)
