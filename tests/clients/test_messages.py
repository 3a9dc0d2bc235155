"""What is said to servers and read from them, and how they are started."""

import json
import sys

import pytest

from clients import chromium
from clients.browser import MEDIAPIPE, PAGES, answered, label_shown, picked, typed
from clients.children import ServerError, free_port, started
from clients.grpc_stubs import in_order
from clients.mediapipe_python import check_metadata
from clients.outcome import NotRunError
from clients.triton import request, rows_of
from tests.bundles import make_bundle, one_label_bundle


def test_tritons_request_holds_one_text_a_row():
    (tensor,) = request(["a", "b", "c"])["inputs"]
    assert (tensor["shape"], tensor["datatype"], tensor["data"]) == ([3, 1], "BYTES", ["a", "b", "c"])


def test_tritons_answer_is_cut_into_rows():
    other = {"name": "labels", "shape": [2], "data": ["x", "y"]}
    found = {"name": "probabilities", "shape": [2, 3], "data": [1, 2, 3, 4, 5, 6]}
    assert rows_of({"outputs": [other, found]}) == [[1, 2, 3], [4, 5, 6]]


def test_values_are_put_in_the_order_of_the_labels():
    names = [["a", "b"], ["b", "a"]]
    assert in_order(names, [[0.1, 0.9], [0.7, 0.3]], ["b", "a"]) == [[0.9, 0.1], [0.7, 0.3]]


def test_mediapipe_is_told_from_models_it_has_no_tokenizer_for():
    check_metadata(one_label_bundle())
    with pytest.raises(NotRunError, match="char"):
        check_metadata(make_bundle(tokenization="char"))


@pytest.mark.parametrize(
    ("answer", "shown"),
    [
        ({"label": "a, b"}, "a, b"),
        ({"labels": ["x", "y"]}, "x, y"),
        ({"labels": []}, "No label reaches its threshold"),
    ],
)
def test_the_page_shows_labels_so(answer, shown):
    assert label_shown(answer) == shown
    page = (PAGES.parents[1] / "examples" / "browser" / "page.js").read_text("utf-8")
    assert "labels" in answer and answer["labels"] or "label" in answer or shown in page


def test_texts_reach_the_page_whatever_they_hold():
    text = "\"'`${1}\\\n</script>\u2028"
    assert json.dumps(text) in typed(text)
    assert '"onnx"' in picked("onnx") and "LiteRT · " in json.loads(
        answered("LiteRT").split("includes(")[1][:-1]
    )


def test_a_server_is_waited_for_and_ended(tmp_path):
    flag = tmp_path / "flag"
    program = f"import pathlib, time; pathlib.Path({str(flag)!r}).touch(); time.sleep(60)"
    with started([sys.executable, "-c", program], flag.exists, 30):
        assert flag.exists()


@pytest.mark.parametrize(
    ("program", "seconds", "words"),
    [
        ("print('starting'); raise SystemExit('error: port taken')", 30, "^error: port taken$"),
        ("import time; print('warming', flush=True); time.sleep(60)", 1, "not ready in time"),
    ],
)
def test_a_server_that_does_not_come_up_is_told(program, seconds, words):
    with (
        pytest.raises(ServerError, match=words),
        started([sys.executable, "-c", program], lambda: False, seconds),
    ):
        pass


def test_ports_are_free():
    assert 1024 < free_port() < 65536


def test_a_missing_browser_is_told(monkeypatch):
    monkeypatch.setattr(chromium.shutil, "which", lambda name: None)
    with pytest.raises(NotRunError, match="apt-get install chromium"):
        chromium.find()


def test_the_page_of_the_check_names_the_packages_that_are_installed():
    page = (PAGES / "check.html").read_text("utf-8")
    assert f"./node_modules/{MEDIAPIPE.rpartition('@')[0]}/" in page
