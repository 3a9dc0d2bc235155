"""Versions that Triton serves: the newest that can be loaded."""

import os
import runpy
import shutil
import threading
import time
import weakref

import numpy as np
import tensorflow as tf

from clients.programs import triton_server
from clients.programs.triton_server import VersionFolder


def write_version(folder, number: int) -> None:
    """A SavedModel whose prediction is its number."""

    @tf.function(input_signature=[tf.TensorSpec([None], tf.string, "text")])
    def predict(text):
        return {"probabilities": tf.fill([tf.size(text), 1], float(number))}

    tf.saved_model.save(tf.Module(), str(folder / str(number)), {"serving_default": predict})


def test_the_import_leaves_the_environment_of_other_programs_alone(monkeypatch):
    monkeypatch.delenv("TF_ENABLE_ONEDNN_OPTS", raising=False)
    runpy.run_path(triton_server.__file__)
    assert "TF_ENABLE_ONEDNN_OPTS" not in os.environ


def test_a_new_version_replaces_the_served_one_and_frees_it(tmp_path):
    write_version(tmp_path, 9)
    versions = VersionFolder(tmp_path)
    first = weakref.ref(versions.model.predict.graph)
    versions.update()
    assert versions.model.version == 9

    write_version(tmp_path, 10)
    running = versions.model
    update = threading.Thread(target=versions.update)
    update.start()
    while versions.model.version == 9 and update.is_alive():
        time.sleep(0.01)
    texts = np.array([[b"bread"], [b"salt"]], object)
    for model, number in ((running, 9), (versions.model, 10)):
        outputs = model(texts)
        assert outputs["probabilities"].tolist() == outputs["version"].tolist() == [[number], [number]]
    assert update.is_alive()
    del running, model
    update.join()
    assert first() is None


def test_a_version_that_cannot_be_loaded_is_left_out(tmp_path):
    write_version(tmp_path, 1)
    versions = VersionFolder(tmp_path)
    (tmp_path / "2").mkdir()
    versions.update()
    assert versions.model.version == 1
    shutil.copytree(tmp_path / "1", tmp_path / "3")
    versions.update()
    assert versions.model.version == 3
