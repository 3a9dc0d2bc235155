"""Runs that are replaced while they are loaded, and pairs of exports to one target, many times."""

import json
import logging
import shutil
import subprocess
import sys
import threading
import time

import pytest

from kmha.bundle.bundle import Bundle
from kmha.errors import InputError
from tests.bundles import make_bundle, one_label_bundle
from tests.command_runs import clean_environment

logger = logging.getLogger("kmha")


@pytest.mark.soak
def test_200_loads_under_a_swap_loop_are_one_run_or_an_error(tmp_path):
    bundles = {"first": one_label_bundle(), "second": make_bundle(tokenization="word")}
    expected = {}
    for name, each in bundles.items():
        each.save(tmp_path / name)
        expected[len(each.preprocessor.vocabulary)] = each.probabilities(["bread"])[0].round(5).tolist()
    run, stop, counts = tmp_path / "run", threading.Event(), {"run": 0, "error": 0}

    def swap():
        while not stop.is_set():
            for name in bundles:
                (tmp_path / name).rename(run)
                time.sleep(0.05)
                run.rename(tmp_path / name)

    swapping = threading.Thread(target=swap)
    swapping.start()
    try:
        for _ in range(200):
            try:
                bundle = Bundle.load(run)
            except InputError as error:
                assert str(run) in str(error)
                counts["error"] += 1
            else:
                found = bundle.probabilities(["bread"])[0].round(5).tolist()
                assert found == pytest.approx(expected[len(bundle.preprocessor.vocabulary)], abs=1e-4)
                counts["run"] += 1
    finally:
        stop.set()
        swapping.join()
    logger.info(f"of 200 loads {counts['run']} gave one run and {counts['error']} an error ")
    assert counts["error"] <= 10


@pytest.mark.soak
@pytest.mark.parametrize("kind", ["tflite", "onnx", "savedmodel"])
def test_20_pairs_of_exports_to_one_target_are_whole(tmp_path, kind):
    runs = [tmp_path / "a", tmp_path / "b"]
    one_label_bundle().save(runs[0])
    make_bundle(tokenization="word").save(runs[1])
    tokens = {len((run / "vocab.txt").read_text("utf-8").splitlines()) for run in runs}
    flags = [] if kind == "savedmodel" else ["--overwrite"]
    for _ in range(20):
        out = tmp_path / "out" / ("served" if kind == "savedmodel" else f"m.{kind}")
        commands = [[sys.executable, "-m", f"export.{kind}", str(run), str(out), *flags] for run in runs]
        options = {"env": clean_environment(), "stdout": subprocess.DEVNULL, "stderr": subprocess.PIPE}
        processes = [subprocess.Popen(command, **options) for command in commands]
        for process in processes:
            _, errors = process.communicate()
            assert process.returncode == 0, errors
        if kind == "savedmodel":
            assert sorted(path.name for path in out.iterdir() if path.is_dir()) == ["1", "2"]
            shutil.rmtree(out)
            continue
        values = json.loads((out.parent / "m.tokenizer.json").read_text("utf-8"))
        assert len(values["vocabulary"]) in tokens
        verify_command = [
            sys.executable,
            "-m",
            "export.verify",
            str(runs[0]),
            str(out),
            "--data",
            str(_rows(tmp_path)),
        ]
        status = subprocess.run(verify_command, env=clean_environment(), capture_output=True).returncode
        # The model is that of the run whose tokenizer is next to it.
        assert (status == 0) == (len(values["vocabulary"]) == len(one_label_bundle().preprocessor.vocabulary))


def _rows(folder):
    path = folder / "rows.csv"
    path.write_text("text,label\nbread,bread\nold harbour,harbour\n")
    return path
