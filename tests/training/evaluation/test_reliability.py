import sys

import numpy as np
import pytest

from kmha.errors import InputError
from training.evaluation.reliability import reliability_bins
from training.metrics.classification import calibration_error
from training.reporting.figures import write_reliability_diagram
from training.reporting.matplotlib_style import check_figure_path


def test_bins_are_counted_as_by_hand():
    confidence = np.array([0.05, 0.06, 1 / 15, 0.5, 0.99, 1.0])
    correct = np.array([True, False, False, True, True, False])
    found = reliability_bins("a", confidence, correct, None)
    # Open below, closed above: 1 / 15 belongs to the first.
    assert found.rows.tolist() == [3, 0, 0, 0, 0, 0, 0, 1, 0, 0, 0, 0, 0, 0, 2]
    np.testing.assert_allclose(found.accuracy[[0, 7, 14]], [1 / 3, 1.0, 0.5])
    np.testing.assert_allclose(found.confidence[[0, 7, 14]], [(0.11 + 1 / 15) / 3, 0.5, 0.995])
    assert np.isnan(found.accuracy[1]) and np.isnan(found.confidence[1])


def test_the_calibration_error_is_that_of_the_bins():
    rng = np.random.default_rng(0)
    confidence, correct = rng.random(500), rng.random(500) < 0.7
    found = reliability_bins("a", confidence, correct, None)
    filled = found.rows > 0
    gaps = np.abs(found.confidence - found.accuracy)[filled] * found.rows[filled] / 500
    # By hand, row by row.
    total = 0.0
    for low in range(15):
        inside = (confidence > low / 15) & (confidence <= (low + 1) / 15)
        total += abs(confidence[inside].sum() - correct[inside].sum()) / 500
    assert gaps.sum() == pytest.approx(total) == pytest.approx(calibration_error(confidence, correct))


def test_figure_replaces_an_existing_file(tmp_path):
    pytest.importorskip("matplotlib")
    rng = np.random.default_rng(0)
    confidence = rng.random(50)
    models = [
        reliability_bins("a", confidence, confidence > 0.5, 0.25),
        reliability_bins("b", confidence[:0], confidence[:0] > 0, None),
    ]
    for suffix, start in ((".png", b"\x89PNG"), (".svg", b"<?xml"), (".pdf", b"%PDF")):
        path = tmp_path / f"diagram{suffix}"
        path.write_bytes(b"old")
        write_reliability_diagram(path, models)
        assert path.read_bytes().startswith(start)
    assert len(list(tmp_path.iterdir())) == 3


def test_figure_that_cannot_be_written_is_refused(tmp_path, monkeypatch):
    with pytest.raises(InputError, match=r"--out .*a\.gif: expected a file ending in \.png, \.svg, \.pdf"):
        check_figure_path(tmp_path / "a.gif")
    with pytest.raises(InputError, match="expected a folder that exists"):
        check_figure_path(tmp_path / "none" / "a.png")
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    with pytest.raises(InputError, match=r"expected matplotlib .*kmha\[report\]"):
        check_figure_path(tmp_path / "a.png")
