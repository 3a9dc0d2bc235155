"""The matcher: shapes, predictions, files, scores from stored encodings, and rejected arguments."""

import dataclasses

import keras
import numpy as np
import pytest
import scipy.special
from keras import ops

from kmha.errors import InputError
from kmha.features import SIDES
from kmha.models.matcher import TextMatcher
from tests.kmha.models.tiny_features import V
from tests.kmha.models.tiny_pairs import (
    BI,
    FIRST,
    JOINT,
    LENGTH,
    MATCHERS,
    ONE,
    TWO,
    WORDPIECE,
    A,
    B,
    in_graph,
    matcher,
    new_matcher,
    pair_features,
    side_features,
    text,
)
from tests.layer_checks import fill_weights, to_numpy
from tests.stages import with_stages
from training.tasks.match.initialization import COSINE_SCALE, head_bases, set_linear_head

every_matcher = pytest.mark.parametrize("name", with_stages(MATCHERS, FIRST))
every_bi = pytest.mark.parametrize("name", BI)
apart = pytest.mark.parametrize("name", with_stages([name for name in MATCHERS if name not in JOINT], FIRST))


@every_matcher
def test_eager_and_graph_give_the_same_logits(name):
    model = matcher(name)
    features = pair_features(model, A, B)
    expected = to_numpy(model(features))
    assert expected.shape == (len(A), MATCHERS[name].get("num_labels", 1)) and expected.dtype == np.float32
    assert np.isfinite(expected).all() and np.ptp(expected, axis=0).max() > 1e-2
    np.testing.assert_allclose(to_numpy(in_graph(name)(features)), expected, atol=1e-5)


@every_matcher
def test_a_saved_model_is_equal_after_loading_in_safe_mode(name, tmp_path):
    model = matcher(name)
    model.save(tmp_path / "model.keras")
    again = keras.saving.load_model(tmp_path / "model.keras", compile=False, safe_mode=True)
    assert isinstance(again, TextMatcher)
    assert again.get_config() == model.get_config()
    assert again.encoder_configs == model.encoder_configs and again.input_names == model.input_names
    assert [v.path for v in again.trainable_variables] == [v.path for v in model.trainable_variables]
    features = pair_features(model, A, B)
    np.testing.assert_array_equal(to_numpy(again(features)), to_numpy(model(features)))


def test_a_config_holds_every_argument():
    options = {
        "num_labels": 1,
        "target": "graded",
        "form": "bi",
        "rounds": 3,
        "pooling": "max",
        "symmetric": True,
        "overlap": False,
        "share_weights": True,
        "dropout": 0.3,
    }
    config = TextMatcher(TWO, **options).get_config()
    assert {key: config[key] for key in options} == options
    again = TextMatcher.from_config(config)
    assert again.get_config() == config and again.encoder_configs == TWO


def test_names_of_inputs_come_in_the_order_of_exports():
    assert new_matcher().input_names == ("token_ids_a", "padding_mask_a", "token_ids_b", "padding_mask_b")
    two = new_matcher(encoders=TWO)
    assert two.granularities == ("wordpiece", "char")
    assert two.input_names == (
        "wordpiece_token_ids_a",
        "wordpiece_padding_mask_a",
        "wordpiece_token_ids_b",
        "wordpiece_padding_mask_b",
        "char_token_ids_a",
        "char_padding_mask_a",
        "char_token_ids_b",
        "char_padding_mask_b",
    )
    assert set(two.input_names) == set(pair_features(two, A, B))


