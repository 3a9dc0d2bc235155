"""Exports that several test files use."""

import contextlib
from pathlib import Path

import pytest

from export.verification import tolerances
from tests.artifact_store import stored
from tests.bundles import TEXTS, one_label_bundle, pair_bundle, several_label_bundle, tagger_bundle
from tests.command_runs import call


@contextlib.contextmanager
def unbounded():
    """Exports may differ by any amount: broken ones, and quantized random weights, whose labels are near ties."""
    with pytest.MonkeyPatch.context() as patch:
        for name, bound in {
            "LEAST_AGREEMENT": 0,
            "MOST_OFF": 1,
            "MOST_P999": 1e9,
            "LEAST_COSINE": -1,
        }.items():
            patch.setattr(tolerances, name, bound)
        for name in ("MOST_DIFFERENCE", "MOST_OF_VECTORS"):
            patch.setattr(tolerances, name, dict.fromkeys(getattr(tolerances, name), 1e9))
        yield


BUNDLES = {"one label": one_label_bundle, "several labels": several_label_bundle}


@pytest.fixture(scope="session")
def runs() -> dict[str, Path]:
    """Run folders."""

    def save(folder: Path) -> None:
        for kind, make in BUNDLES.items():
            make().save(folder / kind)

    folder, _ = stored("export_runs", save)
    return {kind: folder / kind for kind in BUNDLES}


@pytest.fixture(scope="session")
def served(runs) -> dict[str, Path]:
    """Written versions, each with every signature."""
    from export.savedmodel.__main__ import main

    def export(folder: Path) -> None:
        for kind in BUNDLES:
            outcome = call(main, runs[kind], folder / kind, "--xla")
            assert outcome.status == 0, outcome.err

    folder, _ = stored("served", export)
    return {kind: folder / kind / "1" for kind in BUNDLES}


@pytest.fixture(scope="session")
def served_matcher() -> Path:
    """A written version of `pair_bundle`."""
    from export.savedmodel.write import write_savedmodel

    def export(folder: Path) -> None:
        write_savedmodel(pair_bundle(), folder / "served")

    return stored("served_matcher", export)[0] / "served" / "1"


@pytest.fixture(scope="session")
def served_tagger() -> Path:
    """A written version of `tagger_bundle`, with the compiled signature."""
    from export.savedmodel.write import write_savedmodel

    def export(folder: Path) -> None:
        write_savedmodel(tagger_bundle(), folder / "served", xla=True)

    return stored("served_tagger", export)[0] / "served" / "1"


@pytest.fixture(scope="session")
def onnx_files(runs) -> dict[str, Path]:
    """Written files, with attention."""
    from export.onnx.__main__ import main

    def export(folder: Path) -> None:
        for kind in BUNDLES:
            path = folder / kind / "model.onnx"
            outcome = call(main, runs[kind], path, "--attention")
            assert (outcome.status, outcome.out) == (0, f"{path}\n"), outcome.err

    folder, _ = stored("onnx_files", export)
    return {kind: folder / kind / "model.onnx" for kind in BUNDLES}


@pytest.fixture(scope="session")
def tflite_files(runs) -> dict[str, Path]:
    """Written files of 24 tokens, each in a folder of its own."""
    from export.tflite.__main__ import main

    def export(folder: Path) -> None:
        for kind in BUNDLES:
            path = folder / kind / "m.tflite"
            outcome = call(main, runs[kind], path, "--length=24")
            assert (outcome.status, outcome.out) == (0, f"{path}\n"), outcome.err

    folder, _ = stored("tflite_files", export)
    return {kind: folder / kind / "m.tflite" for kind in BUNDLES}


@pytest.fixture
def ids_of_texts():
    """Ids and mask, int32 [B, T], by the names of a signature's inputs."""
    import tensorflow as tf

    def features(bundle, texts=TEXTS, length=None) -> dict:
        made = bundle.preprocessor(tf.constant(texts, tf.string), length)
        return {name: made[name].numpy() for name in ("token_ids", "padding_mask")}

    return features
