"""Every model through the shared checks of layers."""

import numpy as np
import pytest

from kmha.models.classifier import TextClassifier
from kmha.models.encoder import TransformerEncoder
from kmha.models.masked_lm import MaskedLanguageModel
from tests.kmha.models.tiny_features import CONFIGS, SIZES, V, random_features
from tests.kmha.models.tiny_pairs import A, B, new_matcher, pair_features
from tests.layer_checks import CHECKS, LayerCase

FEATURES = random_features()
ENCODERS = {
    f"encoder, {name}": LayerCase(
        lambda config=config, **given: TransformerEncoder(config, **given),
        {"features": FEATURES},
        (3, 6, SIZES["hidden_dim"]),
        mask="padding_mask",
    )
    for name, config in CONFIGS.items()
    if name != "sinusoidal"
}
CLASSIFIERS = {
    f"classifier, {name}": LayerCase(
        lambda options=options, **given: TextClassifier(CONFIGS["from scratch"], 4, **options, **given),
        {"features": FEATURES},
        (3, 4),
        mask="padding_mask",
        output_dtype="float32",
    )
    for name, options in {
        "one label, mean": {},
        "several labels, max": {"multi_label": True, "pooling": "max"},
        "windows": {"window": 5, "window_overlap": 1, "window_pooling": "attention"},
    }.items()
}
PAIRS = {
    f"matcher, {name}": LayerCase(
        lambda name=name, **given: new_matcher(name, **given),
        {"features": pair_features(new_matcher(name), [A[0], A[1], []], [B[0], B[1], []])},
        (3, 1),
        mask="padding_mask_a",
        output_dtype="float32",
        hides=("token_ids_a",),
    )
    for name in ("cross", "bi", "joint")
}
MASKED = {
    "masked language model": LayerCase(
        lambda **given: MaskedLanguageModel(CONFIGS["from scratch"], **given),
        {"features": FEATURES | {"mask_positions": np.array([[1, 5], [0, 0], [0, 0]], np.int32)}},
        (3, 2, V),
        mask="padding_mask",
        output_dtype="float32",
        hides=("token_ids", "segment_ids"),
    )
}
CASES = ENCODERS | CLASSIFIERS | PAIRS | MASKED


@pytest.mark.parametrize("check", CHECKS, ids=lambda check: check.__name__)
@pytest.mark.parametrize("name", CASES)
def test_all_models_meet_the_common_requirements(name, check, tmp_path):
    check(CASES[name], tmp_path)
