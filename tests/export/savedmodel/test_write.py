import dataclasses
import shutil
import types
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tensorflow as tf
import yaml
from google.protobuf import descriptor_pb2, descriptor_pool, message_factory, text_format, wrappers_pb2
from tensorflow_serving.apis import prediction_log_pb2
from tensorflow_serving.config import model_server_config_pb2

from export.savedmodel import write
from export.savedmodel.__main__ import main
from export.savedmodel.write import (
    ALLOWED_BATCH_SIZES,
    BATCH_SIZES,
    WARMUP_REQUESTS,
    add_missing,
    classify_log,
    model_name,
    predict_log,
    serialized_example,
    server_files,
    write_savedmodel,
)
from kmha.inference.retrieval import TextVectors
from tests.bundles import one_label_bundle
from tests.export.conftest import BUNDLES

FILES = {"models.config", "batching.config", "monitoring.config", "docker-compose.yml"}
Field = descriptor_pb2.FieldDescriptorProto
MOST_RECORDS = 1000  # With more, TensorFlow Serving rejects the model.


def message(name: str, fields: list[tuple]) -> Any:
    """A message class made of (name, number, type name or kind, repeated) where no package contains it."""
    file = descriptor_pb2.FileDescriptorProto(
        name=f"{name}.proto", syntax="proto3", dependency=[wrappers_pb2.DESCRIPTOR.name]
    )
    made = file.message_type.add(name=name)
    for field, number, kind, repeated in fields:
        label = Field.LABEL_REPEATED if repeated else Field.LABEL_OPTIONAL
        if isinstance(kind, str):
            made.field.add(name=field, number=number, type=Field.TYPE_MESSAGE, type_name=kind, label=label)
        else:
            made.field.add(name=field, number=number, type=kind, label=label)
    if name == "MonitoringConfig":
        inner = file.message_type.add(name="PrometheusConfig")
        inner.field.add(name="enable", number=1, type=Field.TYPE_BOOL, label=Field.LABEL_OPTIONAL)
        inner.field.add(name="path", number=2, type=Field.TYPE_STRING, label=Field.LABEL_OPTIONAL)
    pool = descriptor_pool.DescriptorPool()
    pool.AddSerializedFile(wrappers_pb2.DESCRIPTOR.serialized_pb)
    pool.Add(file)
    return message_factory.GetMessageClass(pool.FindMessageTypeByName(name))


# As in tensorflow_serving/servables/tensorflow/session_bundle_config.proto.
INT64 = ".google.protobuf.Int64Value"


BatchingParameters = message(
    "BatchingParameters",
    [
        ("max_batch_size", 1, INT64, False),
        ("batch_timeout_micros", 2, INT64, False),
        ("max_enqueued_batches", 3, INT64, False),
        ("num_batch_threads", 4, INT64, False),
        ("thread_pool_name", 5, ".google.protobuf.StringValue", False),
        ("allowed_batch_sizes", 6, Field.TYPE_INT64, True),
        ("pad_variable_length_inputs", 7, Field.TYPE_BOOL, False),
    ],
)


# As in tensorflow_serving/config/monitoring_config.proto.
MonitoringConfig = message("MonitoringConfig", [("prometheus_config", 1, ".PrometheusConfig", False)])


@pytest.mark.parametrize(
    ("folder", "name"),
    [
        ("news", "news"),
        ("news-2", "news-2"),
        ("my news: ü", "my_news"),
        ("v1.2", "v1_2"),
        ("渡", "model"),
        ("a\"b'c\nd", "a_b_c_d"),
    ],
)
def test_the_model_is_named_after_its_folder(tmp_path, folder, name):
    assert model_name(tmp_path / folder) == name


def test_the_current_folder_gives_the_model_its_name(tmp_path, monkeypatch):
    (tmp_path / "news").mkdir()
    monkeypatch.chdir(tmp_path / "news")
    assert model_name(Path()) == "news"


