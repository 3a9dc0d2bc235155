import json
import os
import signal
import subprocess
import sys
import time
from typing import Any

import pytest

from export.benchmark.__main__ import main
from export.benchmark.measure import RUN_NAME
from export.benchmark.worker import loader
from kmha.errors import InputError
from tests.bundles import one_label_bundle
from tests.command_runs import ROOT, call, clean_environment, write_csv
from tests.export.benchmark.child_processes import children

QUICK = ["--seconds=0.1", "--rows=5", "--batch-sizes", "4"]
KINDS = ["bundle", "tflite", "onnx", "savedmodel"]


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    from export.onnx.write import write_onnx
    from export.tflite.write import write_tflite

    folder = tmp_path_factory.mktemp("benchmark")
    write_tflite(one_label_bundle(), folder / "a.tflite", [12, 16])
    write_onnx(one_label_bundle(), folder / "a.onnx")
    return folder / "a.tflite", folder / "a.onnx"


@pytest.fixture(scope="module")
def outcome(runs, served, files, tmp_path_factory):
    out = tmp_path_factory.mktemp("out") / "result.json"
    folder = served["one label"].parent
    result = call(main, runs["one label"], *files, folder, *QUICK, f"--out={out}")
    return result, out


@pytest.mark.second
def test_every_model_is_measured_in_the_order_given(outcome, files):
    result = outcome[0].json
    assert outcome[0].status == 0, outcome[0].err
    assert [model["kind"] for model in result["models"]] == KINDS
    assert [model["name"] for model in result["models"][:3]] == [RUN_NAME, *map(str, files)]
    assert (result["texts"], result["threads"], result["ids_length"]) == (5, 1, 16)
    assert result["rounds"] >= 3 and result["batch_rounds"] >= 3 and result["skipped"] == {}


@pytest.mark.second
def test_each_model_has_figures_from_texts_and_from_ids(outcome):
    for model in outcome[0].json["models"]:
        batched = model["kind"] != "tflite"
        for name in ("texts", "ids"):
            column = model[name]
            assert (
                0 < column["latency_ms"]["p50"] <= column["latency_ms"]["p95"] <= column["latency_ms"]["p99"]
            )
            assert column["first_answer_ms"] > 0 and column["calls"] >= 3
            assert list(column["throughput"]["by_batch_size"]) == (["1", "4"] if batched else ["1"])
            best = str(column["throughput"]["batch_size"])
            speeds = column["throughput"]["by_batch_size"]
            assert column["throughput"]["texts_per_second"] == speeds[best] == max(speeds.values()) > 0
            assert set(column["ratios"]) == set(column["cpu_ratios"]) == {"the run", "the first"}
        assert model["load_ms"] > 0 and model["bytes"] > 1000
        memory = model["memory"]
        assert memory["peak_mb"] > memory["imports_mb"] > 1
        assert memory["above_imports_mb"] == pytest.approx(memory["peak_mb"] - memory["imports_mb"])


@pytest.mark.second
def test_ratios_to_the_model_itself_are_one(outcome):
    run, first = outcome[0].json["models"][:2]
    for name in ("texts", "ids"):
        assert run[name]["ratios"]["the run"] == first[name]["ratios"]["the first"] == 1


@pytest.mark.second
def test_the_fastest_is_named(outcome):
    result = outcome[0].json
    for name in ("texts", "ids"):
        taken = {model["name"]: model[name]["latency_ms"]["p50"] for model in result["models"]}
        assert result["fastest"][name] == min(taken, key=lambda each: taken[each])


@pytest.mark.second
def test_tables_are_logged_and_the_result_is_written(outcome, files):
    result, out = outcome
    assert json.loads(out.read_text("utf-8")) == result.json
    for title in ("from texts, tokenizing included", "from ids, 16 tokens a text", "load and memory"):
        assert sum(line.startswith(title) for line in result.err.splitlines()) == 1
    assert result.err.count(str(files[0])) == 4


@pytest.mark.second
def test_runtimes_of_devices_do_not_load_tensorflow(outcome):
    by_kind = {model["kind"]: model["memory"]["imports_mb"] for model in outcome[0].json["models"]}
    assert by_kind["tflite"] < by_kind["bundle"] and by_kind["onnx"] < by_kind["bundle"]


@pytest.mark.second
def test_no_process_is_left(outcome):
    assert children() == []


