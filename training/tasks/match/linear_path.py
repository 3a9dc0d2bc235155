"""Fits the linear path of a matcher, and weighs it and the encoder on validation rows."""

import dataclasses
import functools
import itertools
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import scipy.sparse
import tensorflow as tf
from scipy.optimize import nnls

from kmha.inference.batching import graph_function
from kmha.layers.embedding import FINGERPRINT_MODULUS
from kmha.layers.linear_ngrams import packed_keys
from kmha.layers.linear_pairs import PARTS, LinearPairs, pair_keys
from kmha.layers.trigrams import SIZE, TokenTrigrams
from kmha.models.encoder import SPECIAL_FROM_UNKNOWN
from kmha.models.matcher import TextMatcher
from kmha.text.vocabulary import CONTINUATION
from training.data.split import random_folds
from training.linear.ngrams import MIN_TEXTS, table_size
from training.linear.weighing import smoothed_losses, trusted_share, weigh
from training.tasks.match.initialization import BATCH_TOKENS, MOST_ROWS, SMALLEST_SPREAD, fit_linear
from training.tasks.match.overlap_network import FittedNetwork, fit_network

# C of the logistic regression, or 1 / alpha of the ridge regression of graded pairs; tried on validation rows.
PENALTIES = (0.01, 0.03, 0.1, 0.3, 1.0, 3.0)
# The standardized numbers of texts without trigrams are multiplied by this, so that one penalty fits them and marks of
# tokens, which are 0 or 1.
SCALE_WITHOUT_TRIGRAMS = 0.3
# Token ids, so many at once, whose trigrams are counted.
TRIGRAM_TOKENS = 16_384
# Words with the same first characters often mean the same.
STEM_CHARACTERS = 5
MAX_PAIRS = 50_000
# Random training rows are enough: at most so many, of which so many pairs of tokens are counted.
MAX_ROWS, MAX_COUNTED = 50_000, 10_000_000
# An approximate optimum is sufficient.
TOLERANCE = 1e-3
# For the parts of logits that a network is fitted to.
FOLDS = 5
_IDS_AND_MASKS = [tf.TensorSpec([None, None], tf.int32)] * 4


@dataclasses.dataclass(frozen=True)
class Overlap:
    """The overlap of R pairs: `LinearPairs.overlap` [R, F], and ids of tokens only in A, in both, only in B by row."""

    features: np.ndarray
    tokens: tuple[list[np.ndarray], list[np.ndarray], list[np.ndarray]]

    def unmatched(self) -> Iterator[tuple[np.ndarray, np.ndarray]]:
        """For each row all pairs of a token only in A and a token only in B, int32 [P] each."""
        for a, b in zip(self.tokens[0], self.tokens[2], strict=True):
            yield np.repeat(a, len(b)), np.tile(b, len(a))

    def swapped(self, features: np.ndarray) -> "Overlap":
        """The overlap of (b, a), with its features."""
        a, both, b = self.tokens
        return Overlap(features, (b, both, a))


