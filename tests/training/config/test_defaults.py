import dataclasses
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from kmha.config import EncoderConfig
from kmha.errors import InputError
from tests.bundles import make_bundle
from training.config import defaults
from training.config.config import (
    DistillSection,
    EncoderSection,
    FitConfig,
    OptimizerSection,
    ResolvedConfig,
    TextSection,
    TrainSection,
    task_section,
)
from training.config.defaults import (
    DEFAULT_SHAPE,
    FEW_TEXTS,
    default_epochs,
    default_token_dropout,
    encoder_config,
    has_new_ngrams,
    left_out_share,
    resolve_config,
    resolve_data_defaults,
    resolve_shape,
    resolve_size,
    resolve_text,
)
from training.config.validation import check_settings
from training.tasks.classify import ClassifyTask
from training.tasks.match.task import MatchTask
from training.tasks.settings import ClassifySettings, MatchSettings
from training.tasks.tag.task import TagTask

ONE, SEVERAL = ClassifyTask(), ClassifyTask(multi_label=True)
SHORT, LONG = np.full(5, 12), np.array([4, 90, 60])


@pytest.mark.parametrize(
    ("batches", "epochs"), [(1, 20), (60, 20), (61, 20), (100, 12), (399, 4), (10_000, 3)]
)
def test_small_data_gets_more_epochs(batches, epochs):
    assert default_epochs(batches) == epochs


@pytest.mark.parametrize(
    ("batches", "rows", "epochs"),
    [(77, 5_000, 6), (205, 13_000, 2), (900, 13_000, 2), (205, 20_000, 2), (703, 20_000, 1), (5, 50, 20)],
)
def test_a_linear_path_needs_less_training(batches, rows, epochs):
    config = ResolvedConfig(encoder=EncoderSection(linear=True))
    assert resolve_data_defaults(config, ONE, np.full(rows, 12), batches).train.epochs == epochs
    assert resolve_data_defaults(config, SEVERAL, np.full(rows, 12), batches).train.epochs == max(epochs, 2)


@pytest.mark.parametrize(
    ("rows", "labels", "epochs"), [(10_157, 20, 4), (10_157, 15, 3), (10_157, 4, 2), (43_283, 28, 2)]
)
def test_many_labels_of_long_texts_get_more_epochs(rows, labels, epochs):
    config = ResolvedConfig(encoder=EncoderSection(linear=True))
    filled = resolve_data_defaults(config, SEVERAL, np.full(rows, 200), 1_200, num_labels=labels)
    assert filled.train.epochs == epochs


@pytest.mark.parametrize(
    ("values", "share"),
    [
        ({}, 0.3),
        ({"encoder": EncoderSection(linear=False)}, 0.0),
        ({"encoder": EncoderSection(ngram_buckets=31)}, 0.0),
        ({"encoder": EncoderSection(attention_window=4)}, 0.0),
        ({"encoder": EncoderSection(positions="rotary")}, 0.0),
        ({"classify": ClassifySettings(window=16)}, 0.0),
        ({"distill": DistillSection(teacher=Path("run"))}, 0.0),
        ({"task": "tag"}, 0.0),
    ],
)
def test_batches_leave_out_tokens_unless_neighbors_count(values, share):
    config = resolve_config(FitConfig(**values))
    encoder = dataclasses.replace(config.encoder, token_dropout=0.3)
    assert left_out_share(dataclasses.replace(config, encoder=encoder)) == share


def test_short_texts_get_less_token_dropout():
    assert 0 < default_token_dropout(SHORT) < default_token_dropout(LONG) < 1


def test_unset_settings_are_filled_in():
    filled = resolve_data_defaults(ResolvedConfig(), ONE, SHORT, 100)
    assert filled.train.epochs == default_epochs(100)
    assert filled.encoder.token_dropout == default_token_dropout(SHORT)
    assert (filled.optimizer.embedding_rate, filled.optimizer.learning_rate) == (1, 1e-3)
    assert resolve_data_defaults(filled, SEVERAL, LONG, 5) == filled


def test_multi_label_tasks_get_a_higher_embedding_rate():
    assert (resolve_data_defaults(ResolvedConfig(), SEVERAL, SHORT, 100).optimizer.embedding_rate or 0) > 1


