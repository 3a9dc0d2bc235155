from training.speed.table import operation_cells, result_cells

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
