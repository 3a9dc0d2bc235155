"""python mediapipe_texts.py < request.json > response.json, in an environment with mediapipe.

Reads {"model", "texts", "labels"}, writes {"probabilities": [rows, labels], "seconds": for all texts}.
"""  # noqa: D415

import json
import sys
import time

from mediapipe.tasks.python.core.base_options import BaseOptions  # pyright: ignore[reportMissingImports]
from mediapipe.tasks.python.text.text_classifier import TextClassifier, TextClassifierOptions  # pyright: ignore[reportMissingImports]


def main() -> None:
    """Classifies the texts on stdin."""
    request = json.load(sys.stdin)
    options = TextClassifierOptions(base_options=BaseOptions(model_asset_path=request["model"]))
    with TextClassifier.create_from_options(options) as classifier:
        began = time.perf_counter()
        rows = []
        for text in request["texts"]:
            categories = classifier.classify(text).classifications[0].categories
            scores = {category.category_name: category.score for category in categories}
            rows.append([scores[label] for label in request["labels"]])
        seconds = time.perf_counter() - began
    json.dump({"probabilities": rows, "seconds": seconds}, sys.stdout, allow_nan=False)


if __name__ == "__main__":
    main()
