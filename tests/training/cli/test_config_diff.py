from training.cli.config_diff import differences


def test_equal_settings():
    assert differences({"a": 1, "b": {"c": [1]}}, {"b": {"c": [1]}, "a": 1}) == ""


def test_all_that_differ_are_named_as_flags():
    began = {"text": {"max_length": 8, "same": 1}, "seed": 0, "gone": True}
    now = {"text": {"max_length": 9, "same": 1}, "seed": 0, "new": "x"}
    assert differences(began, now) == (
        "--text.max-length 8, got 9; --gone True, got unset; --new unset, got x"
    )


def test_some_may_differ():
    assert differences({"a": {"b": 1}, "c": 1}, {"a": {"b": 2}, "c": 2}, ["a.b"]) == "--c 1, got 2"
