import json
import subprocess
import sys

import numpy as np
import pytest
import tensorflow as tf
import yaml

from export.batch import rows as batch_model
from export.benchmark import __main__ as benchmark
from export.predictors.artifacts import read_texts, write_texts
from export.savedmodel.predictor import SavedModelTagger, load_savedmodel, read
from export.savedmodel.write import BATCH_SIZES, COMPOSE, add_missing, server_files
from export.verification.expected import as_array
from kmha.errors import InputError
from tests.bundles import EDGE_CASES, SENTENCES, tagger_bundle
from tests.command_runs import call, clean_environment, run_script
from tests.export.savedmodel.test_ops import check
from tests.export.savedmodel.test_write import inputs_of, logs

ROWS = [
    *(sentence.encode().split() for sentence in SENTENCES),
    *(sentence.encode() for sentence in SENTENCES),
    [],
    list(EDGE_CASES[:10]),
    b"",
    *EDGE_CASES[:12],
]
# As a server does: only the tokenizer's ops are loaded, nothing of this project.
SERVER = """
import json, sys
sys.modules["kmha"] = sys.modules["training"] = sys.modules["export"] = None
import tensorflow as tf, tensorflow_text
loaded = tf.saved_model.load(sys.argv[1])
answers = []
for name, inputs in json.load(sys.stdin):
    outputs = loaded.signatures[name](**{key: tf.constant(value) for key, value in inputs.items()})
    answers.append({key: values.numpy().tolist() for key, values in outputs.items()})
print(json.dumps(answers, default=bytes.decode))
"""


@pytest.fixture(scope="module")
def served(served_tagger):
    return served_tagger


def expected(rows) -> np.ndarray:
    tagger = tagger_bundle().tagger
    return as_array(tagger.tag(tagger.split(rows).words))


@pytest.mark.second
def test_a_new_process_gives_the_predictions_of_the_bundle(served):
    words = SENTENCES[0].split()
    requests = [
        ("serving_default", {"text": SENTENCES}),
        ("predict_words", {"words": [[*words, ""]], "num_words": [len(words)]}),
    ]
    environment = {**clean_environment(), "PYTHONPATH": ""}
    printed = run_script(SERVER, served, stdin=json.dumps(requests), env=environment, cwd=served.parent)
    texts, of_words = json.loads(printed)
    for row, prediction in enumerate(tagger_bundle().predict(SENTENCES)):
        count = texts["num_words"][row]
        for name in ("words", "tags", "starts", "ends"):
            assert texts[name][row][:count] == prediction[name]
        best = np.max(texts["probabilities"][row][:count], axis=1)
        assert (best >= np.array(prediction["probabilities"]) - 1e-5).all()
    (prediction,) = tagger_bundle().predict([words])
    assert of_words["tags"][0] == [*prediction["tags"], ""]


@pytest.fixture(scope="module")
def loaded(served):
    return tf.saved_model.load(str(served))


def test_the_predictor_gives_the_predictions_of_the_bundle(served):
    predictor = read(served)
    assert isinstance(predictor, SavedModelTagger) and predictor.sentences and predictor.num_texts == 1
    assert predictor.facts()["labels"] == tagger_bundle().labels
    found = predictor.probabilities(ROWS)
    assert found.dtype == np.float32 and predictor.token_ids(ROWS) is None
    np.testing.assert_allclose(found, expected(ROWS), atol=1e-5)
    assert predictor.probabilities([]).shape == (0, len(tagger_bundle().labels) + 2)


@pytest.mark.second
def test_the_command_reads_sentences_with_spaces_between_words(served, tmp_path):
    program = [sys.executable, "-m", "export.answer", str(served)]
    result = subprocess.run(program, input="\n".join(SENTENCES).encode(), capture_output=True)
    assert result.returncode == 0, result.stderr
    (tmp_path / "found.npy").write_bytes(result.stdout)
    found = np.load(tmp_path / "found.npy")
    np.testing.assert_allclose(found, expected([text.split() for text in SENTENCES]), atol=1e-5)


def test_sentences_and_texts_of_any_bytes_are_exchanged(tmp_path):
    write_texts(tmp_path / "texts.jsonl", ROWS)
    assert read_texts(tmp_path / "texts.jsonl", as_sentences=True) == ROWS


@pytest.mark.second
def test_every_warm_up_request_runs_in_its_signature(served, loaded):
    found = [inputs_of(log) for log in logs(served)]
    assert {name for name, _ in found} == set(loaded.signatures)
    sizes: dict[str, set] = {}
    for name, inputs in found:
        # A server that batches requests needs equal numbers of rows of all inputs and outputs to start.
        (size,) = {len(values) for values in inputs.values()}
        sizes.setdefault(name, set()).add(size)
        # Compiling for every shape would take a minute.
        if name == "predict_ids_xla" and inputs["token_ids"].shape != (1, 16) or size == 8:
            continue
        outputs = loaded.signatures[name](**{key: tf.constant(value) for key, value in inputs.items()})
        assert {len(value) for value in outputs.values()} == {size}
    compiled = {inputs["token_ids"].shape for name, inputs in found if name == "predict_ids_xla"}
    assert compiled == {(n, t) for n in (1, 2, 4, 8, 16, 32, 64) for t in (16, 24)}
    assert sizes.pop("predict_ids_xla") and all(each == set(BATCH_SIZES) for each in sizes.values())


def test_a_stock_server_has_every_op(served):
    check(served)


def test_each_weight_is_written_once(served):
    shapes = dict(tf.train.list_variables(str(served / "variables" / "variables")))
    weights = [tuple(shape) for name, shape in shapes.items() if "OBJECT_GRAPH" not in name]
    assert sorted(weights) == sorted(tuple(variable.shape) for variable in tagger_bundle().model.variables)


def test_a_server_without_batching_is_configured_for_explanations(served, tmp_path, capsys):
    services = yaml.safe_load((served.parent / COMPOSE).read_text())["services"]
    assert set(services) == {"serving", "explaining"}
    assert not any("batching" in flag for flag in services["explaining"]["command"])
    add_missing(tmp_path, server_files("s", xla=False), tmp_path)
    from export.savedmodel.write import _add_server_files

    _add_server_files(tmp_path, tmp_path, False, "explaining")
    assert "add a server without batching, the signature explain needs it" in capsys.readouterr().err


@pytest.mark.second
def test_a_signature_is_loaded_by_name(served):
    predict = load_savedmodel(served, "predict_words")
    outputs = predict(words=[["old", "harbour"]], num_words=[2])
    np.testing.assert_allclose(outputs["probabilities"][0], expected([["old", "harbour"]])[:, :-2], atol=1e-5)


def test_commands_of_single_texts_reject_a_tagger_in_one_line(served, tmp_path):
    tagger_bundle().save(tmp_path / "run")
    message = "expected a classifier, since {} takes single texts, got a tagger"
    outcome = call(benchmark.main, tmp_path / "run")
    assert outcome.status == 2 and not outcome.out
    assert outcome.err == f"error: {tmp_path / 'run'}: {message.format('export.benchmark')}\n"
    for place in (tmp_path / "run", served):
        with pytest.raises(InputError, match=message.format("export.batch")) as error:
            with batch_model.text_model(str(place)):
                pass
        assert "\n" not in str(error.value)