@dataclasses.dataclass(frozen=True)
class PairPath:
    """A fitted linear model of pairs.

    Attributes:
        layer: The layer with its weights.
        target: "binary", "classes" or "graded".
        scaling: Mean and factor of the numbers of the overlap before the fit, float64 [F] each.
        keys: See `_known_pairs`.
        penalty: C.
        description: The model in one line.
        compares_rows: Whether the encoder's loss does, so that any number can be added to its logits.
        is_ranking: Whether binary pairs are candidates of queries whose ranking is scored.
        is_base: Whether it is the model to improve on, not a pretrained encoder.
        network: A network that joins its logits and those of the layer; None without one.
    """

    layer: LinearPairs
    target: str
    scaling: tuple[np.ndarray, np.ndarray]
    keys: np.ndarray
    penalty: float
    description: str
    compares_rows: bool = False
    is_ranking: bool = False
    is_base: bool = True
    network: FittedNetwork | None = None

    def assign(self, model: TextMatcher, factor: float = 1.0) -> None:
        """Sets the weights of a matcher's linear path and network, with the logits multiplied by a factor."""
        assert model.linear is not None
        model.linear.set_weights(self.layer.get_weights())
        if self.network is not None:
            self.network.assign(model.network)
        model.scale_overlap(factor)

    def refit(self, parts: Sequence[Any], seed: int) -> "PairPath":
        """The path with the same features and penalty, fitted on the rows of several sources."""
        parts = [_sample(part, seed) for part in parts]
        features = scipy.sparse.vstack([self.matrix(_overlaps(self.layer, part)) for part in parts])
        values, weights = (
            np.concatenate(each) for each in zip(*((p.targets[:, 0], p.weights) for p in parts), strict=True)
        )
        return self.fitted(features, values, weights, self.penalty)[0]

    def fitted(
        self, features: Any, values: np.ndarray, weights: np.ndarray, penalty: float
    ) -> tuple["PairPath", np.ndarray, np.ndarray]:
        """The path fitted on features [R, F + 3 V + K], and its kernel and bias for such features."""
        layer = LinearPairs(**_shape_of(self.layer))
        layer.build((None, None))
        kernel, bias = fit_linear(
            features, values, self.target, layer.num_labels, penalty, TOLERANCE, weights
        )
        mean, scale = self.scaling
        overlap, *tokens, pairs = np.split(kernel, self.ends)
        layer.set_weights(self.layer.get_weights())
        layer.kernel.assign(overlap * scale[:, None])
        layer.bias.assign(bias - (mean * scale) @ overlap)
        layer.tokens.embeddings.assign(np.concatenate(tokens, axis=1))
        layer.pairs.embeddings.assign(np.concatenate([np.zeros((1, len(bias))), pairs]))
        return dataclasses.replace(self, layer=layer, penalty=penalty), kernel, bias

    @property
    def ends(self) -> np.ndarray:
        """Where the columns of each part of `matrix` end, except the last; see the parts of `LinearPairs`."""
        return np.cumsum([len(self.scaling[0]), *[self.layer.vocabulary_size] * 3])

    def matrix(self, orders: list[Overlap]) -> scipy.sparse.csr_matrix:
        """The features of rows from their overlap; of a symmetric model the mean of both orders."""
        each = [
            _matrix(order, *self.scaling, self.keys, self.layer.slots, self.layer.vocabulary_size)
            for order in orders
        ]
        return sum(each[1:], each[0]) / len(each)

    def weigh(self, linear: np.ndarray, encoder: np.ndarray, targets: np.ndarray) -> tuple[float, ...]:
        """The factors of logits of both paths, [R, C], and the bias; see `weigh_pairs`."""
        shift = float(linear.mean() - encoder.mean()) if self.compares_rows else 0.0
        base, added = (linear, encoder + shift) if self.is_base else (encoder + shift, linear)
        *factors, bias = self._factors(base, added, targets)
        of_linear, of_encoder = factors if self.is_base else factors[::-1]
        return of_linear, of_encoder, bias + of_encoder * shift

    def _factors(
        self, base: np.ndarray, added: np.ndarray, targets: np.ndarray
    ) -> tuple[float, float, float]:
        queries = targets[:, 1].astype(np.int64) if self.is_ranking else None
        return weigh_pairs(base, added, targets[:, 0], self.target, queries)

    def logits(self, source: Any) -> np.ndarray:
        """float32 [R, C]."""
        features, parts = self.parts(source)
        return parts.sum(axis=1) if self.network is None else self.network.logits(features, parts)

    def linear_logits(self, source: Any) -> np.ndarray:
        """Those without the network, float32 [R, C]."""
        return self.parts(source)[1].sum(axis=1)

    def parts(self, source: Any) -> tuple[np.ndarray, np.ndarray]:
        """What `LinearPairs` returns for rows with `return_parts`, float32 [R, F] and [R, PARTS, C]."""
        features = np.zeros((len(source.rows), self.layer.num_features), np.float32)
        parts = np.zeros((len(source.rows), PARTS, self.layer.num_labels), np.float32)
        call = functools.partial(self.layer, return_parts=True)
        compute = graph_function(call, *_IDS_AND_MASKS)
        for rows, inputs in _batches(source):
            features[rows], parts[rows] = (each.numpy() for each in compute(*inputs))
        return features, parts

    def out_of_fold_parts(self, matrix: Any, rows: Any, seed: int) -> np.ndarray:
        """The parts of each row's logits by a linear model that was not fitted on it, float64 [R, PARTS, C].

        Args:
            matrix: See `matrix`.
            rows: The rows, a `PairSource` of two queries or more; those of a query are in one fold.
            seed: Random seed.
        """
        values, outputs = rows.targets[:, 0], self.layer.num_labels
        folds = random_folds(rows.targets[:, 1], FOLDS, [seed, 29])
        columns = list(itertools.pairwise([0, *self.ends, matrix.shape[1]]))
        found = np.zeros((matrix.shape[0], PARTS, outputs))
        for fold in np.unique(folds):
            others, own = folds != fold, folds == fold
            kernel, bias = fit_linear(
                matrix[others],
                values[others],
                self.target,
                outputs,
                self.penalty,
                TOLERANCE,
                rows.weights[others],
            )
            for part, (start, end) in enumerate(columns):
                found[own, part] = matrix[own, start:end] @ kernel[start:end]
            found[own, 0] += bias
        return found

    def with_network(
        self, matrix: Any, features: np.ndarray, rows: Any, validation: Any, seed: int
    ) -> "PairPath":
        """The path with a network fitted on training rows, if the validation loss falls; see `weigh_pairs`.

        The candidates of a query stay in one fold, so a single query has no network.

        Args:
            matrix: See `matrix`, of the training rows.
            features: Overlap features of the training rows, float64 [R, F].
            rows: The training rows, a `PairSource`.
            validation: The validation rows.
            seed: Random seed.
        """
        if len(np.unique(rows.targets[:, 1])) < 2:
            return self
        parts = self.out_of_fold_parts(matrix, rows, seed)
        network = fit_network(features, parts, rows.targets[:, 0], rows.weights, self.target, seed)
        if network is None:
            return self
        checked, targets = self.parts(validation), validation.targets
        linear, added = checked[1].sum(axis=1), network.logits(*checked)
        path_factor, network_factor, bias = self._factors(linear, added, targets)
        if not network_factor:
            return self
        network = network.scaled(path_factor, network_factor, bias)
        loss = float(_losses(network.logits(*checked), targets[:, 0], self.target).mean())
        description = f"{self.description}, {loss:.3f} with a network of {network.units} units"
        return dataclasses.replace(self, network=network, description=description)


