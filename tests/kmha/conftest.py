"""What the tests of the model code need on the second backend."""


def pytest_configure(config):
    # The same complaint that pyproject.toml names for TensorFlow: Keras reads its variables with np.array.
    config.addinivalue_line(
        "filterwarnings",
        "ignore:__array__ implementation doesn't accept a copy keyword:DeprecationWarning:keras.src.backend",
    )
