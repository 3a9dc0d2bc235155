"""python -m export.benchmark.worker KIND PATH THREADS SIZES

Loads one model and measures it on request. `export.benchmark` starts this process and sends one JSON object a line on
stdin; each reply is one line on stdout, the first when the model is loaded. Runtimes are imported by `loader` and in
functions, so that each process imports only its own.
"""  # noqa: D415

import dataclasses
import importlib
import importlib.util
import json
import os
import resource
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from export.names import PREDICT_IDS, PROBABILITIES, SERVING_DEFAULT
from export.predictors.artifacts import ONNX, SAVEDMODEL, TFLITE
from kmha.errors import InputError
from kmha.features import PADDING_MASK, TOKEN_IDS
from training.cli.parser import WRONG_INPUT

BUNDLE, KERAS_HUB, TORCH = "bundle", "keras_hub", "torch"
PEERS = (KERAS_HUB, TORCH)
_ACTIVATIONS = {"relu": "relu", "gelu": "gelu", "gelu_tanh": "gelu_new"}
_STATUS, _RESET = Path("/proc/self/status"), Path("/proc/self/clear_refs")
TEXTS, IDS = "texts", "ids"
LEAST_WARM_CALLS = 3
# Untimed calls before each round: other processes have just filled the caches.
CALLS_TO_WAKE = 2


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
            raise InputError(f"{path}: expected the package {package}, got none; pip install {found.extra}")
    for module in (*found.packages, *found.modules):
        importlib.import_module(module)
    return found.load


def _load_bundle(path: str, threads: int, sizes: dict[str, Any]) -> LoadedModel:
    """The run itself in Keras, the reference for exported models."""
    from export.graph import training_lengths
    from export.verification.layer_outputs import padded, sequences
    from kmha.bundle.bundle import Bundle

    bundle = Bundle.load(path)

    def encode(texts: Sequence[bytes], length: int) -> tuple[np.ndarray, np.ndarray]:
        token_ids, mask = padded(bundle, sequences(bundle, texts, length), length).values()
        return token_ids, mask

    run = {
        "sample": bundle.sample,
        "length": training_lengths(bundle)[-1],
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


_BUNDLE_MODULES = ("export.graph", "export.verification.layer_outputs", "kmha.bundle.bundle")


_LOADERS = {
    BUNDLE: _Loader(_load_bundle, _TENSORFLOW, "kmha", _BUNDLE_MODULES),
    SAVEDMODEL: _Loader(_load_savedmodel, _TENSORFLOW, "kmha", ("export.savedmodel.predictor",)),
    TFLITE: _Loader(
        _load_tflite,
        ("ai_edge_litert",),
        "'kmha[litert]'",
        ("ai_edge_litert.interpreter", "export.tflite.predictor"),
    ),
    ONNX: _Loader(_load_onnx, ("onnxruntime",), "'kmha[onnx]'", ("export.onnx.predictor",)),
    KERAS_HUB: _Loader(_load_keras_hub, ("tensorflow", "keras_hub"), "'kmha[pretrained]'", ("keras",)),
    TORCH: _Loader(
        _load_torch, ("torch", "transformers"), "torch transformers", ("training.speed.torch_trainer",)
    ),
}


def resident_bytes() -> int:
    """Resident memory now; where the system does not report it, the peak so far."""
    return _from_status("VmRSS") or peak_bytes()


def peak_bytes() -> int:
    """Peak resident memory since the start of the process or the last `reset_peak`."""
    # On Linux getrusage also counts the memory of the parent when it started this process.
    found = _from_status("VmHWM")
    if found is not None:
        return found
    most = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return most if sys.platform == "darwin" else most * 1024


def reset_peak() -> None:
    """Resets the peak to the current memory, where the system allows it."""
    try:
        _RESET.write_text("5")
    except OSError:
        return


def _from_status(name: str) -> int | None:
    try:
        lines = _STATUS.read_text().splitlines()
    except OSError:
        return None
    kilobytes = [int(line.split()[1]) for line in lines if line.startswith(f"{name}:")]
    return kilobytes[0] * 1024 if kilobytes else None


class Stopwatch:
    """Calls a model on its rows, in their order, again and again."""

    def __init__(self, model: LoadedModel):
        self._model = model
        self._texts: Sequence[bytes] = []
        self._ids = self._mask = np.zeros((0, 0), np.int32)

    def set_rows(self, texts: Sequence[bytes], token_ids: np.ndarray | None, mask: np.ndarray | None) -> None:
        """Sets the rows: texts, and their ids and mask int32 [rows, T] (None: ids are not measured)."""
        self._texts = texts
        if token_ids is not None and mask is not None:
            self._ids, self._mask = token_ids, mask

    def warm_up(self, column: str, batch: int, seconds: float) -> dict[str, float]:
        """Untimed calls: all rows once, or as many as the seconds allow, at least three calls.

        Returns the seconds of the first call, and of the shortest other, which other load affects least.
        """
        taken: list[float] = []
        while len(taken) < LEAST_WARM_CALLS or (
            len(taken) * batch < len(self._texts) and sum(taken) < seconds
        ):
            taken.append(_seconds(self._call(column, batch, len(taken) * batch)))
        return {"first_seconds": taken[0], "least_seconds": min(taken[1:])}

    def round(self, column: str, batch: int, first: int, calls: int) -> dict[str, Any]:
        """Times calls of a batch of rows from "texts" or "ids".

        Each call uses the rows after those of the one before, and the first row after the last. Returns "seconds" of
        each call and "cpu_seconds", the processor time of all calls in all threads.
        """
        prepared = [self._call(column, batch, first + number * batch) for number in range(calls)]
        for number in range(CALLS_TO_WAKE):
            prepared[number % calls]()
        began = time.process_time()
        seconds = [_seconds(call) for call in prepared]
        return {"seconds": seconds, "cpu_seconds": time.process_time() - began}

    def _call(self, column: str, batch: int, first: int) -> Callable[[], Any]:
        rows = [(first + offset) % len(self._texts) for offset in range(batch)]
        if column == IDS:
            ids, mask = self._ids[rows], self._mask[rows]
            return lambda: self._model.from_ids(ids, mask)
        predict, texts = self._model.from_texts, [self._texts[row] for row in rows]
        assert predict is not None
        return lambda: predict(texts)


def _seconds(call: Callable[[], Any]) -> float:
    began = time.perf_counter_ns()
    call()
    return (time.perf_counter_ns() - began) / 1e9


def main(argv: Sequence[str] | None = None) -> int:
    """Handles requests until stdin ends; returns the exit status."""
    kind, path, threads, sizes = sys.argv[1:] if argv is None else argv
    # Runtimes print to stdout; this must not mix with the replies.
    replies = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)
    try:
        model, facts = _load(kind, path, int(threads), json.loads(sizes))
    except InputError as error:
        print(json.dumps({"error": str(error)}, allow_nan=False), file=replies, flush=True)
        return WRONG_INPUT
    print(json.dumps(facts, allow_nan=False), file=replies, flush=True)
    stopwatch = Stopwatch(model)
    for line in sys.stdin:
        print(
            json.dumps(_reply(model, stopwatch, json.loads(line)), allow_nan=False), file=replies, flush=True
        )
    return 0


