"""Encoders of other libraries, built in this process."""

import dataclasses
import importlib.util

import numpy as np
import pytest

from export.benchmark.loaders import loader
from kmha.config import EncoderConfig
from kmha.errors import InputError

SIZES = {
    **dataclasses.asdict(EncoderConfig(50, 16, 2, 2, intermediate_dim=24, max_length=12)),
    "window": 0,
    "labels": 3,
}
peers = pytest.mark.parametrize("kind", ["keras_hub", "torch"])


def load(kind, **sizes):
    if importlib.util.find_spec(kind) is None:
        pytest.skip(f"{kind} is not installed")
    return loader(kind, kind)(kind, 1, {**SIZES, **sizes})


@peers
@pytest.mark.parametrize("norm", ["pre", "post"])
def test_padding_does_not_change_the_probabilities_of_peers(kind, norm):
    model = load(kind, norm=norm)
    token_ids = np.array([[2, 7, 9, 3, 0, 0], [2, 8, 8, 8, 8, 3]], np.int32)
    mask = (token_ids > 0).astype(np.int32)
    both = model.from_ids(token_ids, mask)
    assert both.shape == (2, 3)
    assert both.sum(1) == pytest.approx(1, abs=1e-5)
    assert model.from_ids(token_ids[:1, :4], mask[:1, :4])[0] == pytest.approx(both[0], abs=1e-5)
    assert model.from_texts is None


@peers
def test_heads_that_do_not_fill_the_hidden_size_are_rejected(kind):
    with pytest.raises(InputError, match=f"^{kind}: expected heads that fill .* got 2 of 5 in 16$"):
        load(kind, head_dim=5)


@peers
def test_pruned_encoders_have_no_peers(kind):
    with pytest.raises(InputError, match=f"^{kind}: expected blocks of equal sizes, got those of a pruned"):
        load(kind, layer_sizes=((1, 24), (2, 9)))


@peers
def test_a_run_that_reads_windows_has_no_peers(kind):
    with pytest.raises(
        InputError, match=f"{kind}: expected a run that reads whole texts, got .* windows of 8 tokens"
    ):
        load(kind, window=8)
