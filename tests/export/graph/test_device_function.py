import numpy as np
import pytest

from export.graph.device_function import features_of, sample_rows
from tests.bundles import PAIRS, TEXTS, make_bundle, make_pair_bundle, one_label_bundle, pair_bundle


@pytest.mark.parametrize("make", [make_bundle, make_pair_bundle])
def test_a_bundle_without_a_sample_uses_plain_rows(make):
    bundle = make()
    assert sample_rows(bundle, 3) == bundle.sample[:3]
    bundle.sample = []
    rows = sample_rows(bundle)
    assert len(rows) > 2 and np.isfinite(bundle.probabilities(rows)).all()


def test_features_are_those_of_the_preprocessor():
    for bundle, rows in ((one_label_bundle(), TEXTS), (pair_bundle(), PAIRS)):
        columns = [rows] if isinstance(rows[0], str) else list(zip(*rows, strict=True))
        expected = bundle.preprocessor(*map(list, columns))
        found = features_of(bundle, rows)
        assert list(found) == list(expected)
        for name, values in expected.items():
            np.testing.assert_array_equal(found[name], values)


def test_truncation_keeps_both_special_tokens():
    whole, cut = features_of(pair_bundle(), PAIRS), features_of(pair_bundle(), PAIRS, 6)
    for side in "ab":
        ids = cut[f"token_ids_{side}"]
        assert ids.shape == (len(PAIRS), 6)
        np.testing.assert_array_equal(ids[:, :5], whole[f"token_ids_{side}"][:, :5])
        assert set(ids[:, 5]) == {3}
