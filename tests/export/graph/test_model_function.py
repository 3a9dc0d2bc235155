import numpy as np
import pytest
import tensorflow as tf

from export.graph.model_function import ids_function, ids_specs
from tests.bundles import EDGE_CASES, TEXTS, one_label_bundle, several_label_bundle


@pytest.mark.parametrize("make", [one_label_bundle, several_label_bundle])
@pytest.mark.parametrize("length", [None, 24])
def test_token_ids_give_the_predictions_of_their_texts(make, length):
    bundle, texts = make(), [*TEXTS, *EDGE_CASES]
    function = ids_function(bundle, with_attention=True)
    features = bundle.preprocessor(tf.constant(texts), length)
    answers = function.get_concrete_function(*ids_specs(bundle, None, length))(
        features["token_ids"], features["padding_mask"]
    )
    np.testing.assert_allclose(answers["probabilities"], bundle.probabilities(texts), atol=1e-5)
    config, steps = bundle.model.encoder_config, features["token_ids"].shape[1]
    shape = (len(texts), config.num_layers, config.num_heads, steps, steps)
    assert answers["attention"].shape == shape
    # Every position, a padded one too, looks at real positions only, and at all of them together once.
    seen = (answers["attention"].numpy() * features["padding_mask"].numpy()[:, None, None, None, :]).sum(-1)
    np.testing.assert_allclose(seen, 1, atol=1e-5)


def test_attention_is_not_returned_by_default():
    function = ids_function(one_label_bundle()).get_concrete_function(*ids_specs(one_label_bundle(), 1, 8))
    assert set(function.structured_outputs) == {"probabilities"}
