"""`import kmha`: fast, without output, and models of its layers load afterwards; each in a separate process."""

import keras
import numpy as np
import pytest

from kmha.layers import MultiHeadAttention
from tests.command_runs import clean_environment, run_script
from tests.stages import with_stages

# Keras imports no TensorFlow on this backend.
NUMPY = {"KERAS_BACKEND": "numpy", "PYTHONWARNINGS": "ignore"}


@pytest.fixture(scope="module")
def saved_model(tmp_path_factory):
    """A functional model with layers of kmha, and its output for ones."""
    inputs = keras.Input((3, 8))
    model = keras.Model(inputs, MultiHeadAttention(num_heads=2)(inputs))
    path = tmp_path_factory.mktemp("model") / "own.keras"
    model.save(path)
    return path, model.predict(np.ones((1, 3, 8)), verbose=0)


def test_the_package_is_light():
    heavy = "('numpy', 'keras', 'tensorflow')"
    code = f"import sys, kmha; print(kmha.__version__, [name for name in {heavy} if name in sys.modules])"
    version, modules = run_script(code).split(maxsplit=1)
    assert version[0].isdigit() and modules == "[]\n"


@pytest.mark.parametrize(
    "imports",
    with_stages(
        [
            "import kmha; import keras",
            "import keras; import kmha",
            "from kmha.layers.attention import MultiHeadAttention; import keras",
            "import kmha; kmha.models.TextClassifier, kmha.layers.CRF; import keras",
        ],
        ["import kmha; import keras", "import keras; import kmha"],
    ),
)
def test_a_model_of_our_layers_loads_in_every_order_of_imports(imports, saved_model):
    path, expected = saved_model
    code = (
        f"{imports}\nimport sys, numpy\n"
        "model = keras.saving.load_model(sys.argv[1])\n"
        "print(model.predict(numpy.ones((1, 3, 8)), verbose=0).tolist())\n"
        "print([name for name in ('EncoderBlock', 'TextMatcher')"
        " if f'kmha>{name}' not in keras.saving.get_custom_objects()])\n"
    )
    output, missing = run_script(code, path, env=clean_environment() | NUMPY).splitlines()
    np.testing.assert_allclose(np.array(eval(output)), expected, atol=1e-5)
    assert missing == "[]"


def test_the_public_names_are_listed_and_others_refused():
    import kmha

    assert {"Bundle", "EncoderConfig", "layers", "models", "__version__"} == set(dir(kmha))
    assert all(getattr(kmha, name) for name in dir(kmha))
    with pytest.raises(AttributeError, match="module 'kmha' has no attribute 'Bundel'"):
        kmha.Bundel  # noqa: B018  # pyright: ignore


@pytest.mark.second
def test_keras_is_imported_without_messages():
    code = "import os, kmha; os.dup2(1, 2); import keras; keras.ops.ones(1)"
    assert run_script(code) == ""
