"""Models that MediaPipe cannot run."""

import json

import pytest

from clients.comparison import ClientUnavailableError
from clients.python_clients import (
    check_metadata,
    reorder,
    triton_binary_request,
    triton_request,
    triton_rows,
)
from tests.bundles import make_bundle, one_label_bundle


def test_models_without_a_mediapipe_tokenizer_are_rejected():
    check_metadata(one_label_bundle())
    with pytest.raises(ClientUnavailableError, match="char"):
        check_metadata(make_bundle(tokenization="char"))


def test_a_triton_request_holds_one_text_per_row():
    (tensor,) = triton_request(["a", "b", "c"])["inputs"]
    assert (tensor["shape"], tensor["datatype"], tensor["data"]) == ([3, 1], "BYTES", ["a", "b", "c"])


def test_a_binary_triton_request_holds_the_bytes_of_each_text_after_their_count():
    body, headers = triton_binary_request([b"\xff", b""], ["probabilities"])
    size = int(headers["Inference-Header-Content-Length"])
    (tensor,) = json.loads(body[:size])["inputs"]
    assert (tensor["shape"], tensor["parameters"]) == ([2, 1], {"binary_data_size": 9})
    assert body[size:] == b"\1\0\0\0\xff\0\0\0\0"


def test_a_triton_response_is_split_into_rows():
    other = {"name": "labels", "shape": [2], "data": ["x", "y"]}
    found = {"name": "probabilities", "shape": [2, 3], "data": [1, 2, 3, 4, 5, 6]}
    assert triton_rows({"outputs": [other, found]}) == [[1, 2, 3], [4, 5, 6]]


def test_values_are_reordered_by_label():
    names = [["a", "b"], ["b", "a"]]
    assert reorder(names, [[0.1, 0.9], [0.7, 0.3]], ["b", "a"]) == [[0.9, 0.1], [0.7, 0.3]]
