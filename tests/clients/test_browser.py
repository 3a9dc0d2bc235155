"""Scripts that the browser client runs in its pages."""

import json

import pytest

from clients.browser import (
    MEDIAPIPE,
    PAGES,
    displayed_label,
    has_prediction_script,
    select_runtime_script,
    type_text_script,
)


@pytest.mark.parametrize(
    ("prediction", "shown"),
    [
        ({"label": "a, b"}, "a, b"),
        ({"labels": ["x", "y"]}, "x, y"),
        ({"labels": []}, "No label reaches its threshold"),
    ],
)
def test_displayed_labels_are_those_of_the_demo_page(prediction, shown):
    assert displayed_label(prediction) == shown
    page = (PAGES.parents[1] / "examples" / "browser" / "page.js").read_text("utf-8")
    assert prediction.get("label") or prediction.get("labels") or shown in page


def test_scripts_quote_any_text():
    text = "\"'`${1}\\\n</script>\u2028"
    assert json.dumps(text) in type_text_script(text)
    assert '"onnx"' in select_runtime_script("onnx")
    quoted = has_prediction_script("LiteRT").split("includes(")[1][:-1]
    assert "LiteRT · " in json.loads(quoted)


def test_the_check_page_imports_the_installed_packages():
    page = (PAGES / "check.html").read_text("utf-8")
    assert f"./node_modules/{MEDIAPIPE.rpartition('@')[0]}/" in page
