"""The kinds of models that the benchmark measures, and a function that loads each kind.

Runtimes are imported by `loader` and in the functions, so that each process imports only its own.
"""

import dataclasses
import importlib
import importlib.util
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from export.names import PREDICT_IDS, PROBABILITIES, SERVING_DEFAULT
from export.predictors.artifacts import ONNX, SAVEDMODEL, TFLITE
from kmha.errors import InputError
from kmha.features import PADDING_MASK, TOKEN_IDS

BUNDLE, KERAS_HUB, TORCH = "bundle", "keras_hub", "torch"
PEERS = (KERAS_HUB, TORCH)
_ACTIVATIONS = {"relu": "relu", "gelu": "gelu", "gelu_tanh": "gelu_new"}


@dataclass(frozen=True)
class LoadedModel:
    """A loaded model as functions."""

    # From token_ids and padding_mask, int32 [B, T] each, to numbers [B, C].
    from_ids: Callable[[np.ndarray, np.ndarray], np.ndarray]
    # From texts to numbers [B, C]; None: the model has no tokenizer.
    from_texts: Callable[[Sequence[bytes]], np.ndarray] | None = None
    # The T that `from_ids` takes, ascending; None: any.
    lengths: list[int] | None = None
    # Whether the model takes several rows at once.
    batched: bool = True
    # Of a bundle "sample" (texts), "length" (a typical length in tokens), "encoder" (the values of its
    # `EncoderConfig`), "window" (tokens of a window, 0: it reads whole texts) and "labels" (their number).
    run: dict[str, Any] = dataclasses.field(default_factory=dict)
    # Of a bundle: from texts and a length to token_ids and padding_mask.
    encode: Callable[[Sequence[bytes], int], tuple[np.ndarray, np.ndarray]] | None = None


def loader(kind: str, path: str) -> Callable[[str, int, dict[str, Any]], LoadedModel]:
    """Imports the runtime of a kind; raises InputError, with the model's path, if it is not installed.

    Returns:
        A function from path, threads and the sizes of an encoder to the loaded model. TensorFlow reads the number of
        threads from the environment. Only the kinds of other libraries use the sizes: the values of an
        `EncoderConfig`, "window" and "labels". It raises InputError if the model cannot be loaded or built.
    """
    found = _LOADERS[kind]
    for package in found.packages:
        if importlib.util.find_spec(package) is None:
            raise InputError(f"{path}: expected the package {package}, got none; install {found.extra}")
    for module in (*found.packages, *found.modules):
        importlib.import_module(module)
    return found.load


def _load_bundle(path: str, threads: int, sizes: dict[str, Any]) -> LoadedModel:
    """The run itself in Keras, the reference for exported models."""
    from export.graph.device_function import chosen_lengths
    from export.verification.layer_outputs import padded, sequences
    from kmha.bundle.bundle import Bundle

    bundle = Bundle.load(path)

    def encode(texts: Sequence[bytes], length: int) -> tuple[np.ndarray, np.ndarray]:
        token_ids, mask = padded(bundle, sequences(bundle, texts, length), length).values()
        return token_ids, mask

    run = {
        "sample": bundle.sample,
        "length": chosen_lengths(bundle)[0],
        "encoder": dataclasses.asdict(bundle.model.encoder_config),
        "window": bundle.model.windows.length if bundle.model.windows else 0,
        "labels": len(bundle.labels),
    }
    return LoadedModel(bundle.probabilities_of_ids, bundle.probabilities, run=run, encode=encode)


def _load_savedmodel(path: str, threads: int, sizes: dict[str, Any]) -> LoadedModel:
    import tensorflow as tf

    from export.savedmodel.predictor import open_savedmodel

    loaded = open_savedmodel(path)
    signatures = loaded.signatures
    for name in (SERVING_DEFAULT, PREDICT_IDS):
        if name not in signatures:
            raise InputError(f"{path}: expected a SavedModel with the signature {name}, got one without")

    def from_texts(texts: Sequence[bytes]) -> np.ndarray:
        # `loaded` must outlive its signatures, which do not hold the variables.
        assert loaded is not None
        return signatures[SERVING_DEFAULT](text=tf.constant(texts, tf.string))[PROBABILITIES].numpy()

    def from_ids(token_ids: np.ndarray, mask: np.ndarray) -> np.ndarray:
        outputs = signatures[PREDICT_IDS](token_ids=tf.constant(token_ids), padding_mask=tf.constant(mask))
        return outputs[PROBABILITIES].numpy()

    return LoadedModel(from_ids, from_texts)


def _load_tflite(path: str, threads: int, sizes: dict[str, Any]) -> LoadedModel:
    from export.predictors.token_batches import encode_row, model_inputs, read_text_tokenizer
    from export.tflite.predictor import open_interpreter, read_signatures, shortest_signature

    signatures = read_signatures(open_interpreter(Path(path), threads), path)
    tokenizer = read_text_tokenizer(Path(path))
    longest = signatures[-1].lengths[0] or tokenizer.max_length

    def from_ids(token_ids: np.ndarray, mask: np.ndarray) -> np.ndarray:
        length = token_ids.shape[1]
        signature = next(each for each in signatures if each.lengths in ((length,), (0,)))
        return signature.run({TOKEN_IDS: token_ids, PADDING_MASK: mask})[signature.output]

    def from_texts(texts: Sequence[bytes]) -> np.ndarray:
        (ids,) = (encode_row(tokenizer, text, longest) for text in texts)
        lengths = [len(each) for each in ids]
        signature = shortest_signature(signatures, lengths)
        inputs = model_inputs(tokenizer, [ids], signature.padded_lengths(lengths))
        return signature.run(inputs)[signature.output]

    lengths = [signature.lengths[0] for signature in signatures if signature.lengths[0]]
    return LoadedModel(from_ids, from_texts, lengths or None, batched=False)


