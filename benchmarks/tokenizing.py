"""python benchmarks/tokenizing.py FILE… [--rounds 5]

Measures tokenized sentences per second of the Preprocessor in tf.data, for each file of rows and each
tokenization, in alternating rounds: JSON lines on stdout.
"""

import argparse
import json
import statistics
import sys
import time
from pathlib import Path

from kmha.quiet import import_tensorflow

CHUNK_ROWS = 1024
MIN_SENTENCES = 50_000


def main() -> int:
    """Measures every combination in every round and prints medians."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("files", type=Path, nargs="+")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--column", default="text")
    arguments = parser.parse_args()
    import_tensorflow()
    from kmha.text.preprocessor import Preprocessor
    from kmha.text.vocabulary import TOKENIZATIONS
    from kmha.text.vocabulary_training import train_vocabulary
    from training.data.text_batches import token_chunks
    from training.io.tables import read_rows

    runs = []
    for path in arguments.files:
        texts = [str(row.values[arguments.column]) for row in read_rows(path, [arguments.column])]
        repeated = texts * -(-MIN_SENTENCES // len(texts))
        for tokenization in TOKENIZATIONS:
            preprocessor = Preprocessor(train_vocabulary(texts, tokenization), tokenization)
            runs.append((path, tokenization, preprocessor, repeated, []))
    for _ in range(arguments.rounds):
        for _, _, preprocessor, texts, speeds in runs:
            chunks = (texts[i : i + CHUNK_ROWS] for i in range(0, len(texts), CHUNK_ROWS))
            started = time.perf_counter()
            for _ in token_chunks(chunks, preprocessor):
                pass
            speeds.append(len(texts) / (time.perf_counter() - started))
    for path, tokenization, _, texts, speeds in runs:
        characters = statistics.mean(map(len, texts))
        line = {"file": str(path), "tokenization": tokenization, "characters_a_text": round(characters)}
        print(json.dumps(line | {"sentences_a_second": round(statistics.median(speeds))}))
    return 0


if __name__ == "__main__":
    sys.exit(main())
