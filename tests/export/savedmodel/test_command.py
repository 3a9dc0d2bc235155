import json
import shutil
from pathlib import Path

import numpy as np
import pytest
import tensorflow as tf
from tensorflow.core.protobuf import saved_model_pb2

from export.savedmodel import write
from export.savedmodel.__main__ import main
from export.savedmodel.predictor import load_savedmodel
from export.savedmodel.write import next_version, serialized_example, write_savedmodel
from kmha.errors import InputError
from tests.bundles import EDGE_CASES, TEXTS, one_label_bundle
from tests.command_runs import clean_environment, run_script
from tests.export.conftest import BUNDLES

every_bundle = pytest.mark.parametrize("kind", BUNDLES)
ALL = [*EDGE_CASES, *(text.encode() for text in TEXTS)]
# As a server does: only the tokenizer's ops are loaded, nothing of this project.
SERVER = """
import json, sys
sys.modules["kmha"] = sys.modules["training"] = sys.modules["export"] = None
import tensorflow as tf, tensorflow_text
loaded = tf.saved_model.load(sys.argv[1])
texts = [bytes.fromhex(text) for text in json.load(sys.stdin)]
answers = loaded.signatures[sys.argv[2]](text=tf.constant(texts, tf.string))
lists = {name: values.numpy().tolist() for name, values in answers.items()}
print(json.dumps(lists, default=lambda text: text.decode()))
"""


def check_equals_bundle(bundle, texts, predictions: dict) -> None:
    """Checks that predictions, as lists by output name, are the bundle's."""
    expected = bundle.probabilities(texts)
    found = np.array(predictions["probabilities"], "float32")
    np.testing.assert_allclose(found, expected, atol=1e-5)
    assert predictions["labels"] == [bundle.labels] * len(texts)
    if not bundle.multi_label:
        assert predictions["label"] == [prediction["label"] for prediction in bundle.predict(texts)]
        assert set(predictions) == {"label", "labels", "probabilities"}
        return
    assert set(predictions) == {"given", "labels", "probabilities"}
    clear = np.abs(expected - np.array(bundle.thresholds)) > 1e-4
    given = expected >= np.array(bundle.thresholds)
    assert clear.mean() > 0.9
    assert (np.array(predictions["given"]) == given)[clear].all()


def meta_graph(folder: Path):
    saved = saved_model_pb2.SavedModel.FromString((folder / "saved_model.pb").read_bytes())
    return saved.meta_graphs[0]


def request(folder: Path, texts: list[bytes]) -> dict:
    predictions = load_savedmodel(folder)(texts)
    lists = {name: values.numpy().tolist() for name, values in predictions.items()}
    return json.loads(json.dumps(lists, default=lambda text: text.decode()))


@pytest.mark.second
@every_bundle
def test_a_new_process_gives_the_predictions_of_the_bundle(served, kind):
    name = "serving_default" if kind == "one label" else "predict_text"
    environment = {**clean_environment(), "PYTHONPATH": ""}
    printed = run_script(
        SERVER,
        served[kind],
        name,
        stdin=json.dumps([text.hex() for text in ALL]),
        env=environment,
        cwd=served[kind].parent,
    )
    check_equals_bundle(BUNDLES[kind](), ALL, json.loads(printed))


@every_bundle
def test_other_texts_in_the_batch_change_no_prediction(served, kind):
    together, predict = request(served[kind], ALL), load_savedmodel(served[kind])
    for index in (0, len(EDGE_CASES), len(ALL) - 1):
        alone = predict([ALL[index]])["probabilities"].numpy()[0]
        np.testing.assert_allclose(alone, together["probabilities"][index], atol=1e-5)


@every_bundle
def test_an_empty_batch_is_predicted(served, kind):
    predictions = load_savedmodel(served[kind])([])
    classes = len(BUNDLES[kind]().labels)
    assert predictions["probabilities"].shape == predictions["labels"].shape == (0, classes)