def test_the_model_is_found_where_the_container_mounts_it():
    files = server_files("news", xla=False)
    config = text_format.Parse(files["models.config"], model_server_config_pb2.ModelServerConfig())
    (model,) = config.model_config_list.config
    assert (model.name, model.model_platform) == ("news", "tensorflow")
    (service,) = yaml.safe_load(files["docker-compose.yml"])["services"].values()
    (volume,) = service["volumes"]
    assert volume == {"type": "bind", "source": ".", "target": model.base_path, "read_only": True}
    assert service["ports"] == ["8500:8500", "8501:8501"]
    assert service["image"].startswith("tensorflow/serving:")
    flags = dict(word.removeprefix("--").split("=") for word in service["command"])
    assert flags == {
        "model_config_file": "/models/news/models.config",
        "monitoring_config_file": "/models/news/monitoring.config",
        "enable_batching": "true",
        "batching_parameters_file": "/models/news/batching.config",
    }


def test_a_compiled_signature_needs_a_flag():
    compose = yaml.safe_load(server_files("news", xla=True)["docker-compose.yml"])
    assert compose["services"]["serving"]["command"][-1] == "--xla_cpu_compilation_enabled=true"


def test_the_batching_settings_are_valid():
    parameters = text_format.Parse(server_files("news", False)["batching.config"], BatchingParameters())
    sizes = list(parameters.allowed_batch_sizes)
    assert sizes == sorted(set(sizes)) == list(ALLOWED_BATCH_SIZES)
    assert sizes[-1] == parameters.max_batch_size.value
    assert parameters.pad_variable_length_inputs
    assert parameters.batch_timeout_micros.value > 0 < parameters.max_enqueued_batches.value


def test_monitoring_is_on():
    config = text_format.Parse(server_files("news", False)["monitoring.config"], MonitoringConfig())
    assert config.prometheus_config.enable
    assert config.prometheus_config.path == "/monitoring/prometheus/metrics"


def test_settings_files_are_written_once(tmp_path, capsys):
    folder = tmp_path / "news"
    write_savedmodel(one_label_bundle(), folder)
    assert {path.name for path in folder.iterdir()} == {"1", *FILES}
    assert "not changed" not in capsys.readouterr().err
    (folder / "models.config").write_text("# mine")
    (folder / "monitoring.config").unlink()
    write_savedmodel(one_label_bundle(), folder, xla=True)
    assert {path.name for path in folder.iterdir()} == {"1", "2", *FILES}
    assert (folder / "models.config").read_text() == "# mine"
    error = capsys.readouterr().err
    assert "not changed: models.config, batching.config, docker-compose.yml\n" in error
    assert "add --xla_cpu_compilation_enabled=true" in error


def test_all_settings_files_are_written_or_none(tmp_path, monkeypatch):
    (tmp_path / "old").touch()
    real = Path.write_text

    def full(path, *arguments):
        if path.name.startswith("c"):
            raise OSError(28, "disk full")
        return real(path, *arguments)

    monkeypatch.setattr(Path, "write_text", full)
    (tmp_path / "staging").mkdir()
    with pytest.raises(OSError, match="disk full"):
        add_missing(tmp_path, {"a": "1", "old": "2", "b": "3", "c": "4", "d": "5"}, tmp_path / "staging")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["old", "staging"]


def test_no_version_is_left_when_settings_cannot_be_written(runs, tmp_path, monkeypatch, capsys):
    def full(path, *_):
        raise OSError(28, "disk full")

    monkeypatch.setattr(Path, "write_text", full)
    assert main([str(runs["one label"]), str(tmp_path / "served")]) == 2
    assert "disk full" in capsys.readouterr().err
    assert not (tmp_path / "served").exists()


def logs(folder) -> list:
    records = tf.data.TFRecordDataset(str(folder / WARMUP_REQUESTS)).as_numpy_iterator()
    return [prediction_log_pb2.PredictionLog.FromString(record) for record in records]


def inputs_of(log) -> tuple[str, dict[str, np.ndarray]]:
    """The signature of a request, and its inputs."""
    if log.WhichOneof("log_type") == "classify_log":
        request = log.classify_log.request
        examples = [example.SerializeToString() for example in request.input.example_list.examples]
        return request.model_spec.signature_name, {"inputs": np.array(examples, object)}
    request = log.predict_log.request
    return request.model_spec.signature_name, {n: tf.make_ndarray(t) for n, t in request.inputs.items()}


