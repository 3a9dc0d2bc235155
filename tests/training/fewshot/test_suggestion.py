import numpy as np

from training.fewshot.suggestion import nearest_to_centers, select_texts

RNG = np.random.default_rng(0)


def unit(vectors: np.ndarray) -> np.ndarray:
    return (vectors / np.linalg.norm(vectors, axis=1, keepdims=True)).astype(np.float32)


def test_uncertain_texts_of_different_regions_are_selected():
    # Three groups of texts; only the first two are uncertain.
    vectors = unit(np.repeat(np.eye(3, 8), 5, axis=0) + 0.01 * RNG.normal(size=(15, 8)))
    probabilities = np.repeat([[0.5, 0.5, 0.0], [0.0, 0.55, 0.45], [0.999, 0.001, 0.0]], 5, axis=0)
    for seed in range(5):
        rows = select_texts(probabilities.astype(np.float32), vectors, 2, seed)
        assert sorted(rows // 5) == [0, 1]


def test_no_text_is_selected_twice_and_all_can_be_selected():
    vectors = unit(RNG.normal(size=(12, 4)))
    vectors[6:] = vectors[0]
    certain = np.eye(3, dtype=np.float32)[np.arange(12) % 3]
    for thresholds in (None, [0.5, 0.9, 0.1]):
        for count in (8, 12, 50):
            rows = select_texts(certain, vectors, count, 0, thresholds)
            assert len(set(rows.tolist())) == len(rows) == min(count, 12)
    assert len(select_texts(np.ones((12, 1), np.float32), vectors, 5, 0)) == 5


def test_texts_near_a_threshold_are_uncertain():
    probabilities = np.full((30, 2), 0.02, np.float32)
    # Near the thresholds, though not near 0.5.
    probabilities[[4, *range(20, 29)], 0], probabilities[9, 1] = 0.35, 0.8
    rows = select_texts(probabilities, unit(np.eye(30)), 30, 0, thresholds=[0.3, 0.8])
    assert rows[0] == 9 and set(rows[1:11].tolist()) == {4, *range(20, 29)}


def test_the_most_uncertain_come_first_and_the_seed_decides():
    vectors = unit(RNG.normal(size=(200, 4)))
    probabilities = RNG.dirichlet(np.ones(3), 200).astype(np.float32)
    first, again, other = (select_texts(probabilities, vectors, 10, seed) for seed in (1, 1, 2))
    assert np.array_equal(first, again) and not np.array_equal(first, other)
    sorted_probabilities = np.sort(probabilities[first], axis=1)
    assert (np.diff(sorted_probabilities[:, -1] - sorted_probabilities[:, -2]) >= 0).all()


def test_the_text_nearest_to_each_center_is_selected():
    # Two clusters on a line; the weight moves the center of the second one.
    vectors = np.array([[0.0], [0.4], [1.0], [10.0], [11.0], [12.0]], np.float32)
    for weights, expected in (([1, 1, 1, 1, 1, 1], {1, 4}), ([1, 1, 1, 1, 1, 9], {1, 5})):
        assert set(nearest_to_centers(vectors, np.array(weights, float), 2, 0).tolist()) == expected
