"""Fixtures of the tests of kmha: a saved bundle, and settings of the second backend."""

import shutil

import pytest


def pytest_configure(config):
    # The warning that pyproject.toml ignores for TensorFlow too: Keras reads its variables with np.array.
    config.addinivalue_line(
        "filterwarnings",
        "ignore:__array__ implementation doesn't accept a copy keyword:DeprecationWarning:keras.src.backend",
    )


@pytest.fixture(scope="module")
def written(tmp_path_factory):
    # Imported here, because the layer tests load this file on a backend without TensorFlow.
    from tests.bundles import one_label_bundle

    folder = tmp_path_factory.mktemp("written")
    one_label_bundle().save(folder)
    return folder


@pytest.fixture
def saved(written, tmp_path):
    """A bundle that the test may damage."""
    return shutil.copytree(written, tmp_path / "run")
