import functools

import numpy as np
import pytest
import tensorflow as tf

from export.savedmodel.endpoints import MatcherEndpoints, chunk_rows
from export.savedmodel.write import endpoints, serialized_example
from kmha.text.vocabulary import PADDING, START
from tests.bundles import EDGE_CASES, PAIRS, TEXTS, make_pair_bundle, one_label_bundle, pair_bundle
from tests.export.savedmodel.test_endpoints import as_a_server_joins
from tests.stages import with_stages

# The longest edge cases are truncated anyway and only cost time here.
SHORT = [text for text in EDGE_CASES if len(text) < 1000]
ALL = [
    *PAIRS,
    *((text, TEXTS[0]) for text in SHORT),
    *((TEXTS[3], text) for text in SHORT),
    *((text, text) for text in (*TEXTS, *SHORT)),
    (EDGE_CASES[-2], EDGE_CASES[-4]),
]
KINDS = {
    "cross": {},
    "symmetric": {"symmetric": True, "target": "graded", "granularities": ("char", "word")},
    "classes": {"target": "classes", "labels": ("entails", "neutral", "contradicts"), "rounds": 2},
    "bi": {"form": "bi", "share_weights": False},
    "joint": {"form": "joint", "symmetric": True, "target": "graded"},
}
# Traces of the others take most of the time; they are in the second stage.
FIRST = ("cross", "bi")
every_kind = pytest.mark.parametrize("kind", with_stages(KINDS, FIRST))
ranking_kind = pytest.mark.parametrize(
    "kind", with_stages([kind for kind in KINDS if kind != "classes"], FIRST)
)
QUERY = TEXTS[1]
CANDIDATES = [*SHORT, b"x" * 100_000, *(f"{text} {index}" for index, text in enumerate(TEXTS * 20))]


@functools.cache
def bundle_of(kind: str):
    return make_pair_bundle(**KINDS[kind])


@functools.cache
def signatures(kind: str) -> dict:
    return MatcherEndpoints(bundle_of(kind), xla=kind == "cross").signatures()


@functools.cache
def expected_predictions(kind: str) -> np.ndarray:
    """Returns the predictions of the bundle for ALL."""
    return bundle_of(kind).probabilities(ALL)


@functools.cache
def expected_scores(kind: str) -> np.ndarray:
    """Returns the scores of the bundle for CANDIDATES."""
    return bundle_of(kind).probabilities([(QUERY, each) for each in CANDIDATES])[:, 0]


def near(found, expected) -> None:
    """Graded scores have no bound, so theirs may differ by 1e-5 of their size."""
    np.testing.assert_allclose(found, expected, atol=1e-5, rtol=1e-5)


def strings(texts):
    return tf.constant(list(texts), tf.string)


def columns(pairs) -> dict:
    return {"text_a": strings(a for a, _ in pairs), "text_b": strings(b for _, b in pairs)}


def ids(bundle, pairs) -> dict:
    features = bundle.preprocessor(*columns(pairs).values())
    return {name: value.numpy() for name, value in features.items()}


@every_kind
def test_pairs_are_predicted_as_by_the_bundle(kind):
    bundle, outputs = bundle_of(kind), signatures(kind)["predict_text"](**columns(ALL))
    expected = expected_predictions(kind)
    if kind == "classes":
        assert set(outputs) == {"label", "labels", "probabilities"}
        near(outputs["probabilities"], expected)
        labels = [bundle.labels[best].encode() for best in expected.argmax(axis=1)]
        assert outputs["label"].numpy().tolist() == labels and len(set(labels)) > 1
        return
    assert set(outputs) == ({"score"} if bundle.thresholds is None else {"score", "match"})
    near(outputs["score"], expected[:, 0])


@pytest.mark.second
def test_the_threshold_is_the_bundles():
    bundle = make_pair_bundle()
    scores = bundle.probabilities(PAIRS)[:, 0]
    bundle.thresholds = [float((scores.min() + scores.max()) / 2)]
    outputs = MatcherEndpoints(bundle).predict_text(**columns(PAIRS))
    assert outputs["match"].dtype == tf.int32
    assert outputs["match"].numpy().tolist() == [row["match"] for row in bundle.predict(PAIRS)]
    assert 0 < outputs["match"].numpy().sum() < len(PAIRS)


