import numpy as np
import pytest

from kmha.config import EncoderConfig
from kmha.models.encoder import TransformerEncoder
from kmha.pretrained.weight_mapping import FAMILIES, weight_shape
from kmha.pretrained.weights import encoder_variables

CONFIG = EncoderConfig.bert(30, 12, 3, num_heads=3, intermediate_dim=20, max_length=9)
every_family = pytest.mark.parametrize("family", FAMILIES)


def entries(family):
    return list(FAMILIES[family].entries(CONFIG.num_layers, family != "distilbert"))


@every_family
def test_a_mapping_has_every_weight_of_an_encoder_once_with_its_shape(family):
    segments = 0 if family == "distilbert" else 2
    encoder = TransformerEncoder(
        EncoderConfig.bert(30, 12, 3, num_heads=3, intermediate_dim=20, num_segments=segments)
    )
    encoder.build({"token_ids": (None, None)})
    shapes = {path: tuple(variable.shape) for path, variable in encoder_variables(encoder).items()}
    ours = [entry.ours for entry in entries(family)]
    assert sorted(ours) == sorted(shapes)
    assert shapes == {path: weight_shape(path, encoder.config) for path in ours}


@every_family
def test_no_two_weights_have_the_same_tensor(family):
    theirs = [name for entry in entries(family) for name in entry.theirs]
    assert len(theirs) == len(set(theirs))
    assert any(name.startswith(FAMILIES[family].blocks) for name in theirs)


@every_family
def test_entries_convert_in_both_directions(family):
    generator = np.random.default_rng(0)
    for entry in entries(family):
        shape = weight_shape(entry.ours, CONFIG)
        weight = generator.normal(size=shape)
        theirs = entry.to_theirs(weight)
        assert [tensor.shape for tensor in theirs] == [entry.theirs_shape(shape)] * len(entry.theirs)
        np.testing.assert_array_equal(entry.to_ours(theirs, shape), weight)
        again = entry.to_theirs(entry.to_ours(theirs, shape))
        for tensor, other in zip(theirs, again, strict=True):
            np.testing.assert_array_equal(tensor, other)