def shapes(specs: dict) -> dict:
    return {name: (spec.dtype, spec.shape.as_list()) for name, spec in specs.items()}


@every_bundle
def test_the_signatures_are_stable(served, kind):
    loaded = tf.saved_model.load(str(served[kind]))
    classes = [None, len(BUNDLES[kind]().labels)]
    text, ids = (tf.string, [None]), (tf.int32, [None, None])
    decision = {"given": (tf.int32, classes)} if kind == "several labels" else {"label": (tf.string, [None])}
    of_text = (
        {"text": text},
        {"labels": (tf.string, classes), "probabilities": (tf.float32, classes), **decision},
    )
    of_ids = ({"token_ids": ids, "padding_mask": ids}, {"probabilities": (tf.float32, classes)})
    attention = (tf.float32, [None, 1, 2, None, None])
    explanation = {"tokens": (tf.string, [None, None]), "attention": attention, **of_ids[1]}
    vectors = {"vectors": (tf.float32, [None, 16])}
    expected = {
        "serving_default": of_text,
        "predict_text": of_text,
        "predict_ids": of_ids,
        "predict_ids_xla": of_ids,
        "classify": ({"inputs": text}, {"classes": (tf.string, classes), "scores": (tf.float32, classes)}),
        "explain": ({"text": text}, explanation),
        "embed": ({"text": text}, vectors),
        "embed_ids": (of_ids[0], vectors),
    }
    assert set(loaded.signatures) == set(expected)
    for name, signature in loaded.signatures.items():
        args, kwargs = signature.structured_input_signature
        assert args == ()
        assert (shapes(kwargs), shapes(signature.structured_outputs)) == expected[name], name


def test_the_compiled_signature_is_written_only_on_request(tmp_path):
    folder = write_savedmodel(one_label_bundle(), tmp_path / "served")
    loaded = tf.saved_model.load(str(folder))
    names = {"serving_default", "predict_text", "predict_ids", "classify", "explain", "embed", "embed_ids"}
    assert set(loaded.signatures) == names


@every_bundle
def test_each_signature_is_called_by_the_method_made_for_it(served, kind):
    signatures = meta_graph(served[kind]).signature_def
    methods = {name: signature.method_name for name, signature in signatures.items()}
    assert methods.pop("classify") == "tensorflow/serving/classify"
    methods.pop("__saved_model_init_op")
    assert set(methods.values()) == {"tensorflow/serving/predict"}


@every_bundle
@pytest.mark.parametrize("name", ["predict_ids", "predict_ids_xla"])
def test_ids_are_predicted_and_rejected_as_before_saving(served, kind, name, ids_of_texts):
    bundle, predict = BUNDLES[kind](), load_savedmodel(served[kind], name)
    features = ids_of_texts(bundle)
    found = predict(**features)["probabilities"]
    np.testing.assert_allclose(found, bundle.probabilities(TEXTS), atol=1e-5)
    with pytest.raises(tf.errors.InvalidArgumentError, match=r"token_ids must be in \[0, "):
        predict(**{**features, "token_ids": features["token_ids"] - 1})
    with pytest.raises(tf.errors.InvalidArgumentError, match="padding_mask must have the shape of token_ids"):
        predict(**{**features, "padding_mask": features["padding_mask"][:, 1:]})


@every_bundle
def test_examples_and_explanations_are_predicted(served, kind):
    bundle = BUNDLES[kind]()
    scores = load_savedmodel(served[kind], "classify")([serialized_example(text) for text in ALL])["scores"]
    explained = load_savedmodel(served[kind], "explain")(ALL)["probabilities"]
    for found in (scores, explained):
        np.testing.assert_allclose(found, bundle.probabilities(ALL), atol=1e-5)


def test_no_outdated_checksum_is_left(served):
    assert not (served["one label"] / "fingerprint.pb").exists()


