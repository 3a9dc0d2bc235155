import numpy as np

from training.fewshot.suggestion import select_texts

RNG = np.random.default_rng(0)


def test_uncertain_texts_of_different_regions_are_selected():
    # Three groups of texts; only the first two are uncertain.
    vectors = np.repeat(np.eye(3, 8), 20, axis=0) + 0.01 * RNG.normal(size=(60, 8))
    probabilities = np.repeat([[0.5, 0.5, 0.0], [0.0, 0.55, 0.45], [0.999, 0.001, 0.0]], 20, axis=0)
    rows = select_texts(probabilities.astype(np.float32), vectors.astype(np.float32), 2, seed=0)
    assert sorted(rows // 20) == [0, 1]


def test_no_text_is_selected_twice_and_all_can_be_selected():
    vectors = RNG.normal(size=(12, 4)).astype(np.float32)
    certain = np.eye(3, dtype=np.float32)[np.arange(12) % 3]
    for thresholds in (None, [0.5, 0.9, 0.1]):
        rows = select_texts(certain, vectors, 50, 0, thresholds)
        assert sorted(rows) == list(range(12))


def test_the_seed_decides():
    vectors = RNG.normal(size=(50, 4)).astype(np.float32)
    probabilities = RNG.dirichlet(np.ones(3), 50).astype(np.float32)
    first, again, other = (select_texts(probabilities, vectors, 10, seed) for seed in (1, 1, 2))
    assert np.array_equal(first, again) and not np.array_equal(first, other)


def test_equals_k_means_plus_plus_on_explicit_gradients():
    vectors = RNG.normal(size=(15, 3)).astype(np.float32)
    probabilities = RNG.dirichlet(np.ones(4), 15).astype(np.float32)
    errors = probabilities - (probabilities == probabilities.max(axis=1, keepdims=True))
    gradients = np.einsum("rc,rd->rcd", errors.astype(np.float64), vectors).reshape(15, -1)
    random = np.random.default_rng([5, 17])
    expected = [int((gradients**2).sum(axis=1).argmax())]
    for _ in range(4):
        centers = np.concatenate([gradients[expected], np.zeros((1, 12))])
        distances = ((gradients[:, None] - centers) ** 2).sum(axis=2).min(axis=1)
        distances[expected] = 0
        expected.append(int(random.choice(15, p=distances / distances.sum())))
    assert select_texts(probabilities, vectors, 5, 5).tolist() == expected
