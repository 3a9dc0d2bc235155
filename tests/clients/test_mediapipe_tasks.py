"""Models that MediaPipe cannot run."""

import pytest

from clients.comparison import ClientUnavailableError
from clients.mediapipe_tasks import check_metadata
from tests.bundles import make_bundle, one_label_bundle


def test_models_without_a_mediapipe_tokenizer_are_rejected():
    check_metadata(one_label_bundle())
    with pytest.raises(ClientUnavailableError, match="char"):
        check_metadata(make_bundle(tokenization="char"))
