import pytest

from clients import check
from export.batch import predictions as batch_model
from export.benchmark import __main__ as benchmark
from export.checks.exportable import check_single_texts
from export.savedmodel.predictor import load_savedmodel
from kmha.errors import InputError
from tests.bundles import one_label_bundle, pair_bundle
from tests.command_runs import call
from tests.export.test_pair_verify import quick_savedmodel

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
def test_commands_of_single_texts_refuse_a_matcher_in_one_line(matcher, main, name, flags):
    outcome = call(main, matcher, *flags)
    assert outcome.status == 2 and not outcome.out
    assert outcome.err == f"error: {matcher}: {EXPECTED.format(name)}\n"


def test_a_batch_refuses_a_matcher_and_its_savedmodel(matcher, tmp_path):
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


def test_a_classifier_passes_and_what_is_no_run_does_not(tmp_path):
    one_label_bundle().save(tmp_path / "run")
    check_single_texts(tmp_path / "run", "export.batch")
    with pytest.raises(InputError, match="expected a run folder"):
        check_single_texts(tmp_path / "absent", "export.batch")
