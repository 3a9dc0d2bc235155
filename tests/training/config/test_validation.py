from dataclasses import replace
from pathlib import Path

import pytest

from kmha.errors import InputError
from kmha.text.vocabulary import SPECIAL_TOKENS
from training.config.config import DataSection, EncoderSection, FitConfig, TextSection, TrainSection
from training.config.defaults import encoder_config, resolve_config
from training.config.validation import check_settings
from training.tasks.settings import MatchSettings

PAIRS = Path("pairs.csv")


def with_encoder(**values) -> FitConfig:
    return FitConfig(encoder=EncoderSection(**values))


def with_text(**values) -> FitConfig:
    return FitConfig(text=TextSection(**values))


def with_match(**values) -> FitConfig:
    return FitConfig(task="match", data=DataSection(train=PAIRS), match=MatchSettings(**values))


@pytest.mark.parametrize(
    ("config", "message"),
    [
        (
            with_encoder(hidden_dim=100, num_heads=3),
            "--encoder.num-heads must divide --encoder.hidden-dim, got --encoder.hidden-dim 100 and"
            " --encoder.num-heads 3; or give --encoder.head-dim",
        ),
        (with_encoder(hidden_dim=0), "--encoder.hidden-dim must be at least 1, got 0"),
        (with_encoder(num_layers=-1), "--encoder.num-layers must be at least 0, got -1"),
        (with_encoder(dropout=1.5), "--encoder.dropout must be a probability in [0, 1), got 1.5"),
        (with_encoder(attention_dropout=1), "--encoder.attention-dropout must be a probability"),
        (
            with_encoder(positions="rotary", head_dim=3),
            "--encoder.head-dim must be even for rotary positions",
        ),
        (with_encoder(ngram_orders=(1, 2)), "--encoder.ngram-orders must be 2 to 64 each, got (1, 2)"),
        (with_encoder(ngram_buckets=2**18), "--encoder.ngram-buckets must be below 262144, got 262144"),
        (with_text(vocabulary_size=2**18), "--text.vocabulary-size must be below 262144 with n-grams"),
        (with_text(vocabulary_size=5), "--text.vocabulary-size: expected more than 5, got 5"),
        (with_text(max_length=2), "--text.max-length: expected at least 3, got 2"),
        (with_text(vocabulary=Path("none.txt")), "none.txt: expected a vocabulary file"),
        (
            with_encoder(vectors=Path("none.txt")),
            "--encoder.vectors none.txt: expected a file of word vectors",
        ),
        (FitConfig(data=DataSection(label_separator="")), "--data.label-separator: expected a character"),
        (FitConfig(data=DataSection(label_column="text")), "--data.label-column: expected another column"),
        (
            FitConfig(task="match", data=DataSection(label_column="text_b")),
            "--data.label-column: expected another column than --data.text-b-column, got 'text_b' twice",
        ),
        (
            FitConfig(task="match", data=DataSection(text_column="q", text_b_column="q")),
            "--data.text-b-column: expected another column than --data.text-column",
        ),
        (
            FitConfig(task="match", data=DataSection(text_column="label")),
            "--data.label-column: expected another column than --data.text-column, got 'label' twice",
        ),
        (
            FitConfig(task="match", data=DataSection(query_column="text_b")),
            "--data.query-column: expected another column than --data.text-b-column",
        ),
        (FitConfig(task="match"), "--data.train: expected pairs of texts for --task match"),
        (
            FitConfig(data=DataSection(text_b_column="b")),
            "--data.text-b-column: expected --task match with it, got --task classify",
        ),
        (
            FitConfig(data=DataSection(query_column="q")),
            "--data.query-column: expected --task match with it, got --task classify",
        ),
        (
            with_match(hard_negatives="nowhere"),
            "--match.hard-negatives nowhere: nowhere: expected a run folder with bundle.json",
        ),
        (with_match(rounds=5), "--match.rounds: expected at least 1 and at most 4, got 5"),
        (with_match(margin=0), "--match.margin: expected above 0, got 0"),
        (with_match(dropout=1.0), "--match.dropout: expected at least 0 and below 1, got 1.0"),
        (
            replace(
                with_match(granularities=("char", "word")), text=TextSection(vocabulary=Path("vocab.txt"))
            ),
            "--text.vocabulary: expected none with several --match.granularities, each of which learns its own",
        ),
        (
            replace(with_match(form="joint"), encoder=EncoderSection(positions="rotary")),
            "--encoder.positions: expected learned, sinusoidal or none for the joint form, got rotary",
        ),
        (FitConfig(train=TrainSection(epochs=-1)), "--train.epochs: expected at least 0, got -1"),
    ],
)
def test_invalid_settings_are_refused_before_rows_are_read(config, message):
    with pytest.raises(InputError) as caught:
        check_settings(config)
    assert str(caught.value).startswith(message)
    assert "\n" not in str(caught.value)


def test_the_first_text_may_be_the_query_column():
    check_settings(FitConfig(task="match", data=DataSection(train=PAIRS, query_column="text_a")))


def test_num_heads_need_not_divide_hidden_dim_with_a_head_dim():
    check_settings(with_encoder(hidden_dim=100, num_heads=3, head_dim=8))


def test_a_vocabulary_file_overrides_the_vocabulary_size(tmp_path):
    path = tmp_path / "vocab.txt"
    path.write_text("\n".join([*SPECIAL_TOKENS, "a", "b"]))
    check_settings(with_text(vocabulary=path, vocabulary_size=1))
    path.write_text("\n".join([*SPECIAL_TOKENS, "a", "b", "a"]))
    with pytest.raises(InputError, match=r"vocab\.txt:8: tokens must be distinct, got 'a' again"):
        check_settings(with_text(vocabulary=path))


def test_the_encoder_has_every_setting_of_its_section():
    section = EncoderSection(
        hidden_dim=24, num_heads=2, norm="post", ngram_orders=(2,), vectors=Path("v.txt")
    )
    config = replace(FitConfig(encoder=section), text=TextSection(max_length=9))
    encoder = encoder_config(resolve_config(config), vocabulary_size=77, unknown_id=4)
    assert (encoder.vocabulary_size, encoder.unknown_id, encoder.max_length) == (77, 4, 9)
    assert (encoder.hidden_dim, encoder.norm, encoder.ngram_orders) == (24, "post", (2,))


def test_hard_negatives_come_from_a_matcher(news_run):
    with pytest.raises(InputError) as caught:
        check_settings(with_match(hard_negatives=str(news_run.folder)))
    assert str(caught.value) == (
        f"--match.hard-negatives {news_run.folder}: expected a matcher of the bi form, got a classifier"
    )
    check_settings(with_match(hard_negatives="bm25"))
