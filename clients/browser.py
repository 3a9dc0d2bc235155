"""Clients in headless Chromium: LiteRT, MediaPipe Tasks and ONNX Runtime, and the demo page itself."""

import json
import shutil
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from clients import chromium, site
from clients.environments import npm_packages
from clients.material import ReportData
from clients.mediapipe_python import LEAST_AGREEMENT, check_metadata, exact_rows
from clients.outcome import NotRunError, Outcome, compared, not_run

PAGES = Path(__file__).resolve().parent / "pages"
MEDIAPIPE = "@mediapipe/tasks-text@1.0.1"
# Names of other machines resolve to nothing: what runs here would also run offline.
OFFLINE = ("--host-resolver-rules=MAP * ~NOTFOUND, EXCLUDE 127.0.0.1",)
DEMO_TEXTS = 20
# The demo's models are cut at the usual length of a text, so few of its answers may be of less text than the run read.
DEMO_AGREEMENT = 0.95
_SET = """(() => {{
  const element = document.getElementById({id});
  document.getElementById('status').textContent = '';
  element.value = {value};
  element.dispatchEvent(new Event({event}, {{ bubbles: true }}));
}})()"""
_READ = """(() => ({
  label: document.getElementById('label').textContent,
  bars: document.querySelectorAll('#bars li').length,
  words: [...document.querySelectorAll('#words button')].map((b) => b.textContent),
}))()"""


def typed(text: str) -> str:
    """JavaScript that types a text into the demo page."""
    return _SET.format(id="'text'", value=json.dumps(text), event="'input'")


def picked(runtime: str) -> str:
    """JavaScript that picks a runtime on the demo page."""
    return _SET.format(id="'runtime'", value=json.dumps(runtime), event="'change'")


def answered(runtime_name: str = "") -> str:
    """JavaScript that is true once the demo page has answered, with this runtime if one is named."""
    # The page says "LiteRT · 3.1 ms · …".
    return f"document.getElementById('status')?.textContent.includes({json.dumps(f'{runtime_name} · ')})"


def versions(site_folder: Path) -> dict[str, str]:
    """The version of each runtime that the browser is served, by package."""
    packages = json.loads((site_folder / "package.json").read_text("utf-8"))["dependencies"]
    name, _, version = MEDIAPIPE.rpartition("@")
    return {**packages, name: version}


def outcomes(material: ReportData) -> Iterator[Outcome]:
    """The outcome of each client in the browser."""
    package = versions(material.site)
    names = {
        "litert": f"Chromium, @litertjs/core {package['@litertjs/core']}",
        "onnx": f"Chromium, onnxruntime-web {package['onnxruntime-web']}",
        "mediapipe": f"Chromium, {MEDIAPIPE.replace('text@', 'text ')}",
    }
    try:
        npm_packages(material.site, [*(f"{name}@{version}" for name, version in package.items())])
        chromium.find()
    except NotRunError as error:
        yield from (not_run(name, str(error)) for name in [*names.values(), "Chromium, the demo page"])
        return
    for page in PAGES.iterdir():
        shutil.copyfile(page, material.site / page.name)
    with site.served(material.site) as address:
        for function, name in names.items():
            yield _answered(material, address, function, name)
        for runtime in ("litert", "onnx"):
            yield _demo(material, address, runtime)


def _answered(material: ReportData, address: str, function: str, name: str) -> Outcome:
    from_text = function == "mediapipe"
    given = "raw text" if from_text else "ids of tokenizer.js"
    try:
        if from_text:
            check_metadata(material.bundle)
        with chromium.opened(OFFLINE) as tab:
            tab.open(f"{address}check.html")
            tab.wait_for("document.readyState === 'complete'")
            arguments = f"{json.dumps(material.texts)}, {json.dumps(material.bundle.labels)}"
            answer = tab.evaluate(f"import('{address}check.js').then((m) => m.{function}({arguments}))")
    except NotRunError as error:
        return not_run(name, str(error))
    except chromium.BrowserError as error:
        return Outcome(name, given, len(material.texts), problem=f"failed: {' '.join(str(error).split())}")
    found = np.array(answer["probabilities"], np.float32)
    share, exact = (LEAST_AGREEMENT, exact_rows(material.texts)) if from_text else (1.0, None)
    thresholds, seconds = material.bundle.thresholds, answer["seconds"]
    return compared(name, given, material.expected, found, thresholds, share, exact, seconds)


def _demo(material: ReportData, address: str, runtime: str) -> Outcome:
    """Types texts into the demo page and reads what it shows."""
    shown_name = {"litert": "LiteRT", "onnx": "ONNX Runtime"}[runtime]
    name, given = f"Chromium, the demo page with {shown_name}", "typed text"
    texts = material.texts[:DEMO_TEXTS]
    answers = [material.bundle.answer(row) for row in material.expected[: len(texts)]]
    agreeing = 0
    try:
        with chromium.opened(OFFLINE) as tab:
            tab.open(address)
            tab.wait_for(answered())
            tab.evaluate(picked(runtime))
            tab.wait_for(answered(shown_name))
            for text, answer in zip(texts, answers, strict=True):
                tab.evaluate(typed(text))
                tab.wait_for(answered(shown_name))
                page = tab.evaluate(_READ)
                if page["bars"] != len(material.bundle.labels) or len(page["words"]) < 2:
                    return Outcome(name, given, len(texts), problem=f"shows {page} for {text!r}")
                agreeing += page["label"] == label_shown(answer)
            problems = "; ".join(tab.problems)
    except chromium.BrowserError as error:
        return Outcome(name, given, len(texts), problem=f"failed: {' '.join(str(error).split())}")
    if agreeing < DEMO_AGREEMENT * len(texts):
        problems = f"shows another label than the run's; {problems}".rstrip("; ")
    return Outcome(name, given, len(texts), agreeing, problem=problems)


def label_shown(answer: dict) -> str:
    """What the demo page shows as the label of an answer of the run."""
    if "label" in answer:
        return answer["label"]
    return ", ".join(answer["labels"]) or "No label reaches its threshold"
