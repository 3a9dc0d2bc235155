"""Long texts through the commands: trained with a window, saved, exported; and a batch that cannot fit."""

from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from export.huggingface import main as huggingface
from export.onnx.write import write_onnx
from export.tflite.write import write_tflite
from export.verify import main as verify
from kmha.bundle.bundle import Bundle
from kmha.layers.attention_parts import LONG_FROM, blocks_from
from tests.bundles import TEXTS, make_bundle
from tests.command_runs import NO_DROPOUT, TINY, call, news_rows, refused, write_csv
from training.fit import main as fit
from training.runtime import memory_estimate

WINDOW: dict[str, Any] = {"attention_window": 2, "attention_globals": 1}
# A graph has no static lengths, so that the maximum length decides: these texts are computed in blocks.
FLAGS = [*TINY, *NO_DROPOUT, "--no-baseline", f"--text.max-length={LONG_FROM}", "--train.epochs=1"]


@pytest.fixture(scope="module")
def rows(tmp_path_factory):
    return write_csv(tmp_path_factory.mktemp("rows") / "train.csv", news_rows(30, seed=1))


@pytest.mark.second
@pytest.mark.parametrize("window", [[], ["--encoder.attention-window=3", "--encoder.attention-globals=2"]])
def test_predictions_for_long_texts_are_equal_in_blocks_and_over_all_pairs(rows, tmp_path, window):
    done = call(fit, f"--data.train={rows}", *FLAGS, *window, "--out", tmp_path / "run")
    assert done.status == 0, done.err
    bundle = Bundle.load(tmp_path / "run")
    config = bundle.model.encoder_config
    assert (config.attention_window, config.attention_globals) == ((3, 2) if window else (None, 1))
    texts = [text for text, _ in news_rows(5, seed=2)]
    features = bundle.preprocessor(texts)
    outputs = []
    for length in (1, None):
        with blocks_from(length):
            outputs.append(bundle.model(features, training=False).numpy())
    np.testing.assert_allclose(*outputs, atol=1e-5)
    np.testing.assert_allclose(bundle.probabilities(texts), bundle.model.probabilities(outputs[0]), atol=1e-5)


def test_a_batch_larger_than_memory_is_refused_in_one_line_without_output(rows, tmp_path, monkeypatch):
    monkeypatch.setattr("training.engine.trainer.available_bytes", lambda: 1_000_000)
    assert memory_estimate.available_bytes() != 1_000_000
    done = call(fit, f"--data.train={rows}", *FLAGS, "--out", tmp_path / "run")
    assert done.status == 2
    message = done.err.splitlines()[-1]
    assert message.startswith(
        "error: --train.batch-tokens: expected batches that fit into 1,000,000 bytes of free memory, got"
    )
    assert not (tmp_path / "run").exists()


@pytest.mark.second
def test_every_export_of_a_run_with_a_window_passes_verify(tmp_path):
    bundle = make_bundle(**WINDOW, num_layers=2)
    bundle.save(tmp_path / "run")
    labels = [prediction["label"] for prediction in bundle.predict(TEXTS)]
    assert not np.allclose(
        bundle.probabilities(TEXTS), make_bundle(num_layers=2).probabilities(TEXTS), atol=1e-4
    )
    data = write_csv(tmp_path / "rows.csv", list(zip(TEXTS, labels, strict=True)))
    write_tflite(bundle, tmp_path / "a.tflite", [None], "none")
    write_onnx(bundle, tmp_path / "a.onnx")
    outcome = call(verify, tmp_path / "run", tmp_path / "a.tflite", tmp_path / "a.onnx", "--data", data)
    assert outcome.status == 0, outcome.err


def test_export_to_bert_refuses_an_attention_window(tmp_path):
    make_bundle(**WINDOW, norm="post", ngram_buckets=0).save(tmp_path / "run")
    message = refused(tmp_path, huggingface, str(tmp_path / "run"), str(tmp_path / "out"))
    assert "attention_window must be none, got 2" in message


def test_an_export_for_long_texts_computes_in_blocks_with_standard_ops():
    from export.graph import ids_function, ids_specs

    bundle = make_bundle(**WINDOW)
    plain = make_bundle()
    for each, loops in ((plain, 2), (bundle, 0)):
        with blocks_from(1):
            graph = ids_function(each).get_concrete_function(*ids_specs(each)).graph
        ops = [op.type for op in graph.get_operations()]
        functions = [f for f in graph.as_graph_def().library.function]
        inner = [node.op for function in functions for node in function.node_def]
        assert not [name for name in (*ops, *inner) if name.startswith("Xla")]
        assert sum(name in ("While", "StatelessWhile") for name in (*ops, *inner)) == loops
    assert tf.executing_eagerly()
