"""The speech example reads recordings, computes spectrograms and trains both models."""

import io
import tarfile
import wave

import numpy as np
import pytest

from examples import speech
from examples.speech import (
    BANDS,
    FRAMES,
    HOP,
    RATE,
    TOKENS,
    WINDOW,
    log_mel,
    main,
    read_recordings,
    tokens_of,
)
from tests.command_runs import call


def write_archive(path, rate: int):
    recording = io.BytesIO()
    with wave.open(recording, "wb") as file:
        file.setparams((1, 2, rate, 0, "NONE", ""))
        file.writeframes(np.array([0, 2**14, -(2**15)], "<i2").tobytes())
    with tarfile.open(path, "w:gz") as archive:
        for name, content in (("x/README", b"text"), ("x/7_ann_12.wav", recording.getvalue())):
            member = tarfile.TarInfo(name)
            member.size = len(content)
            archive.addfile(member, io.BytesIO(content))
    return path


def test_recordings_are_read_from_an_archive(tmp_path):
    ((digit, index, samples),) = read_recordings(write_archive(tmp_path / "a.tar.gz", RATE))
    assert (digit, index, samples.tolist()) == (7, 12, [0, 0.5, -1])
    with pytest.raises(ValueError, match="expected 8 kHz, mono, 16 bits, got"):
        list(read_recordings(write_archive(tmp_path / "b.tar.gz", 44_100)))


def test_a_higher_tone_is_in_a_higher_band():
    time = np.arange(RATE // 2) / RATE
    low, high = (log_mel(np.sin(2 * np.pi * hertz * time)) for hertz in (500, 1500))
    assert low.shape == ((len(time) - WINDOW) // HOP + 1, BANDS)
    # 500 and 1500 hertz are at 28 % and 60 % of the mel scale up to 4000.
    assert set(low.argmax(axis=1)) <= {10, 11} and set(high.argmax(axis=1)) <= {23, 24}
    assert log_mel(np.zeros(3, "float32")).shape == (1, BANDS)


def test_frames_are_joined_to_tokens():
    frames = np.arange(6 * BANDS, dtype="float32").reshape(6, BANDS)
    tokens, mask = tokens_of([frames, np.ones((TOKENS * FRAMES + 1, BANDS), "float32")])
    assert tokens[0, 0].tolist() == frames[:4].ravel().tolist()
    assert tokens[0, 1, : 2 * BANDS].tolist() == frames[4:].ravel().tolist()
    assert not tokens[0, 1, 2 * BANDS :].any() and mask.sum(axis=1).tolist() == [2, TOKENS]


def test_a_missing_file_is_an_error(capsys):
    with pytest.raises(SystemExit, match="2"):
        main(["--data", "missing.tar.gz"])
    assert "--data: expected a file, got missing.tar.gz" in capsys.readouterr().err


@pytest.mark.second
def test_attention_distinguishes_the_order_of_tones(monkeypatch, tmp_path):
    monkeypatch.setattr(speech, "DATA", tmp_path / "missing")
    result = call(main).json
    assert (result["data"], result["training_rows"], result["test_rows"]) == ("generated", 950, 50)
    # Chance is 0.1; the mean spectrum does not have the order of tones.
    assert result["accuracy"] > 0.9 and 0.3 < result["baseline_accuracy"] < 0.8
