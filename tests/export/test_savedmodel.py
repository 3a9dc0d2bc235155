import json
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import tensorflow as tf

from export.savedmodel import load_savedmodel, main, next_version, write_savedmodel
from kmha.errors import InputError
from tests.bundles import NASTY, TEXTS, one_label_bundle, several_label_bundle
from tests.command_runs import clean_environment

BUNDLES = {"one label": one_label_bundle, "several labels": several_label_bundle}
every_bundle = pytest.mark.parametrize("kind", BUNDLES)
ALL = [*NASTY, *(text.encode() for text in TEXTS)]
# What a server does: it knows nothing of this project, only the tokenizer's ops.
SERVER = """
import json, sys
sys.modules["kmha"] = sys.modules["training"] = sys.modules["export"] = None
import tensorflow as tf, tensorflow_text
loaded = tf.saved_model.load(sys.argv[1])
texts = [bytes.fromhex(text) for text in json.load(sys.stdin)]
answers = loaded.signatures["serving_default"](text=tf.constant(texts, tf.string))
lists = {name: values.numpy().tolist() for name, values in answers.items()}
print(json.dumps(lists, default=lambda text: text.decode()))
"""


@pytest.fixture(scope="module")
def runs(tmp_path_factory) -> dict[str, Path]:
    """Run folders."""
    folders = {kind: tmp_path_factory.mktemp("runs") / kind for kind in BUNDLES}
    for kind, make in BUNDLES.items():
        make().save(folders[kind])
    return folders


@pytest.fixture(scope="module")
def served(runs, tmp_path_factory) -> dict[str, Path]:
    """Written versions."""
    folders = {kind: tmp_path_factory.mktemp("served") / kind for kind in BUNDLES}
    for kind, folder in folders.items():
        assert main([str(runs[kind]), str(folder)]) == 0
    return {kind: folder / "1" for kind, folder in folders.items()}


def as_the_bundle(bundle, texts, answers: dict) -> None:
    """Checks that answers, as lists by output name, are the bundle's."""
    expected = bundle.probabilities(texts)
    found = np.array(answers["probabilities"], "float32")
    np.testing.assert_allclose(found, expected, atol=1e-5)
    assert answers["labels"] == [bundle.labels] * len(texts)
    if not bundle.multi_label:
        assert answers["label"] == [answer["label"] for answer in bundle.predict(texts)]
        assert set(answers) == {"label", "labels", "probabilities"}
        return
    assert set(answers) == {"given", "labels", "probabilities"}
    clear = np.abs(expected - np.array(bundle.thresholds)) > 1e-4
    given = expected >= np.array(bundle.thresholds)
    assert clear.mean() > 0.9
    assert (np.array(answers["given"]) == given)[clear].all()


def ask(folder: Path, texts: list[bytes]) -> dict:
    answers = load_savedmodel(folder)(texts)
    lists = {name: values.numpy().tolist() for name, values in answers.items()}
    return json.loads(json.dumps(lists, default=lambda text: text.decode()))


@every_bundle
def test_a_fresh_process_answers_as_the_bundle(served, kind):
    result = subprocess.run(
        [sys.executable, "-c", SERVER, str(served[kind])],
        input=json.dumps([text.hex() for text in ALL]),
        env={**clean_environment(), "PYTHONPATH": ""},
        cwd=served[kind].parent,
        capture_output=True,
        text=True,
    )
    assert result.returncode == 0, result.stderr
    as_the_bundle(BUNDLES[kind](), ALL, json.loads(result.stdout))


@every_bundle
def test_other_texts_in_the_batch_do_not_matter(served, kind):
    together, answer = ask(served[kind], ALL), load_savedmodel(served[kind])
    for index in (0, len(NASTY), len(ALL) - 1):
        alone = answer([ALL[index]])["probabilities"].numpy()[0]
        np.testing.assert_allclose(alone, together["probabilities"][index], atol=1e-5)


@every_bundle
def test_an_empty_batch_is_answered(served, kind):
    answers = load_savedmodel(served[kind])([])
    classes = len(BUNDLES[kind]().labels)
    assert answers["probabilities"].shape == answers["labels"].shape == (0, classes)


@every_bundle
def test_the_signature_is_stable(served, kind):
    loaded = tf.saved_model.load(str(served[kind]))
    assert list(loaded.signatures) == ["serving_default"]
    signature = loaded.signatures["serving_default"]
    args, kwargs = signature.structured_input_signature
    classes = len(BUNDLES[kind]().labels)
    assert args == ()
    assert {name: (spec.dtype, spec.shape.as_list()) for name, spec in kwargs.items()} == {
        "text": (tf.string, [None])
    }
    answer = (
        ("given", tf.int32, [None, classes]) if kind == "several labels" else ("label", tf.string, [None])
    )
    outputs = {
        name: (spec.dtype, spec.shape.as_list()) for name, spec in signature.structured_outputs.items()
    }
    assert outputs == {
        "labels": (tf.string, [None, classes]),
        "probabilities": (tf.float32, [None, classes]),
        answer[0]: answer[1:],
    }