def _load_onnx(path: str, threads: int, sizes: dict[str, Any]) -> LoadedModel:
    from export.onnx.predictor import open_session
    from export.predictors.token_batches import encode_row, model_inputs, read_text_tokenizer

    session = open_session(Path(path), threads)
    tokenizer = read_text_tokenizer(Path(path))

    def from_ids(token_ids: np.ndarray, mask: np.ndarray) -> np.ndarray:
        (output,) = session.run([PROBABILITIES], {TOKEN_IDS: token_ids, PADDING_MASK: mask})
        return np.asarray(output)

    def from_texts(texts: Sequence[bytes]) -> np.ndarray:
        inputs = model_inputs(tokenizer, [encode_row(tokenizer, text) for text in texts])
        return from_ids(inputs[TOKEN_IDS], inputs[PADDING_MASK])

    return LoadedModel(from_ids, from_texts)


def _load_keras_hub(path: str, threads: int, sizes: dict[str, Any]) -> LoadedModel:
    """keras_hub's encoder layers with random weights, over token and position embeddings, a mean and a dense layer."""
    import keras
    import keras_hub
    import tensorflow as tf

    check_sizes(path, sizes)
    embedding = keras_hub.layers.TokenAndPositionEmbedding(
        sizes["vocabulary_size"], sizes["max_length"], sizes["hidden_dim"]
    )
    blocks = [
        keras_hub.layers.TransformerEncoder(
            sizes["intermediate_dim"],
            sizes["num_heads"],
            activation="relu" if sizes["activation"] == "relu" else "gelu",
            normalize_first=sizes["norm"] == "pre",
        )
        for _ in range(sizes["num_layers"])
    ]
    head = keras.layers.Dense(sizes["labels"], activation="softmax")

    def predict(token_ids, mask):
        x = embedding(token_ids)
        for block in blocks:
            x = block(x, padding_mask=mask, training=False)
        real = tf.cast(mask, x.dtype)[:, :, None]
        return head(tf.reduce_sum(x * real, axis=1) / tf.reduce_sum(real, axis=1))

    predict(np.zeros((1, 3), np.int32), np.ones((1, 3), np.int32))
    spec = tf.TensorSpec([None, None], tf.int32)
    traced: Any = tf.function(predict, autograph=False, input_signature=[spec, spec])
    return LoadedModel(lambda token_ids, mask: traced(tf.constant(token_ids), tf.constant(mask)).numpy())


def _load_torch(path: str, threads: int, sizes: dict[str, Any]) -> LoadedModel:
    """A Hugging Face BERT classifier in PyTorch with random weights."""
    import torch  # pyright: ignore[reportMissingImports]  (rarely installed with TensorFlow)
    import transformers  # pyright: ignore[reportMissingImports]

    from training.speed.torch_trainer import bert_config

    check_sizes(path, sizes)
    torch.set_num_threads(threads)
    named = {**sizes, "num_labels": sizes["labels"]}
    config = bert_config(named, sizes["max_length"], hidden_act=_ACTIVATIONS[sizes["activation"]])
    model = transformers.BertForSequenceClassification(config).eval()

    def from_ids(token_ids: np.ndarray, mask: np.ndarray) -> np.ndarray:
        with torch.inference_mode():
            ids, attended = (torch.from_numpy(values).long() for values in (token_ids, mask))
            return model(input_ids=ids, attention_mask=attended).logits.softmax(-1).numpy()

    return LoadedModel(from_ids)


def check_sizes(path: str, sizes: dict[str, Any]) -> None:
    """Raises InputError, with the model's path, for sizes that encoders of other libraries cannot have."""
    if sizes["window"]:
        raise InputError(
            f"{path}: expected a run that reads whole texts, got one that reads windows of {sizes['window']} tokens"
        )
    if sizes["layer_sizes"]:
        raise InputError(f"{path}: expected blocks of equal sizes, got those of a pruned encoder")
    if sizes["head_dim"] is not None and sizes["head_dim"] * sizes["num_heads"] != sizes["hidden_dim"]:
        heads = f"{sizes['num_heads']} of {sizes['head_dim']} in {sizes['hidden_dim']}"
        raise InputError(f"{path}: expected heads that fill the hidden size, got {heads}")


class _Loader(NamedTuple):
    """A function that loads a kind, the packages and modules to import before, and the extra that installs them."""

    load: Callable[[str, int, dict[str, Any]], LoadedModel]
    packages: tuple[str, ...]
    extra: str
    modules: tuple[str, ...]


_TENSORFLOW = ("tensorflow", "tensorflow_text")
_BUNDLE_MODULES = ("export.graph.device_function", "export.verification.layer_outputs", "kmha.bundle.bundle")
_LOADERS = {
    BUNDLE: _Loader(_load_bundle, _TENSORFLOW, "kmha", _BUNDLE_MODULES),
    SAVEDMODEL: _Loader(_load_savedmodel, _TENSORFLOW, "kmha", ("export.savedmodel.predictor",)),
    TFLITE: _Loader(
        _load_tflite,
        ("ai_edge_litert",),
        "kmha[litert]",
        ("ai_edge_litert.interpreter", "export.tflite.predictor"),
    ),
    ONNX: _Loader(_load_onnx, ("onnxruntime",), "kmha[onnx]", ("export.onnx.predictor",)),
    KERAS_HUB: _Loader(_load_keras_hub, ("tensorflow", "keras_hub"), "kmha[pretrained]", ("keras",)),
    TORCH: _Loader(
        _load_torch, ("torch", "transformers"), "torch and transformers", ("training.speed.torch_trainer",)
    ),
}
