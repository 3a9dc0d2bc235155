"""python triton_server.py FOLDER NAME HTTP_PORT GRPC_PORT METRICS_PORT

Serves the newest version of a folder of SavedModels (FOLDER/1, FOLDER/2, …) with Triton until terminated. A new
version is loaded in the background and replaces the served one, as in TensorFlow Serving. Input `text` string [B, 1];
outputs `probabilities` float32 [B, C] and `version` int64 [B, 1]. Runs in an environment with nvidia-pytriton,
tensorflow and tensorflow-text.
"""  # noqa: D415

import gc
import os
import sys
import threading
import time
import traceback
import weakref
from pathlib import Path

import numpy as np

# oneDNN caches compiled products by shape: texts of all lengths fill its memory. Its results differ in the last bits,
# so that a process that only imports this module keeps it.
if __name__ == "__main__":
    os.environ.setdefault("TF_ENABLE_ONEDNN_OPTS", "0")
import tensorflow as tf
import tensorflow_text  # noqa: F401  (registers the tokenizer's ops)

WATCH_SECONDS = 1.0


class ServedModel:
    """One version of a SavedModel, loaded and warmed up."""

    def __init__(self, folder: Path):
        self.version = int(folder.name)
        # Its functions read the variables of the loaded object, which must stay alive.
        self._loaded = tf.saved_model.load(str(folder))
        self.predict = self._loaded.signatures["serving_default"]
        self.num_labels = self.predict.structured_outputs["probabilities"].shape[1]
        self(np.array([[b"warm-up"]], object))

    def __call__(self, text: np.ndarray) -> dict[str, np.ndarray]:
        """Outputs for texts, bytes [B, 1]."""
        outputs = self.predict(text=tf.constant(text[:, 0].tolist(), tf.string))
        versions = np.full((len(text), 1), self.version, np.int64)
        return {"probabilities": outputs["probabilities"].numpy(), "version": versions}


class VersionFolder:
    """The newest version of a folder that can be loaded; predictions that run finish on the version they began with."""

    def __init__(self, folder: Path):
        self.folder = folder
        self._newest_seen = self._newest()
        self.model = ServedModel(folder / str(self._newest_seen))

    def _newest(self) -> int:
        return max(int(path.name) for path in self.folder.iterdir() if path.name.isdecimal())

    def update(self) -> None:
        """Serves a newer version if there is one, and frees the replaced one when no prediction runs on it.

        The served version remains if the newer one cannot be loaded.
        """
        newest = self._newest()
        if newest <= self._newest_seen:
            return
        self._newest_seen = newest
        replaced = weakref.ref(self.model)
        try:
            self.model = ServedModel(self.folder / str(newest))
        except Exception:
            traceback.print_exc()
            return
        while replaced() is not None:
            time.sleep(0.01)
        # Graphs and their functions refer to each other, so that counting references does not free them.
        gc.collect()

    def watch(self) -> None:
        """Updates until the process ends."""
        while True:
            self.update()
            time.sleep(WATCH_SECONDS)


def main() -> None:
    """Serves until terminated."""
    from pytriton.decorators import batch  # pyright: ignore[reportMissingImports]
    from pytriton.model_config import ModelConfig, Tensor  # pyright: ignore[reportMissingImports]
    from pytriton.triton import Triton, TritonConfig  # pyright: ignore[reportMissingImports]

    folder, name, *numbers = sys.argv[1:]
    http_port, grpc_port, metrics_port = map(int, numbers)
    versions = VersionFolder(Path(folder))
    threading.Thread(target=versions.watch, daemon=True).start()

    @batch
    def classify(text):
        return versions.model(text)

    addresses = {"http_address": "127.0.0.1", "grpc_address": "127.0.0.1"}
    ports = {"http_port": http_port, "grpc_port": grpc_port, "metrics_port": metrics_port}
    with Triton(config=TritonConfig(**addresses, **ports)) as server:
        server.bind(
            model_name=name,
            infer_func=classify,
            inputs=[Tensor(name="text", dtype=bytes, shape=(1,))],
            outputs=[
                Tensor(name="probabilities", dtype=np.float32, shape=(versions.model.num_labels,)),
                Tensor(name="version", dtype=np.int64, shape=(1,)),
            ],
            config=ModelConfig(max_batch_size=64),
        )
        server.serve()


if __name__ == "__main__":
    main()
