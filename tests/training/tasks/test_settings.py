import dataclasses

import pytest

from kmha.document_windows import WindowShape
from kmha.errors import InputError
from tests.bundles import make_bundle
from training.config.config import EncoderSection, FitConfig, TextSection
from training.config.defaults import resolve_config
from training.config.validation import check_settings
from training.tasks.settings import ClassifySettings


def settings(max_length=64, **windows) -> FitConfig:
    return FitConfig(text=TextSection(max_length=max_length), classify=ClassifySettings(**windows))


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"window": 65}, "--classify.window: expected at most the 64 tokens of --text.max-length, got 65"),
        ({"window": 2}, "--classify.window: expected 3 or more, or 0 for none, got 2"),
        ({"window": -1}, "--classify.window: expected at least 0, got -1"),
        (
            {"window": 16, "window_overlap": 14},
            "--classify.window-overlap: expected less than the 14 text tokens of a window of 16, got 14",
        ),
        (
            {"window": 16, "window_overlap": 20},
            "--classify.window-overlap: expected less than the 14 text tokens",
        ),
        ({"window": 16, "window_overlap": -1}, "--classify.window-overlap: expected at least 0, got -1"),
        (
            {"window_overlap": 4},
            "--classify.window-overlap: expected it together with --classify.window, got it alone",
        ),
        ({"window_pooling": "max"}, "--classify.window-pooling: expected it together with --classify.window"),
    ],
)
def test_invalid_windows_name_their_flag(given, message):
    with pytest.raises(InputError) as caught:
        check_settings(settings(**given))
    assert message in str(caught.value)


def test_default_has_no_windows():
    assert ClassifySettings().windows is None


@pytest.mark.parametrize(("window", "overlap"), [(256, 64), (8, 2), (4, 1), (3, 0)])
def test_default_overlap_is_a_quarter_of_the_window(window, overlap):
    assert ClassifySettings(window=window).windows == WindowShape(window, overlap)
    check_settings(resolve_config(settings(512, window=window)))


def test_encoder_has_positions_for_one_window():
    from training.config.defaults import encoder_config

    config = resolve_config(settings(window=16))
    assert config.classify.encoder(encoder_config(config, 100, 1)).max_length == 16


def test_window_must_fit_a_checkpoint_instead_of_the_text(tmp_path):
    make_bundle().save(tmp_path / "run")
    start = EncoderSection(pretrained=str(tmp_path / "run"))
    check_settings(resolve_config(dataclasses.replace(settings(window=24), encoder=start)))
    for given, message in (
        (
            {},
            "--text.max-length: expected at most the 24 positions .*got 64; --classify.window reads longer texts",
        ),
        (
            {"window": 25},
            "--classify.window: expected at most the 24 positions of --encoder.pretrained, got 25",
        ),
    ):
        with pytest.raises(InputError, match=message):
            resolve_config(dataclasses.replace(settings(**given), encoder=start))
