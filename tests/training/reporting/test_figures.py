"""Pictures are valid SVG for any labels, in two color schemes, with descriptions."""

import re
import sys
import xml.etree.ElementTree as xml

import numpy as np
import pytest

from kmha.errors import InputError
from training.metrics.classification import reliability_bins
from training.reporting import figures, matplotlib_style

pytest.importorskip("matplotlib")
LABELS = ["$\\frac{1}{0", "<b>&\x07", "体育新闻", "a" * 90, "", "‮abc"]
HISTORY = [
    {"epoch": epoch, "loss": 2.0 - epoch, "val_loss": 1.5, "val_accuracy": 0.5 + epoch / 10}
    for epoch in range(2)
]


def texts(svg: str) -> list[str]:
    return [each.text or "" for each in xml.fromstring(svg).iter() if each.tag.endswith("}text")]


def all_pictures():
    rng = np.random.default_rng(0)
    some = rng.random(300)
    yield from figures.learning_curves(HISTORY, "accuracy", 1)
    yield figures.confusion(rng.integers(0, 50, (6, 6)), LABELS, "label", "prediction")
    yield figures.confusion(
        rng.integers(0, 9, (40, 40)), [f"label {n}" for n in range(40)], "label", "prediction"
    )
    yield figures.reliability_diagram([reliability_bins(name, some, some > 0.4, 0.1) for name in "ab"])
    yield figures.length_histogram({"train": rng.integers(3, 90, 99), "test": np.array([5])}, 90, "a text")
    yield figures.score_histogram(some[:100], some[100:], 0.4)
    yield figures.scatter(some, some[::-1])


@pytest.mark.parametrize(("best", "saved"), [(0, "epoch 1"), (-1, "before training")])
def test_the_epoch_of_the_saved_weights_is_described(best, saved):
    for each in figures.learning_curves(HISTORY[:1], "accuracy", best):
        assert each.alt.endswith(f"; saved weights: {saved}")


@pytest.fixture(scope="module")
def drawn():
    return list(all_pictures())


def test_every_picture_is_svg_with_a_description(drawn):
    for each in drawn:
        root = xml.fromstring(each.light)
        assert root.tag == "{http://www.w3.org/2000/svg}svg"
        xml.fromstring(each.dark)
        # The announced aspect ratio, and no external references.
        width, height = (float(root.attrib[name].removesuffix("pt")) for name in ("width", "height"))
        assert width / height == pytest.approx(each.width / each.height, rel=0.02)
        assert not re.findall(r'href="(?!#|data:)', each.light)
        assert len(each.alt) > 20


def test_schemes_differ_in_colors_only(drawn):
    for each in drawn:
        assert each.light != each.dark
        assert re.sub(r"#[0-9a-f]{6}", "", each.light) == re.sub(r"#[0-9a-f]{6}", "", each.dark)
        assert matplotlib_style.INK not in each.dark and matplotlib_style.QUIET not in each.dark


def test_confusion_matrices_have_names_and_numbers():
    matrix = np.zeros((6, 6), int)
    matrix[0, 0], matrix[1, 2], matrix[3, 3] = 1234, 7, 3
    shown = texts(figures.confusion(matrix, LABELS, "label", "prediction").light)
    assert {"1,234", "7", "体育新闻", "(blank)", "<b>&"} <= set(shown)
    assert "$\\frac{1}{0" in shown and "0" not in shown
    assert all(len(name) <= 22 for name in shown)


def test_curves_of_parts_name_the_part():
    alt = figures.learning_curves(HISTORY, "accuracy", 1, "part")[1].alt
    assert f"of {len(HISTORY)} parts" in alt and alt.endswith("saved weights: part 2")


def test_small_changes_look_small():
    """The axis of the loss starts at 0, that of a score spans at least a fifth."""
    history = [{"epoch": n, "loss": 2.0, "val_loss": 1.9, "val_accuracy": 0.98 + n / 1000} for n in range(2)]
    loss, score = figures.learning_curves(history, "accuracy", None)
    ticks = [float(each) for each in texts(loss.light) if re.fullmatch(r"[0-9.]+", each)]
    assert min(ticks) == 0
    ticks = [float(each) for each in texts(score.light) if re.fullmatch(r"[01]\.\d+", each)]
    assert max(ticks) - min(ticks) >= 0.15


def test_pictures_are_reproducible():
    one, other = (figures.learning_curves(HISTORY, "accuracy", None)[0].light for _ in range(2))
    assert one == other
    assert "saved" not in texts(one)


def test_wide_letters_are_wider():
    assert matplotlib_style.name_width("体育新闻") > 1.5 * matplotlib_style.name_width("abcd")


def test_figure_replaces_an_existing_file(tmp_path):
    rng = np.random.default_rng(0)
    confidence = rng.random(50)
    models = [
        reliability_bins("a", confidence, confidence > 0.5, 0.25),
        reliability_bins("b", confidence[:0], confidence[:0] > 0, None),
    ]
    for suffix, start in ((".png", b"\x89PNG"), (".svg", b"<?xml"), (".pdf", b"%PDF")):
        path = tmp_path / f"diagram{suffix}"
        path.write_bytes(b"old")
        figures.write_reliability_diagram(path, models)
        assert path.read_bytes().startswith(start)
    assert len(list(tmp_path.iterdir())) == 3


def test_figure_that_cannot_be_written_is_refused(tmp_path, monkeypatch):
    with pytest.raises(InputError, match=r"--out .*a\.gif: expected a file ending in \.png, \.svg, \.pdf"):
        matplotlib_style.check_figure_path(tmp_path / "a.gif")
    with pytest.raises(InputError, match="expected a folder that exists"):
        matplotlib_style.check_figure_path(tmp_path / "none" / "a.png")
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    with pytest.raises(InputError, match=r"expected matplotlib .*kmha\[report\]"):
        matplotlib_style.check_figure_path(tmp_path / "a.png")
