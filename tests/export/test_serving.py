import numpy as np
import pytest
import tensorflow as tf

from export.ids import PROBABILITIES
from export.serving import GIVEN, LABEL, LABELS, TEXT, Endpoints
from tests.bundles import NASTY, SEVERAL, TEXTS, make_bundle, one_label_bundle, several_label_bundle


@pytest.mark.parametrize("make", [one_label_bundle, several_label_bundle])
def test_eager_graph_and_signature_answer_as_the_bundle(make):
    bundle, texts = make(), [*TEXTS, *NASTY]
    endpoints = Endpoints(bundle)
    given = tf.constant(texts, tf.string)
    graph, signature = endpoints.predict_text(given), endpoints.text_signature()(given)
    assert set(graph) == set(signature) == {LABELS, PROBABILITIES, GIVEN if bundle.multi_label else LABEL}
    for name, values in signature.items():
        np.testing.assert_array_equal(values, graph[name])
    np.testing.assert_allclose(graph[PROBABILITIES], bundle.probabilities(texts), atol=1e-5)


def test_thresholds_decide_what_is_given():
    bundle = several_label_bundle()
    endpoints = Endpoints(bundle)
    answers = endpoints.predict_text(tf.constant(TEXTS))
    expected = answers[PROBABILITIES].numpy() >= np.array(bundle.thresholds, "float32")
    np.testing.assert_array_equal(answers[GIVEN], expected.astype("int32"))


def test_several_labels_without_thresholds():
    endpoints = Endpoints(make_bundle(SEVERAL, multi_label=True))
    answers = endpoints.predict_text(tf.constant(TEXTS))
    np.testing.assert_array_equal(answers[GIVEN], answers[PROBABILITIES].numpy() >= 0.5)


def test_it_holds_every_variable_once():
    bundle = one_label_bundle()
    endpoints = Endpoints(bundle)
    assert {v.ref() for v in endpoints.variables} == {v.value.ref() for v in bundle.model.variables}
    assert len(endpoints.variables) == len(bundle.model.variables)


def test_the_names_of_the_interface():
    assert (TEXT, LABEL, LABELS, PROBABILITIES, GIVEN) == (
        "text",
        "label",
        "labels",
        "probabilities",
        "given",
    )
