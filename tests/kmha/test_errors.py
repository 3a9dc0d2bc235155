import pytest

from kmha.errors import did_you_mean, format_names

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


def test_lists_of_names_are_bounded():
    names = [f"n{number}" for number in range(1_500)]
    assert format_names(names[:10]) == ", ".join(names[:10])
    assert format_names(iter(names)) == f"{', '.join(names[:10])} and 1,490 more"
    assert format_names(["a" * 101, "b"]) == f"{'a' * 100}…, b"
    assert (format_names([]), format_names((), "nothing")) == ("none", "nothing")
