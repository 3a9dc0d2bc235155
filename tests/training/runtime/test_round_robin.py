from training.runtime.round_robin import round_order, time_in_turns


def test_each_round_starts_with_the_next_candidate():
    assert [round_order(["a", "b", "c"], number)[0] for number in range(4)] == ["a", "b", "c", "a"]
    assert round_order(["a", "b", "c"], 2) == ["c", "a", "b"]
    assert round_order([], 1) == []


def test_the_fastest_repeat_of_each_turn_counts():
    now, order = [0.0], []

    def call(name, costs):
        costs = iter(costs)

        def run():
            order.append(name)
            now[0] += next(costs)

        return run

    calls = {"a": [call("a", [9, 2, 3, 9, 5, 4])], "b": [call("b", [1] * 6)], "c": [None]}
    found = time_in_turns(calls, 2, warm_ups=1, repeats=2, clock=lambda: now[0])
    assert found == {"a": [[2, 4]], "b": [[1, 1]], "c": [[]]}
    assert "".join(order) == "aaabbb" + "bbbaaa"
