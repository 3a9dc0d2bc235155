"""Importance against finite differences of gates; entropy and distance of attention against NumPy."""

import numpy as np
import pytest

from tests.bundles import PAIRS, TEXTS
from tests.command_runs import write_csv
from tests.pruned_models import KINDS, features_of
from tests.stages import with_stages
from training.io.examples import ColumnOverrides
from training.pruning.importance import (
    EvaluationRows,
    leave_one_head_out,
    measure_importance,
    prunable_groups,
)


def rows_of(bundle, folder, count):
    if bundle.task == "match":
        rows = [(*pair, str(i % 2)) for i, pair in enumerate(PAIRS[:count])]
        path = write_csv(folder / "rows.csv", rows, ("text_a", "text_b", "label"))
    elif bundle.task == "tag":
        path = folder / "rows.conll"
        path.write_text("old O\nferry B-LOC\nat O\nseven O\n\nSeven B-PER\n\n")
    else:
        labels = [*bundle.labels, "unknown"]
        rows = [(text, labels[i % len(labels)]) for i, text in enumerate(TEXTS[:count])]
        path = write_csv(folder / "rows.csv", rows)
    return EvaluationRows.read(bundle, path, ColumnOverrides(), folder / "scratch").sample(0, 0)


def blocks_of(model):
    return [block for group in prunable_groups(model) for block in group.blocks]


def loss_with(evaluated, kernel, gate, places):
    """The mean loss with some rows of a kernel multiplied by a gate."""
    whole = kernel.numpy()
    changed = whole.copy()
    changed[places] *= gate
    kernel.assign(changed)
    loss = evaluated.scores()["loss"]
    kernel.assign(whole)
    return loss


@pytest.mark.parametrize("kind", with_stages(["one label", "joint", "tags"], ["one label"]))
def test_a_gradient_is_the_slope_of_the_loss(kind, tmp_path):
    """On one row, where the mean of magnitudes is the magnitude of the mean."""
    bundle = KINDS[kind]()
    rows = rows_of(bundle, tmp_path, 1).sample(1, 0)
    blocks = blocks_of(bundle.model)
    found, evaluated = measure_importance(rows, blocks), rows.evaluator()
    step = 2e-3
    for block, importance in zip(blocks, found, strict=True):
        size = block.head_size
        head, row = int(importance.heads.argmax()), int(importance.rows.argmax())
        for kernel, places, reported in (
            (block.output_kernel, slice(head * size, (head + 1) * size), importance.heads[head]),
            (block.contract_kernel, slice(row, row + 1), importance.rows[row]),
        ):
            ends = [loss_with(evaluated, kernel, 1 + sign * step, places) for sign in (1, -1)]
            assert reported == pytest.approx(abs(ends[0] - ends[1]) / (2 * step), rel=0.05, abs=2e-3)


@pytest.mark.second
def test_rows_are_measured_alone_and_unknown_labels_are_ignored(tmp_path):
    bundle = KINDS["one label"]()
    rows = rows_of(bundle, tmp_path, 4)
    assert len(rows.part.rows) == 3  # The fourth has a label that the model does not have.
    blocks = blocks_of(bundle.model)
    found = measure_importance(rows, blocks)
    one_by_one = []
    for row in rows.part.rows:
        folder = tmp_path / str(row)
        folder.mkdir()
        label = bundle.labels[row]
        path = write_csv(folder / "rows.csv", [(TEXTS[row], label)])
        alone = EvaluationRows.read(bundle, path, ColumnOverrides(), folder / "scratch")
        one_by_one.append(measure_importance(alone, blocks))
    for name in ("heads", "rows", "entropy", "distance"):
        for place in range(len(blocks)):
            mean = np.mean([getattr(each[place], name) for each in one_by_one], axis=0)
            np.testing.assert_allclose(getattr(found[place], name), mean, rtol=1e-5)


def test_entropy_and_distance_match_numpy(tmp_path):
    bundle = KINDS["one label"]()
    found = measure_importance(rows_of(bundle, tmp_path, 1), blocks_of(bundle.model))
    features = {name: each[:1] for name, each in features_of(bundle).items()}
    length = int(features["padding_mask"].numpy().sum())
    _, weights = bundle.model(features, return_attention_weights=True, training=False)
    apart = np.abs(np.subtract.outer(np.arange(length), np.arange(length)))
    for importance, each in zip(found, weights, strict=True):
        map_ = each.numpy()[0, :, :length, :length].astype(np.float64)
        entropy = -(map_ * np.log(np.maximum(map_, 1e-30))).sum(axis=-1).mean(axis=-1)
        np.testing.assert_allclose(importance.entropy, entropy, rtol=1e-4)
        np.testing.assert_allclose(importance.distance, (map_ * apart).sum(axis=-1).mean(axis=-1), rtol=1e-4)


def test_leaving_out_a_head_restores_its_weights(tmp_path):
    bundle = KINDS["one label"]()
    rows, blocks = rows_of(bundle, tmp_path, 6), blocks_of(bundle.model)
    evaluated = rows.evaluator()
    before = evaluated.scores()
    found = leave_one_head_out(rows, blocks)
    assert [len(each) for each in found] == [4, 4]
    assert evaluated.scores() == before
    block = blocks[1]
    gone = loss_with(evaluated, block.output_kernel, 0, slice(2 * block.head_size, 3 * block.head_size))
    assert found[1][2]["loss"] == pytest.approx(gone, abs=1e-6)
    assert len({each["loss"] for part in found for each in part}) == 8