def fit_pair_path(
    train: Any,
    validation: Any,
    target: str,
    outputs: int,
    part: Any,
    symmetric: bool,
    seed: int,
    is_ranking: bool = False,
) -> PairPath | None:
    """Fits a linear model of the overlap; the penalty is chosen on validation rows. None without two labels.

    Args:
        train: The training rows, a `PairSource`.
        validation: The validation rows.
        target: "binary", "classes" or "graded".
        outputs: Number of outputs.
        part: The preprocessor of the first granularity.
        symmetric: Whether the order of the texts does not count.
        seed: Random seed.
        is_ranking: See `PairPath`.
    """
    rows = _sample(train, seed)
    values = rows.targets[:, 0]
    if len(np.unique(values)) < 2:
        return None
    tables = _token_trigrams(part.vocabulary.tokens)
    config = {
        "num_labels": outputs,
        "vocabulary_size": len(part.vocabulary),
        "first_id": part.unknown_id + SPECIAL_FROM_UNKNOWN,
        "symmetric": symmetric,
        "trigrams": 0 if tables is None else tables.inside.shape[1],
    }
    statistics = LinearPairs(**config)
    statistics.build((None, None))
    _count_tokens(statistics, train, part.vocabulary.tokens)
    if tables is not None:
        _count_trigrams(statistics, tables, train)
    orders, checked_orders = (_overlaps(statistics, each) for each in (rows, validation))
    keys, slots = _known_pairs(orders, len(part.vocabulary))
    layer = LinearPairs(**config, rows=len(keys), slots=slots)
    layer.build((None, None))
    for name in ("idf", "stems", "is_number", "continues", "idf_of_unknown", "mean_length"):
        getattr(layer, name).assign(getattr(statistics, name))
    if tables is not None and layer.spelling is not None:
        layer.spelling.assign(tables)
        layer.trigram_weights.assign(statistics.trigram_weights)
    used, fingerprints = np.divmod(keys, FINGERPRINT_MODULUS)
    layer.packed.assign(packed_keys(slots, used, fingerprints, np.arange(1, len(keys) + 1)))
    numbers = np.mean([each.features for each in orders], axis=0)
    factor = SCALE_WITHOUT_TRIGRAMS if tables is None else 1.0
    scale = factor / np.maximum(numbers.std(axis=0), SMALLEST_SPREAD)
    scaling = numbers.mean(axis=0), scale
    unfitted = PairPath(layer, target, scaling, keys, 0.0, "", is_ranking=is_ranking)
    matrix, checked = (unfitted.matrix(each) for each in (orders, checked_orders))
    tried = []
    for penalty in PENALTIES:
        path, kernel, bias = unfitted.fitted(matrix, values, rows.weights, penalty)
        loss = float(_losses(checked @ kernel + bias, validation.targets[:, 0], target).mean())
        tried.append((loss, path))
    loss, path = min(tried, key=lambda each: each[0])
    kind, spelling = "ridge" if target == "graded" else "logistic", "" if tables is None else "trigrams, "
    description = (
        f"{kind} regression on overlap, {spelling}tokens and {len(keys):,} pairs of tokens, C {path.penalty:g},"
        f" validation loss {loss:.3f}"
    )
    path = dataclasses.replace(path, description=description)
    return path.with_network(matrix, numbers, rows, validation, seed)


