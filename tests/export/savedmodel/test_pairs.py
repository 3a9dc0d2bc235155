import json
import re
import subprocess
import sys

import numpy as np
import pytest
import tensorflow as tf
import yaml

from export.answer import main
from export.predictors.artifacts import read_texts, write_texts
from export.savedmodel import write
from export.savedmodel.predictor import load_savedmodel
from export.savedmodel.write import COMPOSE, server_files, write_savedmodel
from tests.artifact_store import stored
from tests.bundles import EDGE_CASES, PAIRS, TEXTS, make_pair_bundle, one_label_bundle, pair_bundle
from tests.command_runs import ROOT, call, clean_environment, run_script
from tests.export.savedmodel.test_command import meta_graph
from tests.export.savedmodel.test_ops import check
from tests.export.savedmodel.test_write import inputs_of, logs

ROWS = [
    *((a.encode(), b.encode()) for a, b in PAIRS),
    *((text, TEXTS[0].encode()) for text in EDGE_CASES[:12]),
    (b"", b""),
]
# As a server does: only the tokenizer's ops are loaded, nothing of this project.
SERVER = """
import json, sys
sys.modules["kmha"] = sys.modules["training"] = sys.modules["export"] = None
import tensorflow as tf, tensorflow_text
loaded = tf.saved_model.load(sys.argv[1])
answers = []
for name, inputs in json.load(sys.stdin):
    given = {key: tf.constant([bytes.fromhex(text) for text in texts]) for key, texts in inputs.items()}
    outputs = loaded.signatures[name](**given)
    answers.append({key: values.numpy().tolist() for key, values in outputs.items()})
print(json.dumps(answers))
"""


@pytest.fixture
def served(served_matcher):
    return served_matcher


@pytest.fixture(scope="module")
def served_vectors():
    def export(folder):
        write_savedmodel(make_pair_bundle(form="bi", share_weights=False), folder / "served")

    return stored("served_vectors", export)[0] / "served" / "1"


@pytest.mark.second
def test_a_new_process_gives_the_predictions_of_the_bundle(served):
    columns = [[text.hex() for text in column] for column in zip(*ROWS, strict=True)]
    requests = [
        ("serving_default", {"text_a": columns[0], "text_b": columns[1]}),
        ("rank", {"query": columns[0][:1], "candidates": columns[1]}),
    ]
    environment = {**clean_environment(), "PYTHONPATH": ""}
    printed = run_script(SERVER, served, stdin=json.dumps(requests), env=environment, cwd=served.parent)
    predictions, ranked = json.loads(printed)
    expected = pair_bundle().probabilities(ROWS)[:, 0]
    np.testing.assert_allclose(predictions["score"], expected, atol=1e-5)
    assert set(predictions) == {"score", "match"}
    expected = pair_bundle().probabilities([(ROWS[0][0], b) for _, b in ROWS])[:, 0]
    np.testing.assert_allclose(ranked["scores"], expected[ranked["order"]], atol=1e-5)
    assert sorted(ranked["order"]) == list(range(len(ROWS)))


@pytest.mark.second
def test_the_command_reads_pairs_with_a_tab_between_them(served, tmp_path):
    expected = pair_bundle().probabilities(PAIRS)
    lines = [f"{a}\t{b}".encode() for a, b in PAIRS]
    program = [sys.executable, "-m", "export.answer", str(served)]
    result = subprocess.run(program, input=b"\n".join(lines), capture_output=True)
    assert result.returncode == 0, result.stderr
    (tmp_path / "found.npy").write_bytes(result.stdout)
    np.testing.assert_allclose(np.load(tmp_path / "found.npy"), expected, atol=1e-5)


@pytest.mark.parametrize(("line", "got"), [("no tab here", "none"), ("a\tb\tc", "2 tabs")])
def test_a_line_without_one_tab_is_rejected_by_its_number(served, line, got):
    outcome = call(main, served, stdin=f"a\tb\n{line}\n".encode())
    assert outcome.status == 2 and outcome.out == ""
    assert f"stdin:2: expected text_a and text_b with one tab between them, got {got}" in outcome.err


def test_pairs_of_any_bytes_are_exchanged(tmp_path):
    write_texts(tmp_path / "texts.jsonl", ROWS)
    assert read_texts(tmp_path / "texts.jsonl") == ROWS


