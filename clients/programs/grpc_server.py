"""python grpc_server.py SAVEDMODEL NAME PORT

Serves a SavedModel over TensorFlow Serving's PredictionService until terminated. It is not TensorFlow
Serving: it passes Predict and Classify requests to the signature that they name.
"""  # noqa: D415

import concurrent.futures
import sys

import grpc
import tensorflow as tf
import tensorflow_text  # noqa: F401  (registers the tokenizer's ops)
from tensorflow_serving.apis import classification_pb2, predict_pb2, prediction_service_pb2_grpc

# An explanation holds the attention weights of every layer and head.
OPTIONS = [("grpc.max_send_message_length", -1), ("grpc.max_receive_message_length", -1)]


class Service(prediction_service_pb2_grpc.PredictionServiceServicer):
    """Predict and Classify of the SavedModel in a folder, by its name in requests."""

    def __init__(self, folder: str, name: str):
        self._loaded = tf.saved_model.load(folder)
        self._name = name

    def Predict(self, request, context):
        """Runs a signature on named tensors."""
        inputs = {name: tf.constant(tf.make_ndarray(values)) for name, values in request.inputs.items()}
        response = predict_pb2.PredictResponse()
        for name, values in self._run(request.model_spec, context, inputs).items():
            response.outputs[name].CopyFrom(tf.make_tensor_proto(values.numpy()))
        return response

    def Classify(self, request, context):
        """Returns classes and scores for examples."""
        examples = [example.SerializeToString() for example in request.input.example_list.examples]
        outputs = self._run(request.model_spec, context, {"inputs": tf.constant(examples)})
        response = classification_pb2.ClassificationResponse()
        for labels, scores in zip(outputs["classes"].numpy(), outputs["scores"].numpy(), strict=True):
            row = response.result.classifications.add()
            for label, score in zip(labels, scores, strict=True):
                row.classes.add(label=label, score=score)
        return response

    def _run(self, spec, context, inputs):
        signature = spec.signature_name or "serving_default"
        if spec.name != self._name or signature not in self._loaded.signatures:
            expected = f"{self._name} with {', '.join(self._loaded.signatures)}"
            # abort raises.
            context.abort(grpc.StatusCode.NOT_FOUND, f"expected {expected}, got {spec.name} {signature}")
        return self._loaded.signatures[signature](**inputs)


def main() -> None:
    """Serves until terminated."""
    folder, name, port = sys.argv[1:]
    server = grpc.server(concurrent.futures.ThreadPoolExecutor(2), options=OPTIONS)
    prediction_service_pb2_grpc.add_PredictionServiceServicer_to_server(Service(folder, name), server)
    server.add_insecure_port(f"127.0.0.1:{port}")
    server.start()
    server.wait_for_termination()


if __name__ == "__main__":
    main()
