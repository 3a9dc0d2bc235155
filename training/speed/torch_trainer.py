"""Trains Hugging Face's BERT in PyTorch: random batches, each padded to its longest text, AdamW."""

import itertools
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import torch  # pyright: ignore[reportMissingImports]  (may be in another environment)
import transformers  # pyright: ignore[reportMissingImports]

from training.runtime.resource_usage import available_cores
from training.speed.workload import Workload, serve


def make_trainer(work: Workload, precision: str) -> Callable[[int], Iterator[tuple[int, int, int]]]:
    """See `training.speed.workload.serve`."""
    torch.set_num_threads(available_cores())
    tokenizer = transformers.BertTokenizerFast(work.vocabulary, do_lower_case=work.lower_case)
    ids = tokenizer(work.texts, truncation=True, max_length=work.max_length)["input_ids"]
    architecture = transformers.BertForSequenceClassification
    if work.pretrained:
        model = architecture.from_pretrained(work.pretrained, num_labels=work.sizes["num_labels"])
    else:
        model = architecture(bert_config(work.sizes, work.max_length))
    model.train()
    optimizer = torch.optim.AdamW(model.parameters(), lr=5e-5, weight_decay=0.01)
    starts = itertools.cycle(range(0, len(work.texts) - work.batch_rows + 1, work.batch_rows))

    def train(steps: int) -> Iterator[tuple[int, int, int]]:
        for first in itertools.islice(starts, steps):
            end = first + work.batch_rows
            batch = tokenizer.pad({"input_ids": ids[first:end]}, return_tensors="pt")
            with torch.autocast("cpu", torch.bfloat16, enabled=precision == "bfloat16"):
                loss = model(**batch, labels=torch.tensor(work.labels[first:end])).loss
            loss.backward()
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            optimizer.zero_grad()
            yield *batch["input_ids"].shape, int(batch["attention_mask"].sum())

    return train


def bert_config(sizes: Mapping[str, int], max_length: int, **options: Any) -> Any:
    """A `BertConfig` of kmha's sizes."""
    return transformers.BertConfig(
        vocab_size=sizes["vocabulary_size"],
        hidden_size=sizes["hidden_dim"],
        num_hidden_layers=sizes["num_layers"],
        num_attention_heads=sizes["num_heads"],
        intermediate_size=sizes["intermediate_dim"],
        max_position_embeddings=max_length,
        num_labels=sizes["num_labels"],
        **options,
    )


if __name__ == "__main__":
    serve(make_trainer)