def test_explicit_settings_are_retained_zeros_included():
    given = ResolvedConfig(
        train=TrainSection(epochs=7),
        encoder=EncoderSection(dropout=0.0, token_dropout=0.0),
        optimizer=OptimizerSection(embedding_rate=0.5, learning_rate=0.002),
    )
    assert resolve_data_defaults(given, SEVERAL, LONG, 100, pairs=10) == given
    assert resolve_data_defaults(given, SEVERAL, LONG, 100) == given


def test_few_pairs_get_a_lower_learning_rate():
    rates = [
        resolve_data_defaults(ResolvedConfig(), ONE, LONG, 5, pairs).optimizer.learning_rate or 0
        for pairs in (0, 4999, 5000)
    ]
    assert rates[1] < rates[0] == rates[2]


def test_taggers_get_rotary_positions_cased_texts_and_less_dropout():
    config = resolve_config(FitConfig(task="tag"))
    assert (config.encoder.positions, config.text.lower_case) == ("rotary", False)
    others = resolve_config(FitConfig())
    assert (others.encoder.positions, others.text.lower_case) == ("learned", True)
    with_characters, single = (
        resolve_data_defaults(config, TagTask(characters=characters), SHORT, 100).encoder
        for characters in (True, False)
    )
    classified = resolve_data_defaults(others, ONE, SHORT, 100).encoder
    assert (single.dropout or 1) < (with_characters.dropout or 1) <= (classified.dropout or 0)
    assert (
        (single.token_dropout or 1) < (with_characters.token_dropout or 1) < (classified.token_dropout or 0)
    )


@pytest.mark.parametrize(("batches", "epochs"), [(10, 6), (125, 4), (275, 2), (5000, 2)])
def test_pairs_from_a_checkpoint_get_fewer_epochs_than_texts(batches, epochs):
    config = ResolvedConfig(task="match", encoder=EncoderSection(pretrained="some"))
    pairs = resolve_data_defaults(config, MatchTask(), LONG, batches, pairs=99).train.epochs
    texts = resolve_data_defaults(
        dataclasses.replace(config, task="classify"), ONE, LONG, batches
    ).train.epochs
    assert pairs == epochs <= texts


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    folder = tmp_path_factory.mktemp("runs") / "before"
    bundle = make_bundle(num_layers=2, norm="post", ngram_buckets=0, num_segments=2, norm_epsilon=1e-9)
    bundle.save(folder)
    return folder


def starting_from(run, **values):
    return FitConfig(encoder=EncoderSection(pretrained=str(run), **values), text=TextSection(max_length=20))


def test_without_a_checkpoint_the_shape_is_the_default():
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


def test_resolved_settings_can_be_resolved_again(run):
    config = resolve_config(starting_from(run))
    assert resolve_config(config) == config
    check_settings(config)


@pytest.mark.parametrize("task", ["classify", "match", "tag"])
def test_every_task_has_the_positions_and_the_case_of_the_checkpoint(run, task):
    config = resolve_config(dataclasses.replace(starting_from(run), task=task))
    assert (config.encoder.positions, config.text.lower_case) == ("learned", True)


def test_pairs_are_read_as_one_sequence_by_default(run):
    config = dataclasses.replace(starting_from(run), task="match")
    match: Any = task_section(resolve_config(config))
    assert (match.form, match.overlap) == ("joint", False)
    for settings in (MatchSettings(overlap=True), MatchSettings(form="bi")):
        match = task_section(resolve_config(dataclasses.replace(config, match=settings)))
        assert (match.form, match.overlap) == (settings.form or "joint", bool(settings.overlap))
    for written in (resolve_config(config).match, task_section(resolve_config(FitConfig(task="match")))):
        # config.toml does not fix the form, which may depend on the number of rows.
        assert written == MatchSettings()


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
def test_text_settings_that_contradict_the_checkpoint_are_refused(run, text, message):
    with pytest.raises(InputError) as caught:
        resolve_shape(dataclasses.replace(starting_from(run), text=TextSection(**{"max_length": 20, **text})))
    assert str(caught.value) == message


def test_both_texts_of_a_pair_must_fit_the_positions(run):
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


def test_invalid_checkpoints_are_refused(tmp_path):
    for name in ("nowhere", str(tmp_path)):
        with pytest.raises(InputError, match=f"--encoder.pretrained {name}: expected "):
            check_settings(FitConfig(encoder=EncoderSection(pretrained=name)))


