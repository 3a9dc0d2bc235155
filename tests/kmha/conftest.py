"""What the tests of the model code share: a saved bundle, and what the second backend needs."""

import shutil

import pytest


def pytest_configure(config):
    # The same complaint that pyproject.toml names for TensorFlow: Keras reads its variables with np.array.
    config.addinivalue_line(
        "filterwarnings",
        "ignore:__array__ implementation doesn't accept a copy keyword:DeprecationWarning:keras.src.backend",
    )


@pytest.fixture(scope="module")
def written(tmp_path_factory):
    # Here, because the layer tests read this file on a backend without TensorFlow.
    from tests.bundles import one_label_bundle

    folder = tmp_path_factory.mktemp("written")
    one_label_bundle().save(folder)
    return folder


@pytest.fixture
def saved(written, tmp_path):
    """A bundle that the test may damage."""
    return shutil.copytree(written, tmp_path / "run")
