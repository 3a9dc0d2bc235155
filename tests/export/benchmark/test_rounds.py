import pytest

from export.benchmark.rounds import LEAST_ROUNDS, MOST_CALLS, Job, Player, Round, jobs, play, warm
from training.io.json_subprocess import Crashed

FACTS = {"takes_texts": True, "batched": True}


class Fake:
    """A worker that answers at once, dies after some answers, and writes into a diary that all share."""

    def __init__(self, name, diary, seconds=0.001, answers=None):
        self.name, self.diary, self.seconds, self.left = name, diary, seconds, answers

    def ask(self, do, column, batch, calls=1, first=None, **_):
        if self.left == 0:
            raise Crashed(f"{self.name} is no more")
        self.left = None if self.left is None else self.left - 1
        if do == "warm":
            return {"first_seconds": self.seconds, "least_seconds": self.seconds}
        self.diary.append((self.name, column, batch, first, calls))
        return {"seconds": [self.seconds] * calls, "cpu_seconds": self.seconds}


class Clock:
    """Each look at it takes a second."""

    def __init__(self):
        self.now = 0.0

    def __call__(self):
        self.now += 1
        return self.now


def players(diary, names="abc", **facts):
    return [Player(name, name, Fake(name, diary), {**FACTS, **facts}) for name in names]


def test_everyone_answers_the_same_rows_in_every_round():
    diary = []
    all_players = players(diary)
    expected = jobs([1, 4])
    warm(all_players, expected, 0, True)
    number = play(all_players, expected, 1, rows=7, has_ids=True, clock=Clock())
    assert number > LEAST_ROUNDS
    for start in range(0, len(diary), 3):
        turn = diary[start : start + 3]
        assert {name for name, *_ in turn} == set("abc")
        assert len({asked for _, *asked in map(tuple, turn) for asked in [tuple(asked)]}) == 1
    firsts = {entry[0] for entry in diary[:: 3 * len(expected)]}
    assert firsts == set("abc"), "everyone goes first some time"


def test_rounds_go_on_through_the_rows():
    diary = []
    (player,) = players(diary, "a")
    play([player], [Job("ids", 4)], 0, rows=10, has_ids=True)
    starts, calls = [entry[3] for entry in diary], diary[0][4]
    assert starts == [number * calls * 4 % 10 for number in range(LEAST_ROUNDS)]


@pytest.mark.parametrize(("seconds", "calls"), [(0.0001, MOST_CALLS), (0.05, 2), (3, 1)])
def test_slow_models_get_fewer_calls_a_round(seconds, calls):
    diary = []
    pair = [Player(name, "", Fake(name, diary, s), FACTS) for name, s in (("fast", 1e-5), ("slow", seconds))]
    warm(pair, jobs([1]), 0, True)
    play(pair, jobs([1]), 1, rows=3, has_ids=True, clock=Clock())
    assert {entry[4] for entry in diary} == {calls}


@pytest.mark.parametrize(
    ("facts", "has_ids", "expected"),
    [
        ({}, True, {("texts", 1), ("ids", 1), ("texts", 8), ("ids", 8)}),
        ({}, False, {("texts", 1), ("texts", 8)}),
        ({"takes_texts": False}, True, {("ids", 1), ("ids", 8)}),
        ({"batched": False}, True, {("texts", 1), ("ids", 1)}),
    ],
)
def test_nobody_is_asked_what_it_cannot_do(facts, has_ids, expected):
    diary = []
    play(players(diary, "a", **facts), jobs([1, 8]), 0, rows=3, has_ids=has_ids)
    assert {(column, batch) for _, column, batch, *_ in diary} == expected


@pytest.mark.parametrize("answers", [0, 1, 3, 5])
def test_the_others_play_on_when_one_dies(answers):
    diary = []
    mortal = Player("mortal", "", Fake("mortal", diary, answers=answers), FACTS)
    other = Player("other", "", Fake("other", diary), FACTS)
    warm([mortal, other], jobs([1]), 0, True)
    play([mortal, other], jobs([1]), 0, rows=3, has_ids=True)
    assert mortal.failed == "mortal is no more"
    assert other.failed is None
    assert all(set(rounds) == set(range(LEAST_ROUNDS)) for rounds in other.rounds.values())
    assert mortal.ask(do="memory", column="", batch=0) is None


def test_one_that_never_loaded_plays_nothing():
    dead = Player("dead", "", Fake("dead", []), {}, failed="killed")
    assert not dead.plays(Job("ids", 1), True)


def test_rounds_are_kept_by_number():
    diary = []
    (player,) = players(diary, "a")
    play([player], [Job("ids", 1)], 0, rows=3, has_ids=True)
    assert player.rounds[Job("ids", 1)][1] == Round([0.001], 0.001)
