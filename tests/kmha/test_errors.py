import pytest

from kmha.errors import did_you_mean

FLAGS = [
    "--out",
    "--data.train",
    "--train.epochs",
    "--encoder.dropout",
    "--classify.dropout",
    "--encoder.num-heads",
]


@pytest.mark.parametrize(
    ("name", "hint"),
    [
        ("--train.epoch", "; did you mean --train.epochs?"),
        ("--epochs", "; did you mean --train.epochs?"),
        ("--epoch", "; did you mean --train.epochs?"),
        ("--dropout", "; did you mean --encoder.dropout or --classify.dropout?"),
        ("--encoder.num_head", "; did you mean --encoder.num-heads?"),
        ("--Out", "; did you mean --out?"),
        ("--foo", ""),
        ("--xyzzy.quux", ""),
        ("--", ""),
    ],
)
def test_did_you_mean_names_similar_flags_or_nothing(name, hint):
    assert did_you_mean(name, FLAGS) == hint
