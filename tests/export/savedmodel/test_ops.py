import pytest
import tensorflow as tf
from tensorflow.core.protobuf import saved_model_pb2

from export.savedmodel.write import write_savedmodel
from tests.bundles import make_bundle
from tests.export.conftest import BUNDLES
from tests.stages import with_stages

# The official server links these two among the ops of tensorflow-text: SUPPORTED_TENSORFLOW_OPS in
# tensorflow_serving/model_servers/BUILD names @org_tensorflow_text//tensorflow_text:ops_lib, and that target in
# tensorflow_text/BUILD lists fast_bert_normalizer_cc and fast_wordpiece_tokenizer_cc.
TEXT_OPS = {"FastBertNormalize", "FastWordpieceTokenizeWithOffsets"}
# Core ops that run a Python function, or another process's: a server has neither.
NOT_SERVED = {"PyFunc", "PyFuncStateless", "EagerPyFunc", "RemoteCall"}
# Marks a function that XLA compiles.
COMPILED = "_XlaMustCompile"


def graph_of(folder):
    saved = saved_model_pb2.SavedModel.FromString((folder / "saved_model.pb").read_bytes())
    (meta_graph,) = saved.meta_graphs
    return meta_graph.graph_def


def ops_of(graph) -> set[str]:
    """All ops of a graph and of every function in its library."""
    functions = [function.node_def for function in graph.library.function]
    return {node.op for nodes in [graph.node, *functions] for node in nodes}


def is_core(op: str) -> bool:
    return hasattr(tf.raw_ops, op) and op not in NOT_SERVED


def check(folder) -> None:
    graph = graph_of(folder)
    functions = {function.signature.name for function in graph.library.function}
    foreign = {op for op in ops_of(graph) if not is_core(op)} - functions
    assert foreign <= TEXT_OPS
    assert "FastBertNormalize" in foreign


@pytest.mark.parametrize("kind", BUNDLES)
def test_a_stock_server_has_every_op(served, kind):
    check(served[kind])


@pytest.mark.parametrize("tokenization", with_stages(["char", "word"], ["char"]))
@pytest.mark.parametrize("positions", ["rotary"])
def test_a_stock_server_has_every_op_of_other_models(tmp_path, tokenization, positions):
    bundle = make_bundle(tokenization=tokenization, positions=positions, norm="post", num_layers=2)
    check(write_savedmodel(bundle, tmp_path / "served", xla=True))


def test_only_the_compiled_signature_uses_xla(served):
    functions = graph_of(served["one label"]).library.function
    compiled = [function for function in functions if function.attr[COMPILED].b]
    assert len(compiled) == 1
    assert not ops_of(tf.compat.v1.GraphDef(node=compiled[0].node_def)) & TEXT_OPS


def test_the_check_finds_python_functions(tmp_path):
    @tf.function(input_signature=[tf.TensorSpec([None])])
    def predict(values):
        return tf.numpy_function(lambda v: v, [values], tf.float32)

    module = tf.Module()
    module.predict = predict  # pyright: ignore
    tf.saved_model.save(module, str(tmp_path / "1"))
    assert {op for op in ops_of(graph_of(tmp_path / "1")) if not is_core(op)} & NOT_SERVED