def _sample(source: Any, seed: int) -> Any:
    """The rows to fit on: all, or `MAX_ROWS` random ones."""
    chosen = np.arange(len(source.rows))
    if len(chosen) > MAX_ROWS:
        chosen = np.sort(np.random.default_rng([seed, 19]).choice(len(chosen), MAX_ROWS, replace=False))
    values = {name: getattr(source, name)[chosen] for name in ("rows", "targets", "weights")}
    return dataclasses.replace(source, **values, lists=None)


def _shape_of(layer: LinearPairs) -> dict[str, Any]:
    names = ("num_labels", "vocabulary_size", "first_id", "rows", "slots", "symmetric", "trigrams")
    return {name: getattr(layer, name) for name in names}


def weigh_pairs(
    base: np.ndarray, added: np.ndarray, values: np.ndarray, target: str, queries: np.ndarray | None = None
) -> tuple[float, float, float]:
    """The factors, at least 0, of two logits [R, C], and a bias that only graded pairs have.

    For binary pairs, those of `queries`, int [R], too, and classes see `weigh`. A bias that is fitted to a few hundred
    rows would mostly be noise. For graded pairs the squared error is lowest, and the factors lie between those and the
    ones of the base alone; see `trusted_share`.
    """
    if target == "graded":
        both = np.concatenate([base, added], axis=1).astype(np.float64)
        mean = both.mean(axis=0)

        def fitted(columns: int, factor: float) -> np.ndarray:
            # Two more rows have this factor, so that a few rows, or equal values, do not decide alone.
            prior = np.sqrt(2 * both.var()) * np.eye(columns)
            rows = np.concatenate([(both - mean)[:, :columns], prior])
            found, _ = nnls(rows, np.concatenate([values - values.mean(), factor * prior.sum(axis=1)]))
            return np.pad(found, (0, 2 - columns))

        def errors(factors: np.ndarray) -> np.ndarray:
            return ((both - mean) @ factors - (values - values.mean())) ** 2

        joined, alone = fitted(2, 0.5), fitted(1, 1.0)
        share = trusted_share(errors(alone) - errors(joined))
        factors = share * joined + (1 - share) * alone
        return float(factors[0]), float(factors[1]), float(values.mean() - mean @ factors)
    if target == "binary":
        base, added, values = _two_classes(base), _two_classes(added), values > 0
    return (*weigh(base, added, values.astype(np.int64), queries), 0.0)