def _load(kind: str, path: str, threads: int, sizes: dict[str, Any]) -> tuple[LoadedModel, dict[str, Any]]:
    began = time.perf_counter()
    load = loader(kind, path)
    imported, import_bytes = time.perf_counter(), resident_bytes()
    reset_peak()
    model = load(path, threads, sizes)
    return model, {
        "import_seconds": imported - began,
        "load_seconds": time.perf_counter() - imported,
        "import_bytes": import_bytes,
        "takes_texts": model.from_texts is not None,
        "lengths": model.lengths,
        "batched": model.batched,
        "run": model.run,
    }


def _reply(model: LoadedModel, stopwatch: Stopwatch, request: dict[str, Any]) -> dict[str, Any]:
    do = request.pop("do")
    if do == "encode":
        assert model.encode is not None
        token_ids, mask = model.encode(_bytes(request["texts"]), request["length"])
        return {"token_ids": token_ids.tolist(), "padding_mask": mask.tolist()}
    if do == "set_rows":
        names = ("token_ids", "padding_mask")
        ids, mask = (None if request[name] is None else np.array(request[name], np.int32) for name in names)
        stopwatch.set_rows(_bytes(request["texts"]), ids, mask)
        return {}
    if do == "memory":
        return {"peak_bytes": peak_bytes()}
    return {"warm_up": stopwatch.warm_up, "round": stopwatch.round}[do](**request)


def _bytes(texts: Sequence[str]) -> list[bytes]:
    return [text.encode("utf-8", "replace") for text in texts]


if __name__ == "__main__":
    sys.exit(main())