@pytest.mark.second
def test_every_warm_up_request_runs_in_its_signature(served, served_vectors):
    for folder in (served, served_vectors):
        loaded = tf.saved_model.load(str(folder))
        found = [inputs_of(log) for log in logs(folder)]
        assert {name for name, _ in found} == set(loaded.signatures)
        for name, inputs in found:
            # A server that batches requests needs equal numbers of rows of all inputs; otherwise it fails to start.
            (size,) = {len(values) for values in inputs.values()}
            given = {key: tf.constant(value) for key, value in inputs.items()}
            outputs = loaded.signatures[name](**given)
            assert {len(value) for value in outputs.values()} == {size}
            if "text_a" in inputs:
                pairs = set(zip(inputs["text_a"], inputs["text_b"], strict=True))
                assert pairs <= {(a.encode(), b.encode()) for a, b in PAIRS}


def test_only_a_matcher_of_classes_has_a_classify_signature(served, tmp_path):
    methods = {s.method_name for s in meta_graph(served).signature_def.values()}
    assert "tensorflow/serving/classify" not in methods
    bundle = make_pair_bundle(target="classes", labels=("yes", "no"))
    signatures = meta_graph(write_savedmodel(bundle, tmp_path / "s")).signature_def
    assert signatures["classify"].method_name == "tensorflow/serving/classify"
    assert "rank" not in signatures


def test_each_weight_is_written_once(served):
    shapes = dict(tf.train.list_variables(str(served / "variables" / "variables")))
    weights = [tuple(shape) for name, shape in shapes.items() if "OBJECT_GRAPH" not in name]
    assert sorted(weights) == sorted(tuple(variable.shape) for variable in pair_bundle().model.variables)


def test_vectors_are_equal_after_saving(served_vectors):
    vectors = load_savedmodel(served_vectors, "embed")([*TEXTS])["vectors"]
    ranked = load_savedmodel(served_vectors, "rank")(query=[TEXTS[0]], candidates=[*TEXTS])
    stored = load_savedmodel(served_vectors, "rank_vectors")(query=[TEXTS[0]], vectors=vectors.numpy())
    np.testing.assert_allclose(stored["scores"], ranked["scores"], atol=1e-5)


def test_a_server_without_batching_is_configured_for_rankings(served):
    services = yaml.safe_load((served.parent / COMPOSE).read_text())["services"]
    assert set(services) == {"serving", "ranking"}
    batching = [any("batching" in flag for flag in each["command"]) for each in services.values()]
    assert batching == [True, False]
    ports = [port.split(":")[0] for each in services.values() for port in each["ports"]]
    assert len(set(ports)) == 4
    assert set(yaml.safe_load(server_files("news", xla=True)[COMPOSE])["services"]) == {"serving"}


def test_an_existing_compose_file_gets_a_hint_for_rankings(tmp_path, capsys, monkeypatch):
    def save(bundle, folder, xla):
        folder.mkdir(exist_ok=True)
        return {"rank": None} if bundle is pair_bundle() else {}

    monkeypatch.setattr(write, "_save", save)
    write_savedmodel(one_label_bundle(), tmp_path / "s")
    write_savedmodel(pair_bundle(), tmp_path / "s")
    assert "add a server without batching, the signature rank needs it" in capsys.readouterr().err


def test_a_stock_server_has_every_op(served, served_vectors):
    check(served)
    check(served_vectors)


PAGE = (ROOT / "docs" / "how-to" / "serving.md").read_text("utf-8")
CALLS = re.findall(r"curl -d '(.*?)' http://localhost:(\d+)/v1/models/pairs:predict", PAGE)


@pytest.mark.parametrize(("body", "port"), CALLS)
def test_the_json_of_the_page_is_valid_input(served, body, port):
    request = json.loads(body)
    name = request.get("signature_name", "serving_default")
    assert port == ("8511" if name == "rank" else "8501")
    inputs = request.get("inputs") or {
        key: [row[key] for row in request["instances"]] for key in request["instances"][0]
    }
    outputs = load_savedmodel(served, name)(**inputs)
    assert all(np.isfinite(values).all() for key, values in outputs.items() if "tokens" not in key)


def test_the_page_has_all_names(served, served_vectors):
    assert len(CALLS) == 3
    for folder in (served, served_vectors):
        for name, signature in tf.saved_model.load(str(folder)).signatures.items():
            for word in (name, *signature.structured_input_signature[1], *signature.structured_outputs):
                assert f"`{word}`" in PAGE, word
