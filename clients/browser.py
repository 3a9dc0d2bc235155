"""Clients in headless Chromium: LiteRT, MediaPipe Tasks and ONNX Runtime, and the demo page."""

import json
import shutil
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from clients import chromium
from clients.comparison import ClientResult, ClientUnavailableError, ExportedRun, compare, failure, not_run
from clients.processes import install_npm_packages
from clients.python_clients import MIN_AGREEMENT, check_metadata, exact_rows

PAGES = Path(__file__).resolve().parent / "pages"
MEDIAPIPE = "@mediapipe/tasks-text@1.0.1"
RUNTIMES = {"litert": "LiteRT", "onnx": "ONNX Runtime"}
# Other host names resolve to nothing, so that the clients prove to work offline.
OFFLINE = ("--host-resolver-rules=MAP * ~NOTFOUND, EXCLUDE 127.0.0.1",)
DEMO_TEXTS = 20
# The demo's models truncate at the default export length, so a few predictions may use less text than the run.
DEMO_MIN_AGREEMENT = 0.95
_SET_VALUE = """(() => {{
  const element = document.getElementById({id});
  document.getElementById('status').textContent = '';
  element.value = {value};
  element.dispatchEvent(new Event({event}, {{ bubbles: true }}));
}})()"""
_READ_PAGE = """(() => ({
  label: document.getElementById('label').textContent,
  bars: document.querySelectorAll('#bars li').length,
  words: [...document.querySelectorAll('#words button')].map((b) => b.textContent),
}))()"""


def type_text_script(text: str) -> str:
    """JavaScript that types a text into the demo page."""
    return _SET_VALUE.format(id="'text'", value=json.dumps(text, allow_nan=False), event="'input'")


def select_runtime_script(runtime: str) -> str:
    """JavaScript that selects a runtime on the demo page."""
    return _SET_VALUE.format(id="'runtime'", value=json.dumps(runtime, allow_nan=False), event="'change'")


def has_prediction_script(runtime_name: str = "") -> str:
    """JavaScript condition: the demo page shows a prediction, of this runtime if one is named."""
    # The status line of a prediction is "LiteRT · 3.1 ms · …".
    shown = json.dumps(f"{runtime_name} · ", allow_nan=False)
    return f"document.getElementById('status')?.textContent.includes({shown})"


def browser_results(exported: ExportedRun) -> Iterator[ClientResult]:
    """Runs each client in the browser."""
    packages = json.loads((exported.site / "package.json").read_text("utf-8"))["dependencies"]
    names = {
        "litert": f"Chromium, @litertjs/core {packages['@litertjs/core']}",
        "onnx": f"Chromium, onnxruntime-web {packages['onnxruntime-web']}",
        "mediapipe": f"Chromium, {MEDIAPIPE.replace('text@', 'text ')}",
    }
    try:
        pinned = [f"{name}@{version}" for name, version in packages.items()]
        install_npm_packages(exported.site, [*pinned, MEDIAPIPE])
        chromium.find_chromium()
    except ClientUnavailableError as error:
        yield from (not_run(name, str(error)) for name in [*names.values(), "Chromium, the demo page"])
        return
    for page in PAGES.iterdir():
        shutil.copyfile(page, exported.site / page.name)
    with chromium.serve_folder(exported.site) as address:
        for function, name in names.items():
            yield _runtime_result(exported, address, function, name)
        for runtime in RUNTIMES:
            yield _demo_result(exported, address, runtime)


def _runtime_result(exported: ExportedRun, address: str, function: str, name: str) -> ClientResult:
    """Calls a function of check.js on all texts."""
    from_text = function == "mediapipe"
    inputs = "raw text" if from_text else "ids of tokenizer.js"
    try:
        if from_text:
            check_metadata(exported.bundle)
        with chromium.open_browser(OFFLINE) as tab:
            tab.open(f"{address}check.html")
            given = exported.texts, exported.bundle.labels
            arguments = ", ".join(json.dumps(each, allow_nan=False) for each in given)
            response = tab.evaluate(f"import('{address}check.js').then((m) => m.{function}({arguments}))")
    except ClientUnavailableError as error:
        return not_run(name, str(error))
    except chromium.BrowserError as error:
        return failure(name, inputs, len(exported.texts), error)
    found = np.array(response["probabilities"], np.float32)
    share, exact = (MIN_AGREEMENT, exact_rows(exported.texts)) if from_text else (1.0, None)
    thresholds, seconds = exported.bundle.thresholds, response["seconds"]
    return compare(name, inputs, exported.expected, found, thresholds, share, exact, seconds)


def _demo_result(exported: ExportedRun, address: str, runtime: str) -> ClientResult:
    """Types texts into the demo page and reads the shown labels."""
    name, inputs = f"Chromium, the demo page with {RUNTIMES[runtime]}", "typed text"
    texts = exported.texts[:DEMO_TEXTS]
    agreeing = 0
    try:
        with chromium.open_browser(OFFLINE) as tab:
            tab.open(address)
            tab.wait_for(has_prediction_script())
            tab.evaluate(select_runtime_script(runtime))
            tab.wait_for(has_prediction_script(RUNTIMES[runtime]))
            for text, probabilities in zip(texts, exported.expected, strict=False):
                tab.evaluate(type_text_script(text))
                tab.wait_for(has_prediction_script(RUNTIMES[runtime]))
                page = tab.evaluate(_READ_PAGE)
                if page["bars"] != len(exported.bundle.labels) or len(page["words"]) < 2:
                    return ClientResult(name, inputs, len(texts), problem=f"shows {page} for {text!r}")
                agreeing += page["label"] == displayed_label(exported.bundle.prediction_from(probabilities))
            problem = "; ".join(tab.problems)
    except chromium.BrowserError as error:
        return failure(name, inputs, len(texts), error)
    if agreeing < DEMO_MIN_AGREEMENT * len(texts):
        problem = f"the displayed labels differ from those of the run; {problem}".rstrip("; ")
    return ClientResult(name, inputs, len(texts), agreeing, problem=problem)


def displayed_label(prediction: dict) -> str:
    """The label text that the demo page shows for a prediction of the run."""
    if "label" in prediction:
        return prediction["label"]
    return ", ".join(prediction["labels"]) or "No label reaches its threshold"
