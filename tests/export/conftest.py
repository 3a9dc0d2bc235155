"""Exports that several test files look at."""

from pathlib import Path

import pytest

from tests.bundles import TEXTS, one_label_bundle, several_label_bundle

BUNDLES = {"one label": one_label_bundle, "several labels": several_label_bundle}


@pytest.fixture(scope="session")
def runs(tmp_path_factory) -> dict[str, Path]:
    """Run folders."""
    folders = {kind: tmp_path_factory.mktemp("runs") / kind for kind in BUNDLES}
    for kind, make in BUNDLES.items():
        make().save(folders[kind])
    return folders


@pytest.fixture(scope="session")
def served(runs, tmp_path_factory) -> dict[str, Path]:
    """Written versions, each with every signature."""
    from export.savedmodel.__main__ import main

    folders = {kind: tmp_path_factory.mktemp("served") / kind for kind in BUNDLES}
    for kind, folder in folders.items():
        assert main([str(runs[kind]), str(folder), "--xla"]) == 0
    return {kind: folder / "1" for kind, folder in folders.items()}


@pytest.fixture(scope="session")
def onnx_files(runs, tmp_path_factory) -> dict[str, Path]:
    """Written files, with attention."""
    from export.onnx.__main__ import main
    from tests.command_runs import call

    paths = {kind: tmp_path_factory.mktemp("onnx") / "model.onnx" for kind in BUNDLES}
    for kind, path in paths.items():
        outcome = call(main, runs[kind], path, "--attention")
        assert outcome.status == 0, outcome.err
        assert outcome.out == f"{path}\n"
    return paths


@pytest.fixture
def ids_of_texts():
    """Ids and mask, int32 [B, T], by the names of a signature's inputs."""
    import tensorflow as tf

    def features(bundle, texts=TEXTS, length=None) -> dict:
        made = bundle.preprocessor(tf.constant(texts, tf.string), length)
        return {name: made[name].numpy() for name in ("token_ids", "padding_mask")}

    return features
