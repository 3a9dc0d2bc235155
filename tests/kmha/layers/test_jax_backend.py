"""The layer tests again, on Keras' JAX backend."""

import os
import subprocess
import sys
from pathlib import Path

import keras
import pytest

HERE = Path(__file__).parent


@pytest.mark.second
@pytest.mark.skipif(keras.backend.backend() == "jax", reason="this is the inner run")
def test_layers_meet_the_requirements_on_jax():
    # Nearly all of the time is compilation of code that runs once: these options disable optimizations.
    environment = os.environ | {
        "KERAS_BACKEND": "jax",
        "JAX_PLATFORMS": "cpu",
        "JAX_DISABLE_MOST_OPTIMIZATIONS": "1",
        "XLA_FLAGS": "--xla_cpu_use_fusion_emitters=false --xla_cpu_parallel_codegen_split_count=1",
    }
    stages = "not slow and not gpu and not soak"  # both stages
    options = ["-q", "-x", "-rs", "--tb=short", "-p", "no:cacheprovider", "-m", stages]
    command = [sys.executable, "-m", "pytest", *options, str(HERE)]
    done = subprocess.run(
        command,
        env=environment,
        cwd=HERE.parents[2],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=600,
    )
    assert done.returncode == 0, done.stdout[-4000:]
    assert "this is the inner run" in done.stdout, done.stdout[-4000:]