@pytest.mark.parametrize(
    "name", ["cross, two granularities", "cross, symmetric", "joint", "joint, no overlap"]
)
def test_the_head_sees_both_vectors_compared_and_the_shares(name):
    model = matcher(name)
    features = pair_features(model, A, B)
    seen, additional = [], []
    for granularity, pair in zip(model.granularities, model.pairs, strict=True):
        prefix = f"{granularity}_" if len(model.pairs) > 1 else ""
        inputs = [features[f"{prefix}{x}_{side}"] for side in SIDES for x in ("token_ids", "padding_mask")]
        a, b, *shares = (None if x is None else to_numpy(x) for x in pair(*inputs)[:4])
        assert a is not None and b is not None
        if model.form == "joint":
            seen += [a]
        else:
            seen += [a + b] if model.symmetric else [a, b]
            seen += [np.abs(a - b), a * b]
        shares = [x for x in shares if x is not None]
        assert len(shares) == 2 * pair.overlap
        if shares:
            additional += [shares[0] + shares[1]] if model.symmetric else shares
            additional += [np.abs(shares[0] - shares[1])]
    if additional:
        assert model.share_scale is not None
        mean, scale = model.share_scale.get_weights()
        shares = np.concatenate(additional, axis=1)
        np.testing.assert_allclose(to_numpy(model.shares(features)), shares, atol=1e-6)
        seen += [(shares - mean) * scale]
    assert model.head is not None
    kernel, bias = model.head.get_weights()
    expected = np.concatenate(seen, axis=1) @ kernel + bias
    np.testing.assert_allclose(to_numpy(model(features)), expected, atol=1e-5)


@pytest.mark.parametrize(
    "name", with_stages(["cross, two granularities", "cross, symmetric", "joint"], FIRST)
)
def test_the_head_is_initialized_from_the_shares(name):
    model = new_matcher(name)
    model.build()
    features = pair_features(model, A, B)
    np.testing.assert_array_equal(to_numpy(model(features)), 0)
    generator = np.random.default_rng(0)
    shares = to_numpy(model.shares(features))
    mean, kernel, bias = (
        generator.normal(size=size)
        for size in (shares.shape[1], (shares.shape[1], model.num_labels), model.num_labels)
    )
    scale = generator.uniform(0.5, 2, shares.shape[1])
    set_linear_head(model, mean, scale, kernel, bias)
    expected = ((shares - mean) * scale) @ kernel + bias
    np.testing.assert_allclose(to_numpy(model(features)), expected, atol=1e-4)
    # Dropout applies to vectors, never to shares.
    np.testing.assert_allclose(to_numpy(model(features, training=True)), expected, atol=1e-4)


@pytest.mark.parametrize(
    "name", with_stages([name for name in MATCHERS if name.endswith("granularities")], FIRST)
)
def test_every_granularity_influences_the_score(name):
    model, score = matcher(name), in_graph(name)
    features = pair_features(model, A, B)
    before = to_numpy(score(features))
    for ids in (name for name in model.input_names if "token_ids" in name):
        other = np.where(features[ids] >= 5, (features[ids] - 5 + 7) % (V - 5) + 5, features[ids])
        assert np.abs(to_numpy(score(features | {ids: other.astype("int32")})) - before).max() > 1e-3, ids


def test_shared_weights_are_built_once():
    shared, own = new_matcher(overlap=False), new_matcher(overlap=False, share_weights=False)
    for model in (shared, own):
        model.build()
        paths = [variable.path for variable in model.variables]
        assert len(paths) == len(set(paths))
    assert len(own.pairs[0].encoders) == 2 > len(shared.pairs[0].encoders)
    assert own.count_params() > 1.8 * shared.count_params()


@apart
def test_encode_and_compare_equal_call(name):
    model = matcher(name)
    features = pair_features(model, A, B)
    encoded = [model.encode(side_features(model, s, rows), s) for s, rows in zip(SIDES, (A, B), strict=True)]
    np.testing.assert_array_equal(to_numpy(model.compare(features, *encoded)), to_numpy(model(features)))


@apart
def test_a_query_encoded_once_scores_many_candidates(name):
    model = matcher(name)
    query = side_features(model, "a", [A[0]])
    candidates = side_features(model, "b", B)
    repeated = {key: np.repeat(value, len(B), axis=0) for key, value in query.items()}
    expected = to_numpy(model(repeated | candidates))
    encoded = [ops.repeat(x, len(B), axis=0) for x in model.encode(query, "a")]
    found = model.compare(repeated | candidates, encoded, model.encode(candidates, "b"))
    np.testing.assert_allclose(to_numpy(found), expected, atol=1e-5)