def _losses(logits: np.ndarray, values: np.ndarray, target: str) -> np.ndarray:
    """Cross-entropy of smoothed targets, float64 [R]; of graded pairs the squared error."""
    if target == "graded":
        return (logits[:, 0] - values) ** 2
    if target == "binary":
        logits, values = _two_classes(logits), values > 0
    return smoothed_losses(logits, values.astype(np.int64))


def _two_classes(logits: np.ndarray) -> np.ndarray:
    """Logits [R, 2] of wrong and right pairs from those of right ones, [R, 1]."""
    return np.concatenate([np.zeros_like(logits), logits], axis=1)


def _batches(source: Any) -> Iterator[tuple[np.ndarray, list[np.ndarray]]]:
    """The rows of each batch, and ids and mask of both texts at the first granularity."""
    # Without filler rows.
    source = dataclasses.replace(source, lists=None, full_shapes=False, divisor=1)
    names = source.feature_names[:4]
    for plan in source.plans(source.buckets([]), BATCH_TOKENS, MOST_ROWS, rng=None):
        features = source.batch(plan)["features"]
        yield plan.rows, [features[name] for name in names]


def _count_tokens(layer: LinearPairs, source: Any, tokens: Any) -> None:
    """Sets inverse document frequency, stem and kind of each token, and the mean length, of the distinct texts."""
    counts, texts, words = np.zeros(layer.vocabulary_size), 0, 0
    continues = np.array([token.startswith(CONTINUATION) for token in tokens])
    for ids in source.different_ids(0):
        is_token = ids >= layer.first_id
        continued = np.pad(continues[ids] & is_token, ((0, 0), (0, 1)))
        # Words of one token.
        row, column = np.nonzero(is_token & ~continued[:, :-1] & ~continued[:, 1:])
        once = np.unique(row * layer.vocabulary_size + ids[row, column]) % layer.vocabulary_size
        counts += np.bincount(once, minlength=layer.vocabulary_size)
        texts, words = texts + len(ids), words + (is_token & ~continued[:, 1:]).sum()
    layer.continues.assign(continues)
    layer.idf_of_unknown.assign(1 + np.log(texts + 1))
    layer.idf.assign(1 + np.log((texts + 1) / (counts + 1)))
    layer.mean_length.assign(max(1.0, words / max(texts, 1)))
    first: dict[str, int] = {}
    layer.stems.assign(
        [first.setdefault(token[:STEM_CHARACTERS], number) for number, token in enumerate(tokens)]
    )
    layer.is_number.assign([any(map(str.isdigit, token)) for token in tokens])


def _token_trigrams(tokens: Sequence[str]) -> TokenTrigrams | None:
    """The trigrams of the vocabulary; None if most words are shorter, as the characters of Chinese are."""
    parts = [token.removeprefix(CONTINUATION) or token for token in tokens]
    of_long_words = [len(part) >= SIZE or part != token for part, token in zip(parts, tokens, strict=True)]
    return TokenTrigrams.of(parts) if np.mean(of_long_words) > 0.5 else None