@pytest.mark.parametrize("kind", with_stages(["cross", "symmetric"], FIRST))
def test_token_ids_give_the_predictions_of_their_texts(kind):
    bundle = bundle_of(kind)
    found = signatures(kind)["predict_ids"](**{k: tf.constant(v) for k, v in ids(bundle, ALL).items()})
    assert set(found) == {"scores"}
    near(found["scores"], expected_predictions(kind))


def test_compiled_ids_give_the_predictions_of_their_texts():
    given = {name: tf.constant(value) for name, value in ids(pair_bundle(), PAIRS).items()}
    found = signatures("cross")["predict_ids_xla"](**given)
    near(found["scores"], expected_predictions("cross")[: len(PAIRS)])


@pytest.mark.parametrize(
    ("name", "change", "message"),
    [
        ("token_ids_b", lambda ids: ids - 6, r"token_ids_b must be in \[0, \d+\), got\] \[-\d\]"),
        ("token_ids_a", lambda ids: ids + 9999, r"token_ids_a must be in \[0, "),
        ("token_ids_b", lambda ids: np.full((7, 25), 5), "token_ids_b must be at most 24 long, got length"),
        ("padding_mask_a", lambda mask: mask[:, 1:], "padding_mask_a must have the shape of token_ids_a"),
    ],
)
def test_wrong_ids_are_rejected_by_name(name, change, message):
    given = ids(pair_bundle(), PAIRS)
    given[name] = change(given[name]).astype("int32")
    for signature in ("predict_ids", "predict_ids_xla"):
        with pytest.raises(tf.errors.InvalidArgumentError, match=message):
            signatures("cross")[signature](**{key: tf.constant(value) for key, value in given.items()})


@pytest.mark.parametrize("name", ["predict_text", "explain"])
def test_columns_of_different_lengths_are_rejected_by_name(name):
    given = columns(PAIRS) | {"text_b": strings(TEXTS[:1])}
    message = r"text_b must have as many rows as text_a,\] \[7\] \[got\] \[1\]"
    with pytest.raises(tf.errors.InvalidArgumentError, match=message):
        signatures("cross")[name](**given)


@pytest.mark.parametrize("kind", with_stages(["cross", "symmetric"], FIRST))
def test_batching_requests_changes_no_prediction(kind):
    bundle, requests = bundle_of(kind), [PAIRS[2:3], PAIRS[:2], PAIRS[4:5]]
    made = [ids(bundle, pairs) for pairs in requests]
    names = list(made[0])
    joined = as_a_server_joins([[features[name] for name in names] for features in made])
    given = {name: tf.constant(value) for name, value in zip(names, joined, strict=True)}
    (found,) = signatures(kind)["predict_ids"](**given).values()
    near(found[:4], expected_predictions(kind)[[2, 0, 1, 4]])


@ranking_kind
@pytest.mark.parametrize("count", [1, 5, len(CANDIDATES)])
def test_a_ranking_sorts_by_the_scores_of_the_pairs(kind, count):
    outputs = signatures(kind)["rank"](query=strings([QUERY]), candidates=strings(CANDIDATES[:count]))
    order = outputs["order"].numpy()
    assert order.dtype == np.int32 and outputs["scores"].dtype == tf.float32
    assert sorted(order) == list(range(count))
    assert (np.diff(outputs["scores"].numpy()) <= 0).all()
    near(outputs["scores"], expected_scores(kind)[order])


@pytest.mark.parametrize("query", [b"", b"\xff", b"x" * 100_000])
def test_any_bytes_may_be_the_query(query):
    outputs = signatures("cross")["rank"](query=strings([query]), candidates=strings(TEXTS))
    expected = pair_bundle().probabilities([(query, text) for text in TEXTS])[:, 0]
    near(outputs["scores"], expected[outputs["order"]])


