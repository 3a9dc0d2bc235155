"""Hashes of words from the ids of their characters, which are 1 + code point; 0 = no character."""

from keras import ops

LONGEST_AFFIX = 4
# Capitals, first and last code point, and how far behind them their small letters stand.
CAPITALS = ((65, 90, 32), (192, 214, 32), (216, 222, 32), (913, 937, 32), (1024, 1039, 80), (1040, 1071, 32))
DIGITS, SMALL, LETTERS_FROM = (48, 57), (97, 122), 170
# Below it stays what a place, or a hash before, is multiplied by: sums of products fit into int32.
_PRIME = 8191
# What the runs of a shape weigh in its hash; later ones weigh as much as the last.
_RUN_WEIGHTS = (31, 1009, 4903, 7001, 3571, 5689)


def _between(ids, first: int, last: int):
    return ops.logical_and(ids > first, ids <= last + 1)


def lowered(character_ids):
    """The same ids with small letters for the capitals of Latin, Greek and Cyrillic, int32 [N, L]."""
    low = character_ids
    for first, last, distance in CAPITALS:
        low = ops.where(_between(character_ids, first, last), character_ids + distance, low)
    return low


def affix_buckets(character_ids, buckets: int):
    """Buckets of how words begin and end: of their first and last 1 to 4 characters.

    Args:
        character_ids: int32 [N, L], L at least 4; 0 = no character, only behind the word.
        buckets: At most 2^16, so that int32 cannot overflow.

    Returns:
        int32 [N, 8] in [0, buckets).
    """
    length = ops.shape(character_ids)[1]
    count = ops.sum(ops.cast(character_ids > 0, "int32"), axis=1, keepdims=True)  # [N, 1]
    places = ops.expand_dims(ops.arange(length, dtype="int32"), 0)
    found = []
    for step in (1, -1):
        hashed = ops.zeros_like(count[:, 0])
        for number in range(LONGEST_AFFIX):
            place = number if step > 0 else count - 1 - number
            # A place before the word holds no character.
            taken = ops.sum(ops.where(places == place, character_ids, 0), axis=1)
            hashed = (hashed * _PRIME + taken + 1) % buckets
            # So that "a" as a beginning is not "a" as an end.
            found.append((hashed * _PRIME + step + 1) % buckets)
    return ops.stack(found, axis=1)


def whole_bucket(character_ids, buckets: int):
    """The bucket of a word as a whole.

    Args:
        character_ids: int32 [N, L], below 2^12, L at most 64; 0 = no character.
        buckets: How many.

    Returns:
        int32 [N] in [0, buckets).
    """
    places = ops.arange(ops.shape(character_ids)[1], dtype="int32")
    weights = (places * places * 613 + places * 1297 + 4801) % _PRIME
    return ops.sum(character_ids * weights, axis=1) % buckets


def shape_bucket(character_ids, buckets: int):
    """The bucket of a word's shape: capitals, other letters and digits are each one kind, runs of a kind count once.

    Args:
        character_ids: int32 [N, L], below 2^12, L at most 64; 0 = no character, only behind the word.
        buckets: How many.

    Returns:
        int32 [N] in [0, buckets); the same for "Anna" and "Bo".
    """
    ids = character_ids
    capital = ops.not_equal(lowered(ids), ids)
    letter = ops.logical_or(_between(ids, *SMALL), ids > LETTERS_FROM)
    kind = ops.where(letter, 2, ops.where(_between(ids, *DIGITS), 3, ids + 4))
    kind = ops.where(ids > 0, ops.where(capital, 1, kind), 0)
    before = ops.pad(kind, ((0, 0), (1, 0)))[:, :-1]
    first = ops.cast(ops.not_equal(kind, before), "int32")  # of a run
    run = ops.minimum(ops.cumsum(first, axis=1), len(_RUN_WEIGHTS)) - 1
    weights = sum(
        weight * ops.cast(ops.equal(run, place), "int32") for place, weight in enumerate(_RUN_WEIGHTS)
    )
    # Other than a whole word's bucket of the same number.
    return (ops.sum(kind * first * weights, axis=1) + 17_011) % buckets
