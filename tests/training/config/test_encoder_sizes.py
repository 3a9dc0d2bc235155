import pytest

from kmha.config import EncoderConfig
from kmha.errors import InputError
from training.config.config import EncoderSection, FitConfig
from training.config.defaults import resolve_config
from training.config.encoder_shape import encoder_config, resolve_size
from training.config.validation import check_settings


@pytest.mark.parametrize(
    ("size", "shape"), [("tiny", (128, 2, 2, 512)), ("mini", (256, 4, 4, 1024)), ("small", (512, 4, 8, 2048))]
)
def test_names_stand_for_published_shapes(size, shape):
    config = FitConfig(encoder=EncoderSection(size=size))
    check_settings(config)
    encoder = encoder_config(resolve_config(config), 99, 1)
    assert isinstance(encoder, EncoderConfig)
    assert (encoder.hidden_dim, encoder.num_layers, encoder.num_heads, encoder.intermediate_dim) == shape
    # What a run records makes the same run.
    assert resolve_size(resolve_size(config.encoder)) == resolve_size(config.encoder)


def test_without_a_name_numbers_stay():
    encoder = EncoderSection(hidden_dim=24)
    assert resolve_size(encoder) == encoder


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"num_heads": 8}, "--encoder.num-heads: expected 2 for --encoder.size tiny, got 8"),
        ({"hidden_dim": 64}, "--encoder.hidden-dim: expected 128 for --encoder.size tiny, got 64"),
        ({"num_layers": 6}, "--encoder.num-layers: expected 2 for --encoder.size tiny, got 6"),
        ({"intermediate_dim": 1}, "--encoder.intermediate-dim: expected 512 for --encoder.size tiny, got 1"),
        ({"head_dim": 32}, "--encoder.head-dim: expected 64 for --encoder.size tiny, got 32"),
    ],
)
def test_numbers_that_contradict_the_name_are_refused(values, message):
    with pytest.raises(InputError) as caught:
        check_settings(FitConfig(encoder=EncoderSection(size="tiny", **values)))
    assert str(caught.value) == message


def test_numbers_that_agree_with_the_name_are_taken():
    encoder = resolve_size(EncoderSection(size="mini", hidden_dim=256, head_dim=64))
    assert (encoder.num_layers, encoder.intermediate_dim) == (4, 1024)
