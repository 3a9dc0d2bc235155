import tensorflow as tf

from training.speed.profile import _kind, op_times


def test_operations_are_told_by_their_kind():
    @tf.function(autograph=False)
    def job():
        square = tf.ones([64, 64])
        return tf.nn.softmax(tf.linalg.matmul(square, square * tf.random.uniform([])))

    job()
    seconds = op_times(job)
    assert {"MatMul", "Softmax"} <= seconds.keys()
    assert all(value >= 0 for value in seconds.values())


def test_what_is_no_operation_counts_for_nothing():
    assert _kind("model/block_0/MatMul:_MklMatMul") == "MatMul"
    assert _kind("a/b:BatchMatMulV2") == "BatchMatMul"
    for name in (
        "EagerLocalExecute: __inference_step",
        "Iterator::Root::Prefetch",
        "ParallelFor",
        "KernelAndDeviceFunc::Run",
    ):
        assert _kind(name) is None
