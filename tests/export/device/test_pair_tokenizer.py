"""The devices' tokenizers of pairs, in Python and JavaScript, against the one in the graph."""

import json
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import export.device.tokenizer
from export.device.files import device_files, tokenizer_json, tokenizer_values
from export.device.tokenizer import PairTokenizer, Tokenizer
from export.graph import features_of
from tests.bundles import make_pair_bundle, one_label_bundle, pair_bundle
from tests.export.device.test_tokenizer import NODE
from tests.export.pair_bundles import ROWS, bundle_of

KINDS = ["cross", "two ways", "joint"]
every_kind = pytest.mark.parametrize("kind", KINDS)
SCRIPT = """
import { readFileSync } from "node:fs";
import { pathToFileURL } from "node:url";
const { module, files, rows, outputs } = JSON.parse(readFileSync(0, "utf8"));
const { PairTokenizer, Tokenizer } = await import(pathToFileURL(module));
const bytes = (text) => new Uint8Array(Buffer.from(text, "hex"));
const plain = (inputs) => Object.fromEntries(Object.entries(inputs).map(([name, ids]) => [name, [...ids]]));
const answers = files.map((file) => {
  const values = JSON.parse(readFileSync(file, "utf8"));
  const tokenizer = new PairTokenizer(values);
  let refused = "";
  try { new Tokenizer(values); } catch (error) { refused = error.message; }
  return {
    whole: rows.map(([a, b]) => plain(tokenizer.inputs(bytes(a), bytes(b)))),
    padded: plain(tokenizer.inputs("old bread, new bread and more", "渡轮", 8)),
    answers: outputs.map((each) => tokenizer.answer(each)),
    refused,
  };
});
console.log(JSON.stringify(answers));
"""
OUTPUTS = [[0.5, 0.1, 0.2], [0.4999, 0.6, 0.7], [-3.5, -4, -5]]


def tokenizer(kind) -> PairTokenizer:
    return PairTokenizer(json.loads(json.dumps(tokenizer_values(bundle_of(kind)))))


def as_bytes(rows):
    return [[text if isinstance(text, bytes) else text.encode() for text in row] for row in rows]


@every_kind
@pytest.mark.parametrize("length", [None, 8, 24, 99])
def test_inputs_are_those_of_the_graph(kind, length):
    bundle, device = bundle_of(kind), tokenizer(kind)
    expected = features_of(bundle, ROWS, length)
    for row, (a, b) in enumerate(ROWS):
        found = device.inputs(a, b, length)
        assert list(found) == list(expected)
        for name, values in expected.items():
            assert found[name] == values[row, : len(found[name])].tolist()
            assert not values[row, len(found[name]) :].any() and (
                length is None or len(found[name]) == values.shape[1]
            )


@pytest.mark.parametrize(("threshold", "outputs"), [(0.7, [0.7, 0.69999]), (0.1, [0.1, 0.0999])])
def test_a_match_is_that_of_the_bundle(threshold, outputs):
    bundle = make_pair_bundle()
    bundle.thresholds = [threshold]
    device = PairTokenizer(tokenizer_values(bundle))
    for output in np.array(outputs, np.float32):
        assert device.answer([output]) == bundle.prediction_from(np.array([output]))
    assert [device.answer([np.float32(each)])["match"] for each in outputs] == [True, False]


def test_scores_and_classes_are_predicted():
    assert tokenizer("two ways").answer([2.5]) == {"score": 2.5}
    assert tokenizer("joint").answer([0.2, 0.5, 0.3]) == {"label": "perhaps"}


def test_the_files_of_several_tokenizers():
    bundle = bundle_of("two ways")
    files = device_files(bundle)
    assert list(files) == [".tokenizer.json", ".labels.txt", ".vocab.txt", ".vocab.char.txt"]
    tokens = bundle.preprocessor.parts[1].vocabulary.tokens
    assert files[".vocab.char.txt"].decode().split("\n")[:-1] == list(tokens)
    values = json.loads(files[".tokenizer.json"])
    assert {name: values[name] for name in ("format", "task", "target", "labels", "threshold")} == {
        "format": 1,
        "task": "match",
        "target": "graded",
        "labels": ["score"],
        "threshold": None,
    }
    assert list(values["granularities"]) == ["wordpiece", "char"]


def test_a_file_of_another_kind_or_format_is_rejected():
    single, pairs = tokenizer_values(one_label_bundle()), tokenizer_values(pair_bundle())
    with pytest.raises(ValueError, match="expected one of a model to match, got one to classify"):
        PairTokenizer(single)
    with pytest.raises(ValueError, match="expected one of a model to classify, got one to match"):
        Tokenizer(pairs)
    with pytest.raises(ValueError, match="format 1 or older, got 2"):
        PairTokenizer({**pairs, "format": 2})


def test_the_tokenizer_runs_without_other_packages(tmp_path):
    """Copied to a device that has nothing but Python: no site-packages, none of this project."""
    (tmp_path / "t.json").write_bytes(tokenizer_json(pair_bundle()))
    shutil.copy(export.device.tokenizer.__file__, tmp_path / "tokenizer.py")
    read = "tokenizer.PairTokenizer.read('t.json')"
    program = f"import json, tokenizer; print(json.dumps({read}.inputs('old', 'bread', 8)))"
    result = subprocess.run(
        [sys.executable, "-S", "-c", program], cwd=tmp_path, capture_output=True, text=True, env={}
    )
    assert result.returncode == 0, result.stderr
    assert json.loads(result.stdout) == tokenizer("cross").inputs("old", "bread", 8)


@pytest.mark.skipif(NODE is None, reason="node is not installed")
def test_javascript_gives_the_same_ids_and_predictions(tmp_path):
    for kind in KINDS:
        (tmp_path / f"{kind}.json").write_bytes(tokenizer_json(bundle_of(kind)))
    rows = [row for row in as_bytes(ROWS) if max(map(len, row)) <= 100_000]
    given = {
        "module": str(Path(export.device.tokenizer.__file__).with_suffix(".js")),
        "files": [str(tmp_path / f"{kind}.json") for kind in KINDS],
        "rows": [[text.hex() for text in row] for row in rows],
        "outputs": OUTPUTS,
    }
    result = subprocess.run(
        [str(NODE), "--input-type=module", "-e", SCRIPT],
        input=json.dumps(given),
        capture_output=True,
        text=True,
    )
    assert result.returncode == 0, result.stderr
    for kind, found in zip(KINDS, json.loads(result.stdout), strict=True):
        device = tokenizer(kind)
        assert found["whole"] == [device.inputs(*row) for row in rows]
        assert found["padded"] == device.inputs("old bread, new bread and more", "渡轮", 8)
        assert found["answers"] == [device.answer(each) for each in OUTPUTS]
        assert found["refused"] == "tokenizer.json: expected one of a model to classify, got one to match"