def _count_trigrams(layer: LinearPairs, tables: TokenTrigrams, source: Any) -> None:
    """Sets the tables of trigrams, and the square of the inverse document frequency of each in the distinct texts."""
    assert layer.spelling is not None
    layer.spelling.assign(tables)
    compute = graph_function(layer.text_trigrams, *_IDS_AND_MASKS[:2])
    counts, texts = np.zeros(layer.trigram_weights.shape), 0
    for ids in source.different_ids(0):
        rows = max(1, TRIGRAM_TOKENS // ids.shape[1])
        for first in range(0, len(ids), rows):
            part = ids[first : first + rows]
            # Padding is a special token.
            counts += compute(part, np.ones_like(part)).numpy().sum(axis=0)
        texts += len(ids)
    layer.trigram_weights.assign((1 + np.log((texts + 1) / (counts + 1))) ** 2)


def _overlaps(layer: LinearPairs, source: Any) -> list[Overlap]:
    """The overlap of the rows; of a symmetric model in both orders."""
    total = len(source.rows)
    compute = graph_function(layer.overlap, *_IDS_AND_MASKS)
    features = [np.zeros((total, layer.kernel.shape[0])) for _ in range(1 + layer.symmetric)]
    tokens: Any = tuple([np.zeros(0, np.int32)] * total for _ in range(3))
    for rows, (ids_a, mask_a, ids_b, mask_b) in _batches(source):
        found, *marks = compute(ids_a, mask_a, ids_b, mask_b)
        features[0][rows] = found.numpy()
        if layer.symmetric:
            features[1][rows] = compute(ids_b, mask_b, ids_a, mask_a)[0].numpy()
        for own, ids, mark in zip(tokens, (ids_a, ids_a, ids_b), marks, strict=True):
            for row, values, used in zip(rows, ids, mark.numpy() > 0.5, strict=True):
                own[row] = values[used]
    overlap = Overlap(features[0], tokens)
    return [overlap, *map(overlap.swapped, features[1:])]


def _known_pairs(orders: list[Overlap], vocabulary_size: int) -> tuple[np.ndarray, int]:
    """The keys of the most frequent pairs of unmatched tokens, int64 [K] ascending, and the size of their hash table.

    A key is slot * FINGERPRINT_MODULUS + fingerprint.
    """
    codes, counted = [np.zeros(0, np.int64)], 0
    for order in orders:
        for a, b in order.unmatched():
            if counted >= MAX_COUNTED:
                break
            codes.append(a.astype(np.int64) * vocabulary_size + b)
            counted += len(a)
    found, counts = np.unique(np.concatenate(codes), return_counts=True)
    chosen = np.argsort(-counts, kind="stable")[:MAX_PAIRS]
    found = found[chosen[counts[chosen] >= MIN_TEXTS]]
    if not len(found):
        return np.zeros(0, np.int64), 1
    slots = table_size(4 * len(found))
    keys = _keys(found // vocabulary_size, found % vocabulary_size, slots)
    # Of the pairs of a slot, the most frequent one is known.
    _, first = np.unique(keys // FINGERPRINT_MODULUS, return_index=True)
    return keys[first], slots


def _keys(ids_a: np.ndarray, ids_b: np.ndarray, slots: int) -> np.ndarray:
    slot, fingerprint = (
        np.asarray(each) for each in pair_keys(ids_a.astype(np.int32), ids_b.astype(np.int32), slots)
    )
    return slot.astype(np.int64) * FINGERPRINT_MODULUS + fingerprint


def _matrix(
    overlap: Overlap,
    mean: np.ndarray,
    scale: np.ndarray,
    keys: np.ndarray,
    slots: int,
    vocabulary_size: int,
) -> scipy.sparse.csr_matrix:
    """Features, tokens only in A, in both and only in B, and known pairs of each row.

    Returns:
        Sparse float64 [R, F + 3 V + K].
    """
    parts = [scipy.sparse.csr_matrix((overlap.features - mean) * scale)]
    for tokens in overlap.tokens:
        parts.append(_marks(tokens, vocabulary_size))
    pairs = []
    for a, b in overlap.unmatched():
        found = _keys(a, b, slots)
        place = np.minimum(np.searchsorted(keys, found), max(len(keys) - 1, 0))
        pairs.append(place[keys[place] == found] if len(keys) else place[:0])
    parts.append(_marks(pairs, len(keys)))
    return scipy.sparse.hstack(parts, format="csr")


def _marks(columns: list[np.ndarray], width: int) -> scipy.sparse.csr_matrix:
    """1 in these columns of each row, sparse float64 [R, width]."""
    starts = np.cumsum([0, *map(len, columns)])
    flat = np.concatenate([np.zeros(0, np.int64), *columns])
    return scipy.sparse.csr_matrix((np.ones(len(flat)), flat, starts), (len(columns), width))
