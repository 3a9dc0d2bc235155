import dataclasses

import pytest

from kmha.errors import InputError
from tests.bundles import make_bundle
from training.config.config import EncoderSection, FitConfig, TextSection
from training.config.defaults import resolve_config
from training.config.encoder_shape import (
    DEFAULT_SHAPE,
    encoder_config,
    has_new_ngrams,
    resolve_shape,
)
from training.config.validation import check_settings
from training.tasks.match.task import MatchTask
from training.tasks.settings import MatchSettings


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    folder = tmp_path_factory.mktemp("runs") / "before"
    bundle = make_bundle(num_layers=2, norm="post", ngram_buckets=0, num_segments=2, norm_epsilon=1e-9)
    bundle.save(folder)
    return folder


def starting_from(run, **values):
    return FitConfig(encoder=EncoderSection(pretrained=str(run), **values), text=TextSection(max_length=20))


def test_without_a_checkpoint_the_shape_is_the_usual_one():
    section = resolve_shape(FitConfig(encoder=EncoderSection(hidden_dim=24))).encoder
    assert section.hidden_dim == 24
    assert all(
        getattr(section, name) == value for name, value in DEFAULT_SHAPE.items() if name != "hidden_dim"
    )


def test_the_shape_is_that_of_the_checkpoint(run):
    config = resolve_config(starting_from(run))
    section = config.encoder
    assert (section.hidden_dim, section.num_layers, section.norm, section.ngram_buckets) == (16, 2, "post", 0)
    assert (config.text.tokenization, config.text.lower_case) == ("wordpiece", True)
    checkpoint = config.checkpoint
    assert checkpoint is not None
    encoder = encoder_config(config, len(checkpoint.vocabulary), unknown_id=1)
    assert (encoder.norm_epsilon, encoder.num_segments, encoder.max_length) == (1e-9, 2, 20)


def test_settings_that_were_filled_in_can_be_given_again(run):
    config = resolve_config(starting_from(run))
    assert resolve_config(config) == config
    check_settings(config)


@pytest.mark.parametrize("task", ["classify", "match", "tag"])
def test_tags_too_keep_the_positions_and_the_case_of_the_checkpoint(run, task):
    config = resolve_config(dataclasses.replace(starting_from(run), task=task))
    assert (config.encoder.positions, config.text.lower_case) == ("learned", True)


def test_pairs_are_read_as_one_sequence_unless_told_otherwise(run):
    config = dataclasses.replace(starting_from(run), task="match")
    match = resolve_config(config).match
    assert (match.form, match.overlap) == ("joint", False)
    assert resolve_config(dataclasses.replace(config, match=MatchSettings(overlap=True))).match.overlap
    assert resolve_config(dataclasses.replace(config, match=MatchSettings(form="bi"))).match.form == "bi"
    assert resolve_config(FitConfig(task="match")).match.form is None


def test_an_encoder_may_have_fewer_blocks(run):
    assert resolve_shape(starting_from(run, num_layers=1)).encoder.num_layers == 1


def test_an_encoder_may_have_ngrams_that_the_checkpoint_lacks(run):
    config = resolve_config(starting_from(run, ngram_buckets=101))
    section = config.encoder
    assert (section.ngram_buckets, section.ngram_dim, section.ngram_orders) == (101, 64, (2, 3))
    assert has_new_ngrams(config) and not has_new_ngrams(resolve_config(starting_from(run)))
    assert resolve_config(config) == config
    assert not has_new_ngrams(resolve_config(FitConfig()))


def test_ngrams_of_the_checkpoint_stay_as_they_are(tmp_path):
    make_bundle(ngram_buckets=11).save(tmp_path / "run")
    assert not has_new_ngrams(resolve_config(starting_from(tmp_path / "run")))
    with pytest.raises(
        InputError, match="--encoder.ngram-buckets: expected the 11 of --encoder.pretrained, got 13"
    ):
        resolve_shape(starting_from(tmp_path / "run", ngram_buckets=13))


@pytest.mark.parametrize(
    ("section", "message"),
    [
        ({"num_layers": 3}, "--encoder.num-layers: expected at most the 2 of --encoder.pretrained, got 3"),
        ({"hidden_dim": 32}, "--encoder.hidden-dim: expected the 16 of --encoder.pretrained, got 32"),
        ({"norm": "pre"}, "--encoder.norm: expected the post of --encoder.pretrained, got pre"),
        (
            {"positions": "rotary"},
            "--encoder.positions: expected the learned of --encoder.pretrained, got rotary",
        ),
        ({"vectors": "v.txt"}, "--encoder.vectors: expected none with --encoder.pretrained, got v.txt"),
    ],
)
def test_a_shape_that_contradicts_the_checkpoint_is_refused(run, section, message):
    with pytest.raises(InputError) as caught:
        resolve_shape(starting_from(run, **section))
    assert str(caught.value) == message


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (
            {"tokenization": "char"},
            "--text.tokenization: expected wordpiece as in --encoder.pretrained, got char",
        ),
        ({"lower_case": False}, "--text.lower-case: expected True as in --encoder.pretrained, got False"),
        (
            {"max_length": 25},
            "--text.max-length: expected at most the 24 positions of --encoder.pretrained, got 25; --classify.window"
            " reads longer texts in windows",
        ),
        ({"vocabulary": "v.txt"}, "--text.vocabulary: expected none with --encoder.pretrained, got v.txt"),
    ],
)
def test_texts_cut_in_another_way_are_refused(run, text, message):
    with pytest.raises(InputError) as caught:
        resolve_shape(dataclasses.replace(starting_from(run), text=TextSection(**{"max_length": 20, **text})))
    assert str(caught.value) == message


def test_both_texts_of_a_pair_must_have_room(run):
    config = dataclasses.replace(starting_from(run), task="match")
    config = dataclasses.replace(config, data=dataclasses.replace(config.data, train="pairs.csv"))
    with pytest.raises(
        InputError, match="expected room for both texts in the 24 positions .* got 20, 39 for both"
    ):
        check_settings(config)
    check_settings(dataclasses.replace(config, text=TextSection(max_length=12)))


def test_several_granularities_are_refused(run):
    task = MatchTask(granularities=("wordpiece", "char"))
    config = dataclasses.replace(starting_from(run), task="match", match=task)
    config = dataclasses.replace(config, data=dataclasses.replace(config.data, train="pairs.csv"))
    with pytest.raises(InputError, match="--match.granularities: expected one with --encoder.pretrained"):
        check_settings(config)


def test_what_is_no_checkpoint_is_refused(tmp_path):
    for name in ("nowhere", str(tmp_path)):
        with pytest.raises(InputError, match=f"--encoder.pretrained {name}: expected "):
            check_settings(FitConfig(encoder=EncoderSection(pretrained=name)))
