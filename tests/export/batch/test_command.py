import subprocess
import sys

import pytest

from export.batch.__main__ import BatchConfig, main, report, split_flags
from export.batch.rows import text_model
from export.savedmodel.predictor import load_savedmodel
from export.savedmodel.write import write_savedmodel
from kmha.errors import InputError
from tests.bundles import TEXTS, one_label_bundle
from tests.command_runs import ROOT, call, clean_environment

WITHOUT_BEAM = (
    "import sys; sys.modules['apache_beam'] = None; from export.batch.__main__ import main; sys.exit(main())"
)


@pytest.mark.parametrize(
    ("argv", "mine", "beams"),
    [
        (["run"], ["run"], []),
        (["run", "--"], ["run"], []),
        (
            ["run", "--output=o", "--", "--runner=X", "--", "-a"],
            ["run", "--output=o"],
            ["--runner=X", "--", "-a"],
        ),
    ],
)
def test_flags_after_two_dashes_are_passed_to_beam(argv, mine, beams):
    assert split_flags(argv) == (mine, beams)


def test_the_error_without_beam_names_the_extra(tmp_path):
    result = subprocess.run(
        [sys.executable, "-c", WITHOUT_BEAM, "run", "--input=in-*", f"--output={tmp_path / 'new' / 'out'}"],
        cwd=ROOT,
        env=clean_environment(),
        capture_output=True,
        text=True,
    )
    assert result.returncode == 2 and not result.stdout
    assert result.stderr.count("\n") == 1 and "kmha[beam]" in result.stderr
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([], "missing"),
        (["run", "--input=a"], "--output"),
        (["run", "--input=a", "--output=b", "--batch-rows=0"], "--batch-rows"),
        (["run", "--input=a", "--output=b", "--shards=-1"], "--shards"),
        (["run", "--input=a", "--output=b", "--runner=FlinkRunner"], "unknown flag --runner"),
    ],
)
def test_wrong_flags_are_rejected(arguments, message):
    outcome = call(main, *arguments)
    assert outcome.status == 2 and not outcome.out
    assert outcome.err.count("\n") == 1 and message in outcome.err


@pytest.mark.parametrize(
    ("counts", "status", "message"),
    [
        ((1200, 0), 0, "1,200 predictions, 600 rows/s, 0 bad rows\n"),
        ((0, 0), 0, "0 predictions, 0 rows/s, 0 bad rows\n"),
        ((3, 1), 0, "1 bad rows\nbad rows with their reasons: out.errors-*.jsonl"),
        ((0, 7), 1, "7 bad"),
        (None, 0, "does not report the number of rows"),
    ],
)
def test_the_report_shows_counts_and_sets_the_exit_status(
    tmp_path, monkeypatch, capsys, counts, status, message
):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "out-00000-of-00001.jsonl").touch()
    assert report(BatchConfig("run", "in-*", "out"), counts, 2.0) == status
    captured = capsys.readouterr()
    assert captured.out == "out-00000-of-00001.jsonl\n"
    assert message in captured.err


@pytest.fixture(scope="module")
def served(tmp_path_factory):
    """A folder of two versions, the second not finished."""
    folder = tmp_path_factory.mktemp("served") / "news"
    write_savedmodel(one_label_bundle(), folder)
    (folder / "2").mkdir()
    return folder


@pytest.mark.second
@pytest.mark.parametrize("kind", ["run", "savedmodel", "versions"])
def test_every_kind_of_model_is_found(served, tmp_path, kind):
    if kind == "run":
        one_label_bundle().save(tmp_path / "run")
    place = {"run": tmp_path / "run", "savedmodel": served / "1", "versions": served}[kind]
    with text_model(str(place)) as folder:
        labels = load_savedmodel(folder)(TEXTS)["label"].numpy()
        assert [label.decode() for label in labels] == [
            each["label"] for each in one_label_bundle().predict(TEXTS)
        ]
        if kind != "run":
            assert folder == str(served / "1")
    assert not list(tmp_path.glob("*/1"))


@pytest.mark.parametrize("kind", ["absent", "file", "empty", "other"])
def test_other_models_are_rejected(tmp_path, kind):
    place = tmp_path / kind
    if kind == "file":
        place.touch()
    elif kind == "empty":
        place.mkdir()
    elif kind == "other":
        import tensorflow as tf

        tf.saved_model.save(tf.Module(), str(place))
    with pytest.raises(InputError, match=f"{place}: expected") as error, text_model(str(place)):
        pytest.fail("entered")
    assert "\n" not in str(error.value)
