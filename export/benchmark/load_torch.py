"""Builds a Hugging Face BERT classifier of the same sizes in PyTorch, with random weights, to measure its speed."""

from typing import Any

import numpy as np
import torch  # pyright: ignore[reportMissingImports]  (rarely installed with TensorFlow)
import transformers  # pyright: ignore[reportMissingImports]

from export.benchmark.loaders import LoadedModel, check_sizes
from training.speed.torch_trainer import bert_config

_ACTIVATIONS = {"relu": "relu", "gelu": "gelu", "gelu_tanh": "gelu_new"}


def load(path: str, threads: int, sizes: dict[str, Any]) -> LoadedModel:
    """Builds `BertForSequenceClassification`."""
    check_sizes(path, sizes)
    torch.set_num_threads(threads)
    named = {**sizes, "num_labels": sizes["labels"]}
    config = bert_config(named, sizes["max_length"], hidden_act=_ACTIVATIONS[sizes["activation"]])
    model = transformers.BertForSequenceClassification(config).eval()

    def from_ids(token_ids: np.ndarray, mask: np.ndarray) -> np.ndarray:
        with torch.inference_mode():
            ids, attended = (torch.from_numpy(values).long() for values in (token_ids, mask))
            return model(input_ids=ids, attention_mask=attended).logits.softmax(-1).numpy()

    return LoadedModel(from_ids)