@pytest.mark.parametrize(
    ("size", "shape"), [("tiny", (128, 2, 2, 512)), ("mini", (256, 4, 4, 1024)), ("small", (512, 4, 8, 2048))]
)
def test_size_names_select_published_shapes(size, shape):
    config = FitConfig(encoder=EncoderSection(size=size))
    check_settings(config)
    encoder = encoder_config(resolve_config(config), 99, 1)
    assert isinstance(encoder, EncoderConfig)
    assert (encoder.hidden_dim, encoder.num_layers, encoder.num_heads, encoder.intermediate_dim) == shape
    # Resolving the recorded settings again changes nothing.
    assert resolve_size(resolve_size(config.encoder)) == resolve_size(config.encoder)


def test_explicit_sizes_stay_without_a_size_name():
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
def test_sizes_that_contradict_the_size_name_are_refused(values, message):
    with pytest.raises(InputError) as caught:
        check_settings(FitConfig(encoder=EncoderSection(size="tiny", **values)))
    assert str(caught.value) == message


def test_sizes_that_agree_with_the_size_name_are_accepted():
    encoder = resolve_size(EncoderSection(size="mini", hidden_dim=256, head_dim=64))
    assert (encoder.num_layers, encoder.intermediate_dim) == (4, 1024)


@pytest.mark.parametrize(
    ("task", "settings", "expected"),
    [
        ("classify", {}, True),
        ("match", {}, True),
        ("match", {"form": "joint"}, True),
        ("match", {"form": "bi"}, False),
        ("match", {"overlap": False}, False),
        ("tag", {}, True),
        ("masked_lm", {}, False),
    ],
)
def test_models_from_scratch_have_a_linear_path(task, settings, expected):
    config = FitConfig(task=task, match=MatchSettings(**settings))
    encoder = resolve_config(config).encoder
    assert encoder.linear == expected
    # The n-grams are in the path or in the encoder.
    assert bool(encoder.ngram_buckets) != expected
    if not expected:
        with pytest.raises(
            InputError, match="--encoder.linear: expected --task classify, match with overlap, or without"
        ):
            resolve_config(dataclasses.replace(config, encoder=EncoderSection(linear=True)))


@pytest.mark.parametrize(
    ("task", "form", "expected"),
    [("classify", "", True), ("match", "", True), ("match", "bi", False), ("tag", "", False)],
)
def test_models_with_a_checkpoint_have_a_linear_path(run, task, form, expected):
    config = dataclasses.replace(starting_from(run), task=task, match=MatchSettings(form=form))
    resolved = resolve_config(config)
    assert resolved.encoder.linear is expected
    # Checkpoints were trained on whole texts.
    assert left_out_share(resolve_data_defaults(resolved, ONE, LONG, 10)) == 0


def test_a_checkpoint_with_too_many_tokens_for_the_hashes_has_no_linear_path(run, monkeypatch):
    monkeypatch.setattr(defaults, "MAX_HASHED_ID", 3)
    assert resolve_config(starting_from(run)).encoder.linear is False


@pytest.mark.parametrize(
    ("task", "sections", "long_share", "expected"),
    [
        ("classify", {}, 0.09, 256),
        ("classify", {}, 0.11, 512),
        ("classify", {"text": TextSection(max_length=64)}, 0.5, 64),
        ("classify", {"classify": ClassifySettings(window=32)}, 0.5, 256),
        ("classify", {"encoder": EncoderSection(linear=False)}, 0.5, 256),
        ("tag", {}, 0.5, 256),
        ("match", {}, 0.5, 256),
    ],
)
def test_long_documents_get_a_larger_max_length(task, sections, long_share, expected):
    """Some texts have more than 256 tokens of four bytes each."""
    text_bytes = np.full(1000, 4 * 256)
    text_bytes[: int(1000 * long_share)] += 1
    config = resolve_config(FitConfig(task=task, **sections))
    assert resolve_text(config, text_bytes).text.max_length == expected


@pytest.mark.parametrize(
    ("task", "sections", "rows", "expected"),
    [
        ("classify", {}, FEW_TEXTS - 1, 1),
        ("classify", {}, FEW_TEXTS, None),
        ("classify", {"text": TextSection(min_frequency=3)}, 10, 3),
        ("classify", {"encoder": EncoderSection(linear=False)}, 10, None),
        ("tag", {}, 10, None),
        ("match", {}, 10, None),
    ],
)
def test_few_texts_have_a_vocabulary_of_all_words(task, sections, rows, expected):
    config = resolve_config(FitConfig(task=task, **sections))
    assert resolve_text(config, np.full(rows, 30)).text.min_frequency == expected