@every_bi
@pytest.mark.parametrize("dtype", ["float32", "mixed_bfloat16"])
def test_vectors_are_units_whose_products_are_the_scores(name, dtype):
    model = new_matcher(name, dtype=dtype)
    model.build()
    fill_weights(model)
    scale = 10.03  # Has no bfloat16.
    model.cosine_scale.assign(scale)
    model.cosine_bias.assign(-1.7)
    features = pair_features(model, A, B)
    a, b = (model.vectors(features, side) for side in SIDES)
    for vectors in (a, b):
        assert keras.backend.standardize_dtype(vectors.dtype) == "float32"
        assert vectors.shape == (len(A), sum(pair.config.hidden_dim for pair in model.pairs))
        np.testing.assert_allclose(np.linalg.norm(to_numpy(vectors), axis=-1), 1, atol=1e-5)
    everything = to_numpy(model.all_pairs(features))
    np.testing.assert_array_equal(to_numpy(model.score_vectors(a, b)), everything)
    np.testing.assert_allclose(everything, scale * (to_numpy(a) @ to_numpy(b).T) - 1.7, atol=1e-4)
    np.testing.assert_allclose(np.diagonal(everything), to_numpy(model(features))[:, 0], atol=1e-4)
    # Different numbers of texts on the two sides.
    assert model.score_vectors(a[:2], b).shape == (2, len(B))


def test_dropout_applies_to_vectors_in_training_only():
    model = new_matcher("bi")
    model.build()
    features = pair_features(model, A, B)
    np.testing.assert_array_equal(to_numpy(model.all_pairs(features)), to_numpy(model.all_pairs(features)))
    assert np.abs(to_numpy(model.all_pairs(features, training=True) - model.all_pairs(features))).max() > 1e-3


@pytest.mark.parametrize("name", ["cross", "bi", "joint"])
def test_dropout_acts_in_training_only(name):
    model = matcher(name)
    features = pair_features(model, A, B)
    plain = to_numpy(model(features))
    np.testing.assert_array_equal(to_numpy(model(features, training=False)), plain)
    assert np.abs(to_numpy(model(features, training=True)) - plain).max() > 1e-3


LOGITS = np.array([[2.0, -1.0, 0.5], [0.0, 3.0, 3.5], [-2.0, -2.0, -3.0]], "float32")


def test_a_pair_matches_from_the_threshold_on():
    model, logits = new_matcher(), LOGITS[:, :1]
    np.testing.assert_allclose(to_numpy(model.probabilities(logits)), scipy.special.expit(logits), atol=1e-6)
    for thresholds, expected in ((None, [1, 1, 0]), ([0.6], [1, 0, 0]), ([0.1], [1, 1, 1])):
        predictions = model.decode(ops.convert_to_tensor(logits), thresholds)
        assert keras.backend.standardize_dtype(predictions.dtype) == "int32"
        np.testing.assert_array_equal(to_numpy(predictions), expected)


def test_one_class_of_several():
    model = new_matcher(target="classes", num_labels=3)
    np.testing.assert_allclose(
        to_numpy(model.probabilities(LOGITS)), scipy.special.softmax(LOGITS, -1), atol=1e-6
    )
    predictions = model.decode(LOGITS)
    assert keras.backend.standardize_dtype(predictions.dtype) == "int32"
    np.testing.assert_array_equal(to_numpy(predictions), [0, 2, 0])


