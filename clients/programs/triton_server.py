"""python triton_server.py SAVEDMODEL NAME HTTP_PORT GRPC_PORT METRICS_PORT

Serves a SavedModel with Triton until terminated: string [B, 1] in, probabilities float32 [B, C] out. Runs in
an environment with nvidia-pytriton, tensorflow and tensorflow-text.
"""  # noqa: D415

import sys

import numpy as np
import tensorflow as tf
import tensorflow_text  # noqa: F401  (registers the tokenizer's ops)
from pytriton.decorators import batch  # pyright: ignore[reportMissingImports]
from pytriton.model_config import ModelConfig, Tensor  # pyright: ignore[reportMissingImports]
from pytriton.triton import Triton, TritonConfig  # pyright: ignore[reportMissingImports]


def main() -> None:
    """Serves until terminated."""
    folder, name, *numbers = sys.argv[1:]
    http_port, grpc_port, metrics_port = map(int, numbers)
    loaded = tf.saved_model.load(folder)
    predict = loaded.signatures["serving_default"]
    labels = predict.structured_outputs["probabilities"].shape[1]

    @batch
    def classify(text):
        outputs = predict(text=tf.constant(text[:, 0].tolist(), tf.string))
        return {"probabilities": outputs["probabilities"].numpy()}

    addresses = {"http_address": "127.0.0.1", "grpc_address": "127.0.0.1"}
    ports = {"http_port": http_port, "grpc_port": grpc_port, "metrics_port": metrics_port}
    with Triton(config=TritonConfig(**addresses, **ports)) as server:
        server.bind(
            model_name=name,
            infer_func=classify,
            inputs=[Tensor(name="text", dtype=bytes, shape=(1,))],
            outputs=[Tensor(name="probabilities", dtype=np.float32, shape=(labels,))],
            config=ModelConfig(max_batch_size=64),
        )
        server.serve()


if __name__ == "__main__":
    main()