def wrong(folder, runs, case):
    """Returns the arguments and the start of the error message."""
    run, absent = runs["one label"], folder / "none.onnx"
    other, broken = folder / "notes.txt", folder / "broken.tflite"
    other.write_text("hello")
    broken.write_text("hello")
    data = write_csv(folder / "texts.csv", [("a", "b")], ("body", "label"))
    return {
        "no file": ([run, absent], f"{absent}: expected an exported model, got no such file or folder"),
        "another file": ([run, other], f"{other}: expected a SavedModel folder, a .tflite or a .onnx file"),
        "an empty folder": (
            [run, folder / "empty"],
            f"{folder / 'empty'}: expected a SavedModel or a folder",
        ),
        "no run": ([folder, "--texts", data], f"{folder}: expected a run folder with bundle.json"),
        "no column": ([run, "--texts", data], f"{data}: expected column 'text', got columns body, label"),
        "no texts": ([run, "--texts", absent], f"{absent}: expected a name that ends in .csv"),
        "no time": ([run, "--seconds=0"], "--seconds: expected above 0, got 0.0"),
        "no threads": ([run, "--threads=0"], "--threads: expected at least 1, got 0"),
        "no batch": ([run, "--batch-sizes", "8", "0"], "--batch-sizes: expected"),
    }[case]


@pytest.mark.parametrize(
    "case",
    ["no file", "another file", "an empty folder", "no run", "no column", "no texts", "no time", "no threads",
     "no batch"],
)  # fmt: skip
def test_wrong_input_is_rejected_before_anything_is_loaded(runs, tmp_path, case):
    (tmp_path / "empty").mkdir()
    arguments, message = wrong(tmp_path, runs, case)
    outcome = call(main, *arguments)
    assert outcome.status == 2 and outcome.out == ""
    (line,) = outcome.err.splitlines()
    assert line.startswith(f"error: {message}")


@pytest.mark.parametrize("kind", ["tflite", "onnx", "savedmodel", "bundle"])
def test_unreadable_files_are_rejected_by_name(tmp_path, kind):
    path = tmp_path / "broken"
    if kind in ("savedmodel", "bundle"):
        path.mkdir()
        (path / "saved_model.pb").write_text("hello")
    else:
        path = path.with_suffix(f".{kind}")
        path.write_text("hello")
    with pytest.raises(InputError) as caught:
        loader(kind, str(path))(str(path), 1, {})
    assert str(caught.value).startswith(str(path))
    assert len(str(caught.value).splitlines()) == 1


def test_files_of_another_model_are_rejected_by_their_inputs(tmp_path):
    from onnx import TensorProto, helper, save_model

    shapes = [helper.make_tensor_value_info(name, TensorProto.FLOAT, [1]) for name in ("x", "y")]
    graph = helper.make_graph([helper.make_node("Abs", ["x"], ["y"])], "other", shapes[:1], shapes[1:])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    path = str(tmp_path / "other.onnx")
    save_model(model, path)
    with pytest.raises(InputError, match="expected a model of token_ids and padding_mask, got one of x"):
        loader("onnx", path)(path, 1, {})


def test_another_savedmodel_is_rejected_by_its_signatures(tmp_path):
    import tensorflow as tf

    module: Any = tf.Module()
    double = tf.function(lambda x: {"y": 2 * x}, input_signature=[tf.TensorSpec([None], tf.float32, "x")])
    tf.saved_model.save(module, str(tmp_path), signatures={"serving_default": double})
    with pytest.raises(
        InputError, match="expected a SavedModel with the signature predict_ids, got one without"
    ):
        loader("savedmodel", str(tmp_path))(str(tmp_path), 1, {})


@pytest.mark.second
def test_an_interrupt_ends_the_workers(runs):
    """Ctrl-C, as a terminal sends it."""
    process = subprocess.Popen(
        [sys.executable, "-m", "export.benchmark", str(runs["one label"]), "--seconds=600"],
        cwd=ROOT,
        env=clean_environment(),
        stderr=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        # The parent of the tests may ignore interrupts, and its child processes inherit that.
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
    )
    assert process.stderr is not None
    assert process.stderr.readline() == f"loading {RUN_NAME}\n"
    time.sleep(0.3)
    found = subprocess.run(
        ["ps", "-o", "pid=", "--ppid", str(process.pid)], capture_output=True, text=True
    ).stdout.split()
    process.send_signal(signal.SIGINT)
    _, errors = process.communicate(timeout=60)
    assert process.returncode == 130 and errors.splitlines()[-1] == "interrupted"
    assert found and not any(os.path.exists(f"/proc/{pid}") for pid in found)
