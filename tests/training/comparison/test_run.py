from training.comparison.run import select_best
from training.comparison.scoring import epoch_times


def test_the_best_validation_score_wins_and_the_first_of_equals():
    tries = [
        {"rate": rate, "validation": value, "answers": [place]}
        for place, (rate, value) in enumerate([(0.1, 0.5), (0.2, 0.7), (0.3, 0.7), (0.4, 0.6)])
    ]
    found = select_best(tries)
    assert (found["rate"], found["answers"]) == (0.2, [1])
    assert [each["rate"] for each in found["tries"]] == [0.1, 0.2, 0.3, 0.4]
    assert not any("answers" in each for each in found["tries"])


def test_epoch_times_are_medians():
    history = [{"tokens_per_second": speed} for speed in (10, 1000, 100)]
    assert epoch_times(history, 500) == {"seconds_per_epoch": 5.0}
    history[2]["tokens_per_cpu_second"] = 250
    assert epoch_times(history, 500)["cpu_seconds_per_epoch"] == 2.0
    assert epoch_times([], 500) == {}
