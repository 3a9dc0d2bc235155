import tensorflow as tf

from training.speed.profile import _kind, operation_seconds


def test_operations_are_summed_by_kind():
    @tf.function(autograph=False)
    def job():
        square = tf.ones([64, 64])
        return tf.nn.softmax(tf.linalg.matmul(square, square * tf.random.uniform([])))

    job()
    seconds = operation_seconds(job)
    assert {"MatMul", "Softmax"} <= seconds.keys()
    assert all(value >= 0 for value in seconds.values())


def test_other_events_are_ignored():
    assert _kind("model/block_0/MatMul:_MklMatMul") == "MatMul"
    assert _kind("a/b:BatchMatMulV2") == "BatchMatMul"
    for name in (
        "EagerLocalExecute: __inference_step",
        "Iterator::Root::Prefetch",
        "ParallelFor",
        "KernelAndDeviceFunc::Run",
    ):
        assert _kind(name) is None
