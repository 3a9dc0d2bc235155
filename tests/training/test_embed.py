import io
import json
import sys
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest

from kmha.bundle.bundle import Bundle
from kmha.inference import retrieval
from kmha.inference.retrieval import TextVectors
from kmha.pretrained.sources import find_checkpoint
from kmha.pretrained.weights import load_text_encoder
from tests.bundles import TEXTS, make_pair_bundle, tagger_bundle
from tests.command_runs import call, refused
from tests.kmha.pretrained.tiny_folders import write_tiny_bert
from training.embed import main as embed
from training.predict import main as predict

LINES = [text.encode() for text in TEXTS] + [b"", b"\xff"]


@pytest.fixture(scope="module")
def run(tmp_path_factory) -> Path:
    """A matcher of the bi form that no one trained."""
    folder = tmp_path_factory.mktemp("bi") / "run"
    make_pair_bundle(form="bi", share_weights=False).save(folder)
    return folder


def embedded(run: Path, capsysbinary, monkeypatch, *flags: str, texts: Sequence[bytes] = LINES) -> bytes:
    stdin = b"".join(text + b"\n" for text in texts)
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(stdin)))
    assert embed([str(run), *flags]) == 0
    return capsysbinary.readouterr().out


def array(content: bytes) -> np.ndarray:
    return np.load(io.BytesIO(content), allow_pickle=False)


def test_vectors_are_written_in_the_order_of_the_lines(run, capsysbinary, monkeypatch):
    bundle = make_pair_bundle(form="bi", share_weights=False)
    for flags, side in (((), "b"), (("--side", "a"), "a")):
        found = array(embedded(run, capsysbinary, monkeypatch, *flags))
        assert found.dtype == np.float32
        np.testing.assert_allclose(found, TextVectors(bundle, side)(LINES), atol=1e-6)


def test_every_kind_of_run_has_vectors(news_run, tmp_path, capsysbinary, monkeypatch):
    make_pair_bundle().save(tmp_path / "cross")
    tagger_bundle().save(tmp_path / "tagger")
    for folder in (news_run.folder, tmp_path / "cross", tmp_path / "tagger"):
        found = array(embedded(folder, capsysbinary, monkeypatch))
        np.testing.assert_allclose(found, TextVectors(Bundle.load(folder))(LINES), atol=1e-6)
        np.testing.assert_allclose(np.linalg.norm(found, axis=1), 1, rtol=1e-5)


def test_a_checkpoint_is_embedded_by_the_mean_of_its_tokens(tmp_path, capsysbinary, monkeypatch):
    folder = write_tiny_bert(tmp_path / "tiny")
    checkpoint = find_checkpoint(str(folder))
    for flags, length in (((), 12), (("--max-length", "5"), 5)):
        found = array(embedded(folder, capsysbinary, monkeypatch, *flags))
        np.testing.assert_allclose(
            found, TextVectors(load_text_encoder(checkpoint, length))(LINES), atol=1e-6
        )


def test_both_formats_hold_the_same_numbers(run, capsysbinary, monkeypatch):
    texts = [*LINES, b'a "quoted" line\\', b"a\rb\x85c\xe2\x80\xa8d"]
    expected = array(embedded(run, capsysbinary, monkeypatch, texts=texts))
    written = embedded(run, capsysbinary, monkeypatch, "--format", "jsonl", texts=texts)
    rows = [json.loads(line) for line in written.decode("utf-8").split("\n")[:-1]]
    assert [set(row) for row in rows] == [{"text", "vector"}] * len(texts)
    assert [row["text"] for row in rows] == [text.decode("utf-8", "replace") for text in texts]
    # Every number comes back as it was, to the last bit.
    np.testing.assert_array_equal(np.array([row["vector"] for row in rows], np.float32), expected)


def test_no_texts_give_an_empty_array(run, capsysbinary, monkeypatch):
    found = array(embedded(run, capsysbinary, monkeypatch, texts=()))
    assert found.shape == (0, 16) and found.dtype == np.float32
    assert embedded(run, capsysbinary, monkeypatch, "--format", "jsonl", texts=()) == b""


def test_texts_are_streamed(run, monkeypatch, capsysbinary):
    """The first JSON lines are written before the last texts are read, and progress is shown."""
    monkeypatch.setattr(retrieval, "CHUNK_ROWS", 4)
    monkeypatch.setattr("training.embed.PROGRESS_SECONDS", 0)
    written = []

    numbers = iter(range(40))

    class Stream:
        def readline(self, size):
            number = next(numbers, None)
            if number is None:
                return b""
            # At most one chunk of texts is pending.
            sys.stdout.flush()
            written.append(capsysbinary.readouterr())
            assert sum(each.out.count(b"\n") for each in written) == number // 4 * 4
            return b"bread %d\n" % number

    class Stdin:
        buffer = Stream()

    monkeypatch.setattr(sys, "stdin", Stdin)
    assert embed([str(run), "--format", "jsonl"]) == 0
    progress = b"".join(each.err for each in [*written, capsysbinary.readouterr()]).decode().splitlines()
    assert progress[0].startswith("4 texts, ") and progress[-1].startswith("40 texts in ")


