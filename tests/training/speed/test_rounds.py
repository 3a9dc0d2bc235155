import pytest

from training.io.json_subprocess import Crashed
from training.speed.flops import step_flops
from training.speed.rounds import KMHA, Trainer, operation_cells, result_cells, run_rounds, summarize

SIZES = {"hidden_dim": 4, "intermediate_dim": 8, "num_layers": 1}
OURS, THEIRS, HALF = Trainer(KMHA, "float32"), Trainer("torch", "float32"), Trainer(KMHA, "bfloat16")


class FakeWorker:
    """Reports `seconds` per step of one row of 8 tokens, of which 4 are real; may crash in a turn."""

    def __init__(self, name, calls, seconds=1.0, crashes_at=None):
        self.name, self.calls, self.seconds, self.crashes_at, self.turns = name, calls, seconds, crashes_at, 0

    def request(self, **request):
        self.turns += 1
        self.calls.append(self.name)
        if self.turns == self.crashes_at:
            raise Crashed("its process was killed by signal 9, saying nothing")
        steps = request["steps"]
        seconds = self.seconds * steps
        return {
            "seconds": seconds,
            "cpu_seconds": 2 * seconds,
            "shapes": [(1, 8)] * steps,
            "tokens": 4 * steps,
        }


class Matmuls:
    def request(self, **request):
        return {"flops_per_second": 1e6}


def run(workers, rounds=3):
    lines = []
    measurements, speeds = run_rounds(workers, {"float32": Matmuls()}, SIZES, rounds, 5, lines.append)
    assert len(lines) == rounds
    return summarize(measurements, speeds)


def test_each_round_starts_with_another_trainer():
    calls = []
    run({learner: FakeWorker(learner.name + learner.precision[0], calls) for learner in (OURS, HALF, THEIRS)})
    assert calls == ["kmhaf", "kmhab", "torchf"] * 2 + ["kmhab", "torchf", "kmhaf"] + [
        "torchf",
        "kmhaf",
        "kmhab",
    ]


def test_speeds_are_of_real_tokens():
    ours, half, theirs = run(
        {OURS: FakeWorker("", [], 0.5), HALF: FakeWorker("", [], 0.25), THEIRS: FakeWorker("", [], 1.5)}
    )
    assert [each["tokens_per_second"] for each in (ours, half, theirs)] == [8, 16, 3]
    assert [each["tokens_per_cpu_second"] for each in (ours, half, theirs)] == [4, 8, 1]
    assert theirs["kmha_over"] == 3 and theirs["computed_over_real"] == 2
    assert half["kmha_over"] == 1 and half["kmha_float32_over"] == 0.5
    assert ours["matmul_share"] == pytest.approx(step_flops(SIZES, [(1, 8)]) / 0.5 / 1e6, abs=1e-3)
    # No matmul speed was measured for this format.
    assert half["matmul_share"] is None


def test_crashed_trainers_are_reported():
    calls = []
    ours, theirs = run({OURS: FakeWorker("ours", calls), THEIRS: FakeWorker("theirs", calls, crashes_at=2)})
    assert calls.count("theirs") == 2 and calls.count("ours") == 4
    assert theirs == {
        "learner": "torch",
        "precision": "float32",
        "failed": "its process was killed by signal 9, saying nothing",
    }
    assert ours["tokens_per_second"] == 4


def test_without_kmha_there_is_no_ratio():
    (theirs,) = run({THEIRS: FakeWorker("", [])})
    assert theirs["kmha_over"] is None


FOUND = {
    "learner": "torch",
    "precision": "float32",
    "tokens_per_second": 1234,
    "tokens_per_cpu_second": 700,
    "kmha_over": 2.5,
    "kmha_float32_over": None,
    "computed_over_real": 1.101,
    "matmul_share": 0.456,
}


def test_failed_trainers_have_no_row():
    header, *rows = result_cells([FOUND, {"learner": "x", "precision": "y", "failed": "z"}])
    assert rows == [["torch", "float32", "1,234", "700", "2.50", "", "1.10", "46%"]]
    assert len(header) == len(rows[0])


def test_operations_are_sorted_by_share_and_others_summed():
    times = {
        "training": {"MatMul": 6.0, "Mul": 3.0, "Add": 1.0},
        "inference": {"MatMul": 1.0, "Softmax": 1.0},
    }
    assert operation_cells(times, most=2) == [
        ["operation", "training", "inference"],
        ["MatMul", "60.0%", "50.0%"],
        ["Softmax", "0.0%", "50.0%"],
        ["2 others", "40.0%", "0.0%"],
    ]