def test_graded_scores_are_the_logits():
    model, logits = new_matcher(target="graded"), LOGITS[:, :1]
    np.testing.assert_array_equal(to_numpy(model.probabilities(logits)), logits)
    np.testing.assert_array_equal(to_numpy(model.decode(logits)), logits[:, 0])


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"encoders": {}}, "encoders must be one granularity or more, got none"),
        ({"target": "ranks"}, "target must be one of binary, classes, graded, got 'ranks'"),
        ({"num_labels": 2}, "num_labels must be 1 for a binary target, got 2"),
        ({"num_labels": 3, "target": "graded"}, "num_labels must be 1 for a graded target, got 3"),
        (
            {"num_labels": 1, "target": "classes"},
            "num_labels must be at least 2 for a classes target, got 1",
        ),
        (
            {"form": "bi", "overlap": False, "target": "classes", "num_labels": 2},
            "target must be binary or graded in the bi form, which has one score, got classes",
        ),
        ({"rounds": -1}, "rounds must be from 0 to 4, got -1"),
        ({"rounds": 5}, "rounds must be from 0 to 4, got 5"),
        (
            {"symmetric": True, "share_weights": False},
            "share_weights must be on in a symmetric matcher, got off",
        ),
        ({"form": "both"}, "form must be one of cross, bi, joint, got 'both'"),
        ({"pooling": "sum"}, "pooling must be one of cls, mean, max, got 'sum'"),
        (
            {"form": "bi"},
            "overlap must be off in the bi form, whose texts do not attend to each other, got on",
        ),
        ({"form": "joint"}, "num_segments must be 2 in the joint form, got 0"),
    ],
)
def test_contradictory_arguments_are_rejected(options, message):
    with pytest.raises(InputError) as refusal:
        TextMatcher(**{"encoders": ONE, **options})
    assert str(refusal.value) == message


def test_unsupported_methods_of_a_form_are_rejected():
    joint, cross = matcher("joint"), matcher("cross")
    features = pair_features(joint, A, B)
    for call in (lambda: joint.encode(features, "a"), lambda: joint.compare(features, [], [])):
        with pytest.raises(
            InputError, match="form must be cross or bi to encode texts separately, got joint"
        ):
            call()
    with pytest.raises(InputError, match="form must be cross or bi for separate vectors of texts, got joint"):
        joint.vectors(features, "a")
    for model in (joint, cross):
        with pytest.raises(InputError, match=f"form must be bi to compare vectors, got {model.form}"):
            model.score_vectors(LOGITS, LOGITS)


def test_either_text_may_be_as_long_as_the_encoder_takes():
    model = matcher("cross")
    longest = text(*[5] * (WORDPIECE.max_length - 2))
    assert len(longest) == WORDPIECE.max_length > LENGTH
    assert np.isfinite(to_numpy(model(pair_features(model, [longest], [longest])))).all()
    with pytest.raises(ValueError, match="at most max_length 17, got 18"):
        model(pair_features(model, [longest], [longest], None, 18))


def test_encoders_may_differ_in_size():
    small = dataclasses.replace(WORDPIECE, hidden_dim=4, num_layers=0)
    model = TextMatcher({"word": WORDPIECE, "char": small}, symmetric=True)
    model.build()
    assert np.isfinite(to_numpy(model(pair_features(model, A, B)))).all()


@pytest.mark.parametrize("symmetric", [False, True])
def test_without_rounds_the_head_reads_unit_vectors(symmetric):
    model = new_matcher(rounds=0, symmetric=symmetric)
    model.build()
    fill_weights(model)
    for kernel in model.additions:
        # `vectors` have no overlap features.
        kernel.assign(np.zeros(kernel.shape))
    features = pair_features(model, A, B)
    inputs = to_numpy(model.pooled_vectors(features))
    assert model.head is not None
    np.testing.assert_allclose(
        to_numpy(model(features)), inputs @ to_numpy(model.head.kernel) + to_numpy(model.head.bias), atol=1e-5
    )
    dim = model.vector_dim
    products = inputs[:, model.vector_width - dim : model.vector_width]
    a, b = (to_numpy(model.vectors(features, side)) for side in SIDES)
    np.testing.assert_allclose(products.sum(axis=1), (a * b).sum(axis=1), atol=1e-5)
    cosine, overlap, everything = head_bases(model)
    np.testing.assert_allclose((inputs @ cosine)[:, 0], COSINE_SCALE * (a * b).sum(axis=1), atol=1e-4)
    assert np.linalg.matrix_rank(overlap) == 1 + inputs.shape[1] - model.vector_width
    np.testing.assert_array_equal(everything[: (1 if symmetric else 2) * dim], 0)