def test_the_graph_contains_the_model_once_for_each_compilation(served):
    sizes = [
        len(function.node_def) for function in meta_graph(served["one label"]).graph_def.library.function
    ]
    assert len([size for size in sizes if size > 300]) == 4  # plain, with attention, compiled, vectors


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


@pytest.fixture
def stored_model(served, monkeypatch):
    """Replaces the conversion: every version is a copy of the stored one."""

    def save(bundle, folder, xla):
        shutil.copytree(served["one label"], folder, dirs_exist_ok=True)
        return {}

    monkeypatch.setattr(write, "_save", save)


def test_versions_count_up(runs, stored_model, tmp_path, capsys):
    out = tmp_path / "new" / "served"
    for version in ("1", "2"):
        assert main([str(runs["one label"]), str(out)]) == 0
        assert capsys.readouterr().out == f"{out / version}\n"
    assert sorted(path.name for path in out.iterdir() if path.is_dir()) == ["1", "2"]
    check_equals_bundle(one_label_bundle(), ALL[-3:], request(out / "2", ALL[-3:]))


@pytest.mark.parametrize(
    ("present", "expected"),
    [([], 1), (["1"], 2), (["1", "7"], 8), (["7.partial", "notes"], 1), (["²", "٣", "0012"], 13)],
)
def test_the_next_version(tmp_path, present, expected):
    for name in present:
        (tmp_path / name).mkdir()
    assert next_version(tmp_path) == expected


def test_the_next_version_of_a_missing_folder(tmp_path):
    assert next_version(tmp_path / "absent") == 1


def test_a_moved_model_still_predicts(served, tmp_path):
    moved = shutil.copytree(served["one label"], tmp_path / "elsewhere" / "9")
    check_equals_bundle(one_label_bundle(), ALL, request(moved, ALL))


@pytest.mark.parametrize("error", [OSError("disk full"), RuntimeError("stop"), KeyboardInterrupt()])
def test_nothing_is_left_when_saving_fails(tmp_path, monkeypatch, error):
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


def test_two_exports_at_once_write_two_versions(stored_model, tmp_path, monkeypatch):
    """The second one begins and ends while the first one converts."""
    save, written = write._save, []

    def slow(bundle, folder, xla):
        monkeypatch.setattr(write, "_save", save)
        written.append(write_savedmodel(one_label_bundle(), tmp_path))
        return save(bundle, folder, xla)

    monkeypatch.setattr(write, "_save", slow)
    written.append(write_savedmodel(one_label_bundle(), tmp_path))
    assert written == [tmp_path / "1", tmp_path / "2"]
    assert all((version / "saved_model.pb").exists() for version in written)
    assert not list(tmp_path.glob(".*"))


@pytest.mark.parametrize("place", ["file", "file/below"])
def test_a_folder_that_cannot_be_written_to_is_rejected(runs, tmp_path, capsys, place):
    (tmp_path / "file").touch()
    assert main([str(runs["one label"]), str(tmp_path / place)]) == 2
    captured = capsys.readouterr()
    assert captured.out == "" and captured.err.count("\n") == 1
    assert f"error: {tmp_path / place / '1'}: cannot write there" in captured.err


def test_other_folders_are_rejected_before_anything_is_written(tmp_path, capsys):
    assert main([str(tmp_path / "absent"), str(tmp_path / "out")]) == 2
    assert "expected a run folder" in capsys.readouterr().err
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("kind", ["absent", "empty", "damaged"])
def test_other_folders_are_rejected(tmp_path, kind):
    folder = tmp_path / "1"
    if kind != "absent":
        folder.mkdir()
    if kind == "damaged":
        (folder / "saved_model.pb").write_bytes(b"no model")
    with pytest.raises(InputError, match="expected a SavedModel") as error:
        load_savedmodel(folder)
    assert "\n" not in str(error.value)


def test_another_savedmodel_is_rejected(tmp_path):
    tf.saved_model.save(tf.Module(), str(tmp_path / "1"))
    with pytest.raises(InputError, match="serving_default"):
        load_savedmodel(tmp_path / "1")
