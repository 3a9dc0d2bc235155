"""examples/c/serve.c: runs a SavedModel through the C library, as a server does, without Python."""

import os
import shutil
import subprocess
from pathlib import Path

import numpy as np
import pytest

from tests.bundles import EDGE_CASES, TEXTS
from tests.command_runs import ROOT, clean_environment
from tests.export.conftest import BUNDLES

SOURCE = ROOT / "examples" / "c" / "serve.c"
# A file holds a text a line.
LINES = [text for text in [*(text.encode() for text in TEXTS), *EDGE_CASES] if b"\n" not in text]


@pytest.fixture(scope="module")
def program(tmp_path_factory) -> Path:
    """The compiled program."""
    import tensorflow as tf

    home = Path(tf.sysconfig.get_lib())
    libraries = [home / f"libtensorflow_{part}.so.2" for part in ("cc", "framework")]
    compiler = shutil.which(os.environ.get("CC", "gcc")) or shutil.which("cc")
    if compiler is None:
        pytest.skip("no C compiler (gcc, cc or $CC) on this machine")
    if missing := [path for path in [*libraries, home / "include/tensorflow/c/c_api.h"] if not path.exists()]:
        pytest.skip(f"this TensorFlow package has no {missing[0].name}")
    built = tmp_path_factory.mktemp("c") / "serve"
    flags = [
        "-std=gnu11",
        "-O2",
        "-Wall",
        "-Wextra",
        "-Werror",
        f"-I{home / 'include'}",
        f"-Wl,-rpath,{home}",
    ]
    subprocess.run([compiler, SOURCE, "-o", built, *libraries, *flags], check=True)
    return built


def run(program: Path, model: Path, *words) -> subprocess.CompletedProcess:
    import tensorflow_text

    ops = Path(tensorflow_text.__path__[0]) / "python" / "ops"
    libraries = f"{ops}/_fast_bert_normalizer.so,{ops}/_fast_wordpiece_tokenizer.so"
    options = [word for word in words[:2] if words[0] == "--time"]
    command = [program, *options, model, libraries, *words[len(options) :]]
    return subprocess.run(command, capture_output=True, text=True, env=clean_environment())


def numbers(result: subprocess.CompletedProcess) -> np.ndarray:
    assert result.returncode == 0, result.stderr
    return np.array([[float(word) for word in line.split("\t")] for line in result.stdout.splitlines()])


def write_ids(path: Path, rows) -> Path:
    path.write_text("".join(" ".join(map(str, row)) + "\n" for row in rows))
    return path


@pytest.fixture
def text_file(tmp_path) -> Path:
    path = tmp_path / "texts.txt"
    path.write_bytes(b"".join(line + b"\n" for line in LINES))
    return path


def ids_of(bundle, texts) -> list[list[int]]:
    import tensorflow as tf

    return bundle.preprocessor.add_special_tokens(bundle.preprocessor.tokenize(tf.constant(texts))).to_list()


@pytest.mark.second
@pytest.mark.parametrize(
    ("kind", "signature"), [("one label", "serving_default"), ("several labels", "predict_text")]
)
def test_texts_are_predicted_as_by_the_bundle(program, served, text_file, kind, signature):
    found = numbers(run(program, served[kind], signature, text_file))
    np.testing.assert_allclose(found, BUNDLES[kind]().probabilities(LINES), atol=1e-5)


@pytest.mark.second
@pytest.mark.parametrize("signature", ["predict_ids", "predict_ids_xla"])
def test_ids_are_predicted_and_wrong_ids_rejected(program, served, tmp_path, signature):
    bundle = BUNDLES["one label"]()
    path = write_ids(tmp_path / "ids.txt", [*ids_of(bundle, TEXTS), [2, -1, 3]])
    result = run(program, served["one label"], signature, path)
    assert result.returncode == 1
    size = len(bundle.preprocessor.vocabulary)
    assert f"token_ids must be in [0, {size}), got] [-1]" in result.stderr
    result.returncode = 0
    np.testing.assert_allclose(numbers(result), bundle.probabilities(TEXTS), atol=1e-5)


@pytest.mark.second
def test_signatures_are_timed_in_turns(program, served, text_file, tmp_path):
    path = write_ids(tmp_path / "ids.txt", ids_of(BUNDLES["one label"](), TEXTS))
    words = ["predict_text", text_file, "predict_ids", path]
    result = run(program, served["one label"], "--time", "3", *words)
    assert result.returncode == 0, result.stderr
    rows = [line.split("\t") for line in result.stdout.splitlines()]
    assert [row[0] for row in rows] == ["predict_text", "predict_ids"]
    assert all(0 < float(median) <= float(slow) for _, median, slow in rows)


@pytest.mark.second
@pytest.mark.parametrize(
    ("words", "status", "message"),
    [
        (["predict_text"], 2, "usage: serve"),
        (["absent", "texts"], 2, "the SavedModel has no signature absent"),
        (["classify", "texts"], 2, "expected the input text, or token_ids and padding_mask"),
        (["predict_text", "absent.txt"], 2, "cannot read absent.txt"),
        (["--time", "no", "predict_text", "texts"], 2, "--time: expected a positive number, got no"),
    ],
)
def test_wrong_usage_is_reported(program, served, words, status, message):
    result = run(program, served["one label"], *words)
    assert (result.returncode, result.stdout) == (status, "")
    assert message in result.stderr


@pytest.mark.second
def test_other_folders_are_rejected(program, tmp_path, text_file):
    result = run(program, tmp_path, "predict_text", text_file)
    assert result.returncode == 1 and str(tmp_path) in result.stderr


def test_the_source_contains_the_compile_command():
    head = SOURCE.read_text("utf-8").split("*/")[0]
    for word in ("gcc", "libtensorflow_cc.so.2", "libtensorflow_framework.so.2", "predict_text"):
        assert word in head