@pytest.mark.parametrize("kind", ["cross", "bi"])
def test_no_candidates_give_an_empty_ranking(kind):
    outputs = signatures(kind)["rank"](query=strings(["bread"]), candidates=strings([]))
    assert {name: value.shape.as_list() for name, value in outputs.items()} == {"order": [0], "scores": [0]}


@pytest.mark.parametrize("kind", ["cross", "bi"])
def test_equal_candidates_keep_their_order(kind):
    candidates = [TEXTS[index] for index in (3, 1, 3, 0, 1, 3)] + ["one more"] * 200 + [TEXTS[3]]
    outputs = signatures(kind)["rank"](query=strings([TEXTS[0]]), candidates=strings(candidates))
    order = outputs["order"].numpy().tolist()
    for text in set(candidates):
        places = [index for index in order if candidates[index] == text]
        assert places == sorted(places)
    third = order.index(0)
    assert order[third : third + 4] == [0, 2, 5, len(candidates) - 1]


@pytest.mark.parametrize("queries", [[], ["bread", "soup"]])
def test_a_ranking_needs_one_query(queries):
    with pytest.raises(tf.errors.InvalidArgumentError, match="query must be one text, got"):
        signatures("cross")["rank"](query=strings(queries), candidates=strings(["soup", "bread"]))


@pytest.mark.parametrize(("length", "rows"), [(16, 128), (128, 128), (256, 32), (512, 8), (10_000, 1)])
def test_chunks_are_smaller_where_texts_are_longer(length, rows):
    assert chunk_rows(length) == rows


@pytest.mark.parametrize("kind", ["cross", "bi"])
def test_the_query_is_encoded_once_and_candidates_in_chunks(kind, monkeypatch):
    """Runs op by op: the encoder gets the query as one row, and at most a chunk of candidates."""
    bundle = make_pair_bundle(**KINDS[kind])
    encoded = []
    for pair in bundle.model.pairs:
        monkeypatch.setattr(pair, "encode", watched(pair.encode, encoded))
    tf.config.run_functions_eagerly(True)
    try:
        candidates = strings(f"bread {index}" for index in range(300))
        MatcherEndpoints(bundle).rank(strings(["the old harbour"]), candidates)
    finally:
        tf.config.run_functions_eagerly(False)
    expected = [("a", 1)] + [("b", rows) for rows in (128, 128, 44)]
    assert sorted(encoded) == sorted(expected * len(bundle.model.pairs))


def watched(encode, encoded: list):
    def call(ids, mask, side, **options):
        encoded.append((side, ids.shape[0]))
        return encode(ids, mask, side, **options)

    return call


def test_the_graph_contains_each_tokenizer_once():
    names = set()
    for function in signatures("cross").values():
        for definition in function.graph.as_graph_def(add_shapes=False).library.function:
            names |= {definition.signature.name for n in definition.node_def if "Wordpiece" in n.op}
    assert len(names) == 1


def test_stored_vectors_are_ranked():
    given, candidates, query = signatures("bi"), strings(CANDIDATES), strings([QUERY])
    vectors = given["embed"](text=candidates)["vectors"]
    assert vectors.dtype == tf.float32 and vectors.shape == (len(CANDIDATES), 16)
    near(np.linalg.norm(vectors, axis=1), 1)
    stored = given["rank_vectors"](query=query, vectors=vectors)
    near(stored["scores"], given["rank"](query=query, candidates=candidates)["scores"])
    near(stored["scores"], expected_scores("bi")[stored["order"]])
    # Both texts have an encoder of their own, and each signature takes the right one.
    as_query = given["embed_query"](text=candidates)["vectors"]
    assert np.abs(as_query - vectors).max() > 0.01
    cosines = tf.reduce_sum(given["embed_query"](text=query)["vectors"] * vectors, axis=1)
    assert cosines.numpy().argmax() == stored["order"].numpy()[0]
    # Ids of one side give the same vectors as its texts.
    made = ids(bundle_of("bi"), [(QUERY, candidate) for candidate in CANDIDATES])
    query_vectors = tf.repeat(given["embed_query"](text=query)["vectors"], len(CANDIDATES), axis=0)
    for name, side, expected in (("embed_ids", "b", vectors), ("embed_query_ids", "a", query_vectors)):
        of_side = {key: tf.constant(value) for key, value in made.items() if key.endswith(f"_{side}")}
        assert set(of_side) == {f"token_ids_{side}", f"padding_mask_{side}"}
        near(given[name](**of_side)["vectors"], expected)
    none = given["rank_vectors"](query=strings(["a"]), vectors=tf.zeros([0, 16]))
    assert none["order"].shape == none["scores"].shape == (0,)


