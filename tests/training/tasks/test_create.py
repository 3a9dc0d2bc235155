"""The task of a bundle."""

import dataclasses

import pytest

from kmha.errors import InputError
from tests.bundles import make_tagger_bundle, pair_bundle
from training.tasks.create import task_from_bundle


@pytest.mark.parametrize(
    ("make", "default"), [(pair_bundle, "accuracy"), (make_tagger_bundle, "span_f1")], ids=["match", "tag"]
)
def test_the_metric_of_a_bundle_is_one_of_its_task(make, default):
    bundle = make()
    assert task_from_bundle(bundle).metric == default
    for metric in (["accuracy"], "rouge", None):
        wrong = dataclasses.replace(bundle, details={"metric": metric})
        with pytest.raises(InputError, match=f"bundle.json: metric must be one of {default}"):
            task_from_bundle(wrong)
