"""python examples/serving_client.py HOST:PORT MODEL TEXT...

Queries a TensorFlow Serving server over gRPC, once through each signature that takes texts, and prints the
responses as JSON lines. Requires `pip install 'kmha[serving]'` and no code of kmha.
"""  # noqa: D415

import json
import os
import sys
from collections.abc import Sequence

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

import grpc
import tensorflow as tf
from tensorflow_serving.apis import classification_pb2, predict_pb2, prediction_service_pb2_grpc

SECONDS = 10


def predict(stub, model: str, signature: str, inputs: dict) -> dict:
    """Makes a Predict call; returns its outputs as arrays by name.

    Args:
        stub: Stub of the prediction service.
        model: Model name.
        signature: "serving_default", "predict_text" and "explain" take {"text": string [B]}; "predict_ids" and
            "predict_ids_xla" {"token_ids": int32 [B, T], "padding_mask": int32 [B, T]}.
        inputs: Arrays or lists by name.
    """
    request = predict_pb2.PredictRequest()
    request.model_spec.name = model
    request.model_spec.signature_name = signature
    for name, values in inputs.items():
        request.inputs[name].CopyFrom(tf.make_tensor_proto(values))
    response = stub.Predict(request, SECONDS)
    return {name: tf.make_ndarray(values) for name, values in response.outputs.items()}


def classify(stub, model: str, texts: Sequence[bytes]) -> list[dict[str, float]]:
    """Makes a Classify call; returns the score of each label for each text."""
    request = classification_pb2.ClassificationRequest()
    request.model_spec.name = model
    request.model_spec.signature_name = "classify"
    for text in texts:
        example = request.input.example_list.examples.add()
        example.features.feature["text"].bytes_list.value.append(text)
    response = stub.Classify(request, SECONDS)
    return [{label.label: label.score for label in row.classes} for row in response.result.classifications]


def main(arguments: Sequence[str]) -> int:
    """Runs the program; returns its exit status."""
    if len(arguments) < 3:
        print("usage: python examples/serving_client.py HOST:PORT MODEL TEXT...", file=sys.stderr)
        return 2
    address, model, *texts = arguments
    encoded = [text.encode() for text in texts]
    with grpc.insecure_channel(address) as channel:
        stub = prediction_service_pb2_grpc.PredictionServiceStub(channel)
        for signature in ("predict_text", "explain"):
            outputs = predict(stub, model, signature, {"text": encoded})
            lists = {name: values.tolist() for name, values in outputs.items()}
            print(json.dumps({"signature": signature, **lists}, default=bytes.decode, ensure_ascii=False))
        results = classify(stub, model, encoded)
        print(json.dumps({"signature": "classify", "results": results}, ensure_ascii=False))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