@pytest.mark.parametrize("kind", with_stages(["cross", "classes", "symmetric", "joint"], FIRST))
def test_the_explanation_has_tokens_of_both_texts_and_all_attention(kind):
    bundle = bundle_of(kind)
    outputs = {name: each.numpy() for name, each in signatures(kind)["explain"](**columns(ALL)).items()}
    output = "probabilities" if kind == "classes" else "scores"
    near(outputs.pop(output), expected_predictions(kind))
    parts = bundle.preprocessor.granularities if kind == "symmetric" else ("",)
    lengths = {}
    for part in parts:
        for side in "ab":
            tokens = outputs.pop("_".join(filter(None, (part, "tokens", side))))
            lengths[part, side] = tokens.shape[1]
            assert (tokens[:, 0] == START.encode()).all() and PADDING.encode() in tokens
    rounds, attended = KINDS[kind].get("rounds", 1), {"a": ("a", "a", 1), "b": ("b", "b", 1)}
    if bundle.model.form == "cross":
        attended |= {"a_to_b": ("a", "b", rounds), "b_to_a": ("b", "a", rounds)}
    if kind == "joint":
        steps = lengths["", "a"] + lengths["", "b"] - 1
        assert {n: v.shape for n, v in outputs.items()} == {"attention": (len(ALL), 1, 2, steps, steps)}
        return
    for part in parts:
        for name, (query_side, key_side, layers) in attended.items():
            weights = outputs.pop("_".join(filter(None, (part, "attention", name))))
            assert weights.shape == (len(ALL), layers, 2, lengths[part, query_side], lengths[part, key_side])
            np.testing.assert_allclose(weights[0].sum(-1)[:, :, 0], 1, atol=1e-5)
    assert not outputs


@pytest.mark.second
def test_examples_give_the_predictions_of_their_pairs():
    texts = [[t if isinstance(t, bytes) else t.encode() for t in pair] for pair in ALL]
    outputs = signatures("classes")["classify"](strings(serialized_example(*pair) for pair in texts))
    assert set(outputs) == {"classes", "scores"}
    near(outputs["scores"], expected_predictions("classes"))
    assert (outputs["classes"].numpy() == np.array([b"entails", b"neutral", b"contradicts"])).all()
    with pytest.raises(tf.errors.InvalidArgumentError, match="text_a"):
        signatures("classes")["classify"](strings([tf.train.Example().SerializeToString()]))


@every_kind
def test_the_names_of_the_interface(kind):
    of_kind = {
        "cross": ["predict_ids_xla", "explain", "rank"],
        "classes": ["explain", "classify"],
        "bi": ["explain", "rank", "embed", "embed_ids", "rank_vectors", "embed_query", "embed_query_ids"],
    }
    every = ["serving_default", "predict_text", "predict_ids"]
    assert list(signatures(kind)) == [*every, *of_kind.get(kind, ["explain", "rank"])]


@pytest.mark.second
def test_one_encoder_embeds_queries_and_candidates_alike():
    shared = MatcherEndpoints(make_pair_bundle(form="bi")).signatures()
    assert list(shared)[-4:] == ["rank", "embed", "embed_ids", "rank_vectors"]


def test_a_bundle_gets_the_endpoints_of_its_task():
    assert isinstance(endpoints(pair_bundle()), MatcherEndpoints)
    assert not isinstance(endpoints(one_label_bundle()), MatcherEndpoints)


def test_every_variable_is_held_once():
    bundle = bundle_of("symmetric")
    variables = MatcherEndpoints(bundle).variables
    assert {v.ref() for v in variables} == {v.value.ref() for v in bundle.model.variables}
    assert len(variables) == len(bundle.model.variables)
