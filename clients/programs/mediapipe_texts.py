"""python mediapipe_texts.py < question.json > answer.json, in an environment with mediapipe.

Reads {"model", "texts", "labels"}, writes {"probabilities": [rows, labels], "seconds": of all texts}.
"""  # noqa: D415

import json
import sys
import time

from mediapipe.tasks.python.core.base_options import BaseOptions  # pyright: ignore[reportMissingImports]
from mediapipe.tasks.python.text.text_classifier import TextClassifier, TextClassifierOptions  # pyright: ignore[reportMissingImports]


def main() -> None:
    """Answers the texts on stdin."""
    asked = json.load(sys.stdin)
    options = TextClassifierOptions(base_options=BaseOptions(model_asset_path=asked["model"]))
    with TextClassifier.create_from_options(options) as classifier:
        began = time.perf_counter()
        rows = []
        for text in asked["texts"]:
            categories = classifier.classify(text).classifications[0].categories
            scores = {category.category_name: category.score for category in categories}
            rows.append([scores[label] for label in asked["labels"]])
        seconds = time.perf_counter() - began
    json.dump({"probabilities": rows, "seconds": seconds}, sys.stdout)


if __name__ == "__main__":
    main()