@every_bundle
def test_each_weight_is_written_once_and_nothing_else(served, kind):
    model = BUNDLES[kind]().model
    variables = served[kind] / "variables" / "variables"
    shapes = dict(tf.train.list_variables(str(variables)))
    weights = [shape for name, shape in shapes.items() if "OBJECT_GRAPH" not in name]
    assert sorted(map(tuple, weights)) == sorted(tuple(variable.shape) for variable in model.variables)
    assert not [name for name in shapes if "optimizer" in name or "slot" in name.lower()]
    size = sum(np.array(variable.value.numpy()).nbytes for variable in model.variables)
    on_disk = (variables.parent / "variables.data-00000-of-00001").stat().st_size
    assert size <= on_disk <= size + 20_000


def test_versions_count_up(runs, tmp_path, capsys):
    out = tmp_path / "new" / "served"
    for version in ("1", "2"):
        assert main([str(runs["one label"]), str(out)]) == 0
        assert capsys.readouterr().out == f"{out / version}\n"
    assert sorted(path.name for path in out.iterdir()) == ["1", "2"]
    as_the_bundle(one_label_bundle(), ALL[-3:], ask(out / "2", ALL[-3:]))


@pytest.mark.parametrize(
    ("present", "wanted"),
    [([], 1), (["1"], 2), (["1", "7"], 8), (["7.partial", "notes"], 1), (["²", "٣", "0012"], 13)],
)
def test_the_next_version(tmp_path, present, wanted):
    for name in present:
        (tmp_path / name).mkdir()
    assert next_version(tmp_path) == wanted


def test_the_next_version_of_a_folder_that_is_not_there(tmp_path):
    assert next_version(tmp_path / "absent") == 1


def test_a_moved_model_answers(served, tmp_path):
    moved = shutil.copytree(served["one label"], tmp_path / "elsewhere" / "9")
    as_the_bundle(one_label_bundle(), ALL, ask(moved, ALL))


@pytest.mark.parametrize("error", [OSError("disk full"), RuntimeError("stop"), KeyboardInterrupt()])
def test_nothing_half_written_stays_when_saving_fails(tmp_path, monkeypatch, error):
    def half(_, folder, **__):
        Path(folder).mkdir(exist_ok=True)
        (Path(folder) / "saved_model.pb").write_bytes(b"half")
        raise error

    monkeypatch.setattr(tf.saved_model, "save", half)
    (tmp_path / "served" / "1").mkdir(parents=True)
    for folder in (tmp_path / "served", tmp_path / "new"):
        with pytest.raises(InputError if isinstance(error, OSError) else type(error)):
            write_savedmodel(one_label_bundle(), folder)
    assert [path.name for path in (tmp_path / "served").iterdir()] == ["1"]
    assert not (tmp_path / "new").exists()


def test_what_a_killed_export_left_is_cleared(tmp_path):
    left = tmp_path / "1.partial"
    left.mkdir()
    (left / "rubbish").touch()
    written = write_savedmodel(one_label_bundle(), tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["1"] and not (written / "rubbish").exists()


@pytest.mark.parametrize("place", ["file", "file/below"])
def test_a_place_that_cannot_be_written_to_is_refused(runs, tmp_path, capsys, place):
    (tmp_path / "file").touch()
    assert main([str(runs["one label"]), str(tmp_path / place)]) == 2
    captured = capsys.readouterr()
    assert captured.out == "" and captured.err.count("\n") == 1
    assert f"error: {tmp_path / place}: cannot write there" in captured.err


def test_what_is_no_run_is_refused_before_anything_is_written(tmp_path, capsys):
    assert main([str(tmp_path / "absent"), str(tmp_path / "out")]) == 2
    assert "wanted a run folder" in capsys.readouterr().err
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("kind", ["absent", "empty", "damaged"])
def test_what_is_no_savedmodel_is_refused(tmp_path, kind):
    folder = tmp_path / "1"
    if kind != "absent":
        folder.mkdir()
    if kind == "damaged":
        (folder / "saved_model.pb").write_bytes(b"no model")
    with pytest.raises(InputError, match="wanted a SavedModel") as error:
        load_savedmodel(folder)
    assert "\n" not in str(error.value)


def test_a_savedmodel_of_something_else_is_refused(tmp_path):
    tf.saved_model.save(tf.Module(), str(tmp_path / "1"))
    with pytest.raises(InputError, match="serving_default"):
        load_savedmodel(tmp_path / "1")
