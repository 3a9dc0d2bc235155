from training.comparison.trials import chosen, times_of_epoch


def test_validation_rows_choose_the_rate_and_of_equals_the_first():
    tries = [
        {"rate": rate, "validation": value, "answers": [place]}
        for place, (rate, value) in enumerate([(0.1, 0.5), (0.2, 0.7), (0.3, 0.7), (0.4, 0.6)])
    ]
    found = chosen(tries)
    assert (found["rate"], found["answers"]) == (0.2, [1])
    assert [each["rate"] for each in found["tries"]] == [0.1, 0.2, 0.3, 0.4]
    assert not any("answers" in each for each in found["tries"])


def test_the_middle_epoch_tells_the_time():
    history = [{"tokens_per_second": speed} for speed in (10, 1000, 100)]
    assert times_of_epoch(history, 500) == {"seconds_per_epoch": 5.0}
    history[2]["tokens_per_cpu_second"] = 250
    assert times_of_epoch(history, 500)["cpu_seconds_per_epoch"] == 2.0
    assert times_of_epoch([], 500) == {}