def test_an_interrupted_array_is_not_half_written(run, monkeypatch, capsysbinary):
    class Stream:
        def __init__(self):
            self.lines = [b"bread\n"]

        def readline(self, size):
            if not self.lines:
                raise KeyboardInterrupt
            return self.lines.pop()

    class Stdin:
        buffer = Stream()

    monkeypatch.setattr(sys, "stdin", Stdin)
    assert embed([str(run)]) == 130
    assert capsysbinary.readouterr().out == b""


def test_stored_vectors_rank_as_the_texts_do(run, tmp_path, capsysbinary, monkeypatch):
    (tmp_path / "vectors.npy").write_bytes(embedded(run, capsysbinary, monkeypatch))
    (tmp_path / "texts.txt").write_bytes(b"\n".join(LINES) + b"\n")
    flags = ["--rank", tmp_path / "texts.txt"]
    expected = call(predict, run, *flags, stdin=LINES[0]).json
    found = call(predict, run, *flags, "--vectors", tmp_path / "vectors.npy", stdin=LINES[0]).json
    assert [entry["line"] for entry in found["ranking"]] == [entry["line"] for entry in expected["ranking"]]
    assert json.dumps(found["query"]) == json.dumps(TEXTS[0])
    scores, others = ([entry["score"] for entry in each["ranking"]] for each in (found, expected))
    assert scores == pytest.approx(others, abs=1e-6)


def test_invalid_input_models_vectors_and_flags_are_refused(run, tmp_path, news_run, monkeypatch):
    monkeypatch.chdir(tmp_path)
    make_pair_bundle().save(tmp_path / "cross")
    make_pair_bundle(form="joint").save(tmp_path / "joint")
    (tmp_path / "texts.txt").write_bytes(b"\n".join(LINES) + b"\n")
    (tmp_path / "empty.npy").touch()
    (tmp_path / "zip.npy").write_bytes(b"PK\x03\x04 and no more")
    (tmp_path / "none.npy").write_bytes(b"nothing")
    np.save(tmp_path / "few.npy", np.zeros((2, 16), np.float32))
    np.save(tmp_path / "objects.npy", np.array([{}]), allow_pickle=True)
    with open(tmp_path / "terabytes.npy", "wb") as file:
        header = {"descr": "<f4", "fortran_order": False, "shape": (10**9, 1_000)}
        np.lib.format.write_array_header_1_0(file, header)
    np.savez(tmp_path / "several.npz", np.zeros((9, 16), np.float32))
    rank = ["--rank", "texts.txt", "--vectors"]
    for name, header in ((news_run.folder, b"id,text\n"), (run, b"text_a,text_b\n")):
        assert refused(tmp_path, embed, str(name), "--format=jsonl", stdin=header + b"1,x\n") == (
            "stdin:1: expected one text per line, got the header of a table; give its texts alone"
        )
    assert refused(tmp_path, predict, str(run), "--rank=texts.txt", stdin=b"text_a,label\nx,1\n") == (
        "stdin:1: expected one text per line, got the header of a table; give the queries alone"
    )
    assert "got a matcher of the joint form" in refused(tmp_path, embed, "joint")
    assert refused(tmp_path, embed, "nowhere").startswith("nowhere: expected ")
    news = str(news_run.folder)
    assert refused(tmp_path, embed, news, "--side", "a") == "--side: expected a matcher, got a classifier"
    message = "--max-length: expected a published checkpoint, got a classifier of its own length"
    assert refused(tmp_path, embed, news, "--max-length", "9") == message
    assert refused(tmp_path, embed, news, "--format", "csv").startswith("--format: expected one of")
    write_tiny_bert(tmp_path / "tiny")
    for length in ("2", "13"):
        message = f"--max-length: expected 3 to the 12 positions of tiny, got {length}"
        assert refused(tmp_path, embed, "tiny", "--max-length", length) == message
    message = "--side: expected a matcher, got a published checkpoint"
    assert refused(tmp_path, embed, "tiny", "--side", "a") == message
    (tmp_path / "tiny" / "model.safetensors").write_bytes(b"cut off")
    assert "model.safetensors" in refused(tmp_path, embed, "tiny")
    assert refused(tmp_path, embed, str(run), "--side", "c").startswith("--side: expected one of 'a', 'b'")
    assert refused(tmp_path, predict, str(run), "--vectors", "few.npy").startswith(
        "--vectors: expected --rank"
    )
    for name in (
        "none.npy",
        "empty.npy",
        "zip.npy",
        "objects.npy",
        "nowhere.npy",
        "several.npz",
        "terabytes.npy",
    ):
        message = refused(tmp_path, predict, str(run), *rank, name)
        assert message.startswith(f"--vectors {name}: expected a file that training.embed wrote, ")
    message = refused(tmp_path, predict, str(run), *rank, "few.npy")
    assert "expected finite float32 of shape [9, 16], one for each candidate, got float32 of shape" in message
    assert "bi form" in refused(tmp_path, predict, "cross", *rank, "few.npy")