@pytest.mark.parametrize("kind", BUNDLES)
def test_every_request_runs_in_its_signature(served, kind):
    folder, found = served[kind], [inputs_of(log) for log in logs(served[kind])]
    assert 0 < len(found) <= MOST_RECORDS
    loaded = tf.saved_model.load(str(folder))
    assert {name for name, _ in found} == set(loaded.signatures)
    texts = [text.encode() for text in BUNDLES[kind]().sample]
    for name, inputs in found:
        # Compiling for every shape would take a minute.
        if name == "predict_ids_xla" and inputs["token_ids"].shape != (1, 16):
            continue
        outputs = loaded.signatures[name](**{key: tf.constant(value) for key, value in inputs.items()})
        sizes = {len(values) for values in [*inputs.values(), *(v.numpy() for v in outputs.values())]}
        assert len(sizes) == 1
        if "text" in inputs:
            assert set(inputs["text"]) <= set(texts)
            given = inputs["text"].tolist()
            if name == "embed":
                expected = TextVectors(BUNDLES[kind]())(given)
                np.testing.assert_allclose(outputs["vectors"], expected, atol=1e-5)
                continue
            expected = BUNDLES[kind]().probabilities(given)
            np.testing.assert_allclose(outputs["probabilities"], expected, atol=1e-5)


def test_there_are_several_batch_sizes_and_all_compiled_shapes(served):
    found = [inputs_of(log) for log in logs(served["one label"])]
    shapes: dict[str, set] = {}
    for name, inputs in found:
        shapes.setdefault(name, set()).add(next(iter(inputs.values())).shape)
    for name in (
        "serving_default",
        "predict_text",
        "predict_ids",
        "classify",
        "explain",
        "embed",
        "embed_ids",
    ):
        assert {shape[0] for shape in shapes[name]} == set(BATCH_SIZES)
    assert shapes["predict_ids_xla"] == {(n, t) for n in (1, 2, 4, 8, 16, 32, 64) for t in (16, 24)}


@pytest.mark.parametrize("size", [0, 1, 127, 128, 20_000])
def test_the_bytes_are_those_of_the_real_messages(size):
    texts = [b"x" * size, b"\xff\0", "港".encode()]
    expected = prediction_log_pb2.PredictionLog()
    request = expected.predict_log.request
    request.model_spec.signature_name = "predict_text"
    request.inputs["text"].CopyFrom(tf.make_tensor_proto(texts))
    assert (
        prediction_log_pb2.PredictionLog.FromString(predict_log("predict_text", {"text": texts})) == expected
    )

    expected = prediction_log_pb2.PredictionLog()
    request = expected.classify_log.request
    request.model_spec.signature_name = "classify"
    for text in texts:
        example = request.input.example_list.examples.add()
        example.features.feature["text"].bytes_list.value.append(text)
    found = classify_log("classify", [serialized_example(text) for text in texts])
    assert prediction_log_pb2.PredictionLog.FromString(found) == expected


@pytest.fixture
def stored_model(served, monkeypatch):
    """Replaces the conversion: every version is a copy of the stored one, without its requests."""

    def save(module, folder, signatures):
        requests = shutil.ignore_patterns(WARMUP_REQUESTS.parts[0])
        shutil.copytree(served["one label"], folder, ignore=requests, dirs_exist_ok=True)

    names = dict.fromkeys(("serving_default", "predict_text", "predict_ids", "classify", "explain"))
    module = types.SimpleNamespace(signatures=lambda: names)
    monkeypatch.setattr(write, "endpoints", lambda bundle, xla: module)
    monkeypatch.setattr(tf.saved_model, "save", save)


def test_without_sample_texts_there_are_no_requests(stored_model, tmp_path, capsys):
    bundle = dataclasses.replace(one_label_bundle(), sample=[])
    folder = write_savedmodel(bundle, tmp_path / "served")
    assert not (folder / WARMUP_REQUESTS).exists()
    assert "no warm-up requests" in capsys.readouterr().err


def test_long_texts_are_truncated_to_what_is_read(tmp_path):
    bundle = dataclasses.replace(one_label_bundle(), sample=["bread " * 100_000])
    folder = write_savedmodel(bundle, tmp_path / "served")
    assert (folder / WARMUP_REQUESTS).stat().st_size < 1_000_000
