import pytest

from clients import check
from export import verify
from export.batch import rows as batch_model
from export.benchmark import __main__ as benchmark
from export.checks import check_exportable, check_single_texts
from export.onnx import __main__ as onnx
from export.savedmodel import __main__ as savedmodel
from export.savedmodel.predictor import load_savedmodel
from export.tflite import __main__ as tflite
from kmha.errors import InputError
from tests.bundles import masked_bundle, one_label_bundle, pair_bundle
from tests.command_runs import call
from tests.export.verification.test_pairs import quick_savedmodel


@pytest.mark.parametrize("main", [savedmodel.main, tflite.main, onnx.main, verify.main])
def test_masked_language_models_are_rejected_in_one_line(tmp_path, main):
    masked_bundle().save(tmp_path / "run")
    out = tmp_path / {tflite.main: "a.tflite", onnx.main: "a.onnx"}.get(main, "served")
    flags = []
    if main is verify.main:
        out.mkdir()
        (out / "saved_model.pb").touch()
        (tmp_path / "a.csv").write_text("text\na\n")
        flags = ["--data", tmp_path / "a.csv"]
    before = sorted(tmp_path.rglob("*"))
    outcome = call(main, tmp_path / "run", out, *flags)
    assert outcome.status == 2 and not outcome.out
    run = tmp_path / "run"
    assert outcome.err == (
        f"error: {run}: expected a classifier, a matcher or a tagger, got a masked language model;"
        f" start one from it with training.fit --encoder.pretrained {run}\n"
    )
    assert sorted(tmp_path.rglob("*")) == before


def test_other_models_pass(tmp_path):
    one_label_bundle().save(tmp_path / "run")
    check_exportable(tmp_path / "run")


EXPECTED = "expected a classifier, since {} takes single texts, got a matcher"


@pytest.fixture(scope="module")
def matcher(tmp_path_factory):
    folder = tmp_path_factory.mktemp("matcher") / "run"
    pair_bundle().save(folder)
    return folder


@pytest.mark.parametrize(
    ("main", "name", "flags"),
    [(benchmark.main, "export.benchmark", []), (check.main, "clients.check", ["--data=rows.csv"])],
)
def test_commands_of_single_texts_reject_a_matcher_in_one_line(matcher, main, name, flags):
    outcome = call(main, matcher, *flags)
    assert outcome.status == 2 and not outcome.out
    assert outcome.err == f"error: {matcher}: {EXPECTED.format(name)}\n"


def test_a_batch_rejects_a_matcher_and_its_savedmodel(matcher, tmp_path):
    with (
        pytest.raises(InputError, match=EXPECTED.format("export.batch")),
        batch_model.text_model(str(matcher)),
    ):
        pass
    served = quick_savedmodel(pair_bundle(), tmp_path / "served")
    message = "expected the inputs text_a, text_b of serving_default by name, got values without"
    with pytest.raises(InputError, match=message) as error, batch_model.text_model(str(served)):
        pass
    assert "\n" not in str(error.value)
    with pytest.raises(InputError, match=message):
        load_savedmodel(served)(["bread"])


def test_a_classifier_passes_and_another_folder_does_not(tmp_path):
    one_label_bundle().save(tmp_path / "run")
    check_single_texts(tmp_path / "run", "export.batch")
    with pytest.raises(InputError, match="expected a run folder"):
        check_single_texts(tmp_path / "absent", "export.batch")
