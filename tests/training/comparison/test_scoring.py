import numpy as np
import pytest

from kmha.config import EncoderConfig
from tests.bundles import TEXTS, one_label_bundle, preprocessor
from training.comparison.scoring import (
    describe_encoder,
    latencies,
    linear_caller,
    model_caller,
    reference_of,
    text_of_length,
)


def test_the_reference_is_attention_or_the_best():
    assert reference_of({"cnn": 0.9, "heads": 0.1}) == "heads"
    assert reference_of({"cnn": 0.2, "linear": 0.9, "averages": 0.3}) == "linear"


def test_latency_is_the_median_of_the_fastest_calls_in_turns():
    now, order = [0.0], []

    def caller(name: str, costs: dict):
        def at(length: int):
            if length not in costs:
                return None
            left = list(costs[length])

            def call():
                order.append((name, length))
                now[0] += left.pop(0)

            return call

        return at

    # One untimed call a round, then the fastest of three: 2, 1 and 5 for a; the median is 2.
    a = [9, 2, 8, 7, 9, 6, 1, 4, 9, 5, 5, 5]
    found = latencies(
        {"a": caller("a", {4: a, 8: [1] * 12}), "b": caller("b", {4: [3] * 12})}, [4, 8], 3, lambda: now[0]
    )
    assert found == {"a": {4: 2000, 8: 1000}, "b": {4: 3000}}
    firsts = [name for place, (name, length) in enumerate(order) if length == 4 and place % 4 == 0]
    assert firsts == ["a", "b", "b", "a", "a", "b"]


def test_models_are_called_with_texts_of_the_length():
    bundle = one_label_bundle()
    caller = model_caller(bundle.model, len(bundle.preprocessor.vocabulary), 24)
    assert caller(25) is None
    for length in (3, 24):
        call = caller(length)
        assert call is not None
        np.testing.assert_allclose(call().sum(), 1, atol=1e-5)


@pytest.mark.parametrize("length", [3, 7, 20])
def test_texts_have_about_the_requested_length(length):
    part = preprocessor()
    text = text_of_length(part, TEXTS, length)
    tokens = int(np.asarray(part([text])["padding_mask"]).sum())
    assert length - 1 <= tokens <= length


def test_short_texts_are_repeated():
    part = preprocessor(max_length=100)
    tokens = int(np.asarray(part([text_of_length(part, ["old bread"], 80)])["padding_mask"]).sum())
    assert 79 <= tokens <= 80
    assert text_of_length(part, ["", " "], 9).strip() == ""


def test_linear_models_are_called_with_text():
    class Echo:
        def predict(self, texts):
            return texts

    call = linear_caller(Echo(), preprocessor(), TEXTS)(10)
    assert call is not None and call()[0].startswith("The")


def test_a_run_is_described_by_its_blocks():
    assert describe_encoder(EncoderConfig(50, 16, 1, 1)) == "attention, 1 head, 1 layer of 16"
    whole = EncoderConfig(50, 16, 2, 4, ngram_buckets=101)
    assert describe_encoder(whole) == "attention, 4 heads, 2 layers of 16, n-grams"
    pruned = EncoderConfig(50, 16, 2, 4, layer_sizes=((3, 9), (1, 5)))
    assert describe_encoder(pruned) == "attention, 3 and 1 heads, 2 layers of 16"
