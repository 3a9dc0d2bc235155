import os
import sys

import pytest

from kmha.errors import InputError
from training.io.json_subprocess import Crashed, WorkerProcess

ECHO = "import sys\nprint('{\"ready\": true}', flush=True)\nfor line in sys.stdin: print(line, end='', flush=True)"
DIES = {
    "raising": ("raise SystemExit('out of paint')", "its process ended with status 1, saying: out of paint"),
    "killed": (
        "import os, signal; os.kill(os.getpid(), signal.SIGKILL)",
        "its process was killed by signal 9, saying nothing",
    ),
    "chatting": ("print('hello')", "its process gave no reply but 'hello'"),
}


def python(program):
    return WorkerProcess([sys.executable, "-S", "-c", program])


def is_gone(worker):
    """Whether the process has ended and its exit status has been collected."""
    with pytest.raises(ChildProcessError):
        os.waitpid(worker._process.pid, os.WNOHANG)
    return worker._process.returncode is not None


def test_requests_get_responses_in_order_and_the_process_ends():
    with python(ECHO) as worker:
        assert worker.listen() == {"ready": True}
        assert [worker.request(number=number) for number in range(3)] == [{"number": n} for n in range(3)]
    assert is_gone(worker)


@pytest.mark.parametrize("how", DIES)
def test_a_crash_is_reported_in_one_line(how):
    program, message = DIES[how]
    with python(program) as worker, pytest.raises(Crashed) as caught:
        worker.listen()
    assert str(caught.value) == message
    assert is_gone(worker)


def test_a_crash_of_an_idle_process_is_reported():
    with python("print('{}')") as worker:
        worker.listen()
        worker._process.wait()
        with pytest.raises(Crashed, match="ended with status 0"):
            worker.request(do="x" * 100_000)
    assert is_gone(worker)


def test_a_busy_process_is_not_waited_for():
    with python("import time; time.sleep(600)") as worker:
        pass
    assert is_gone(worker)


def test_input_errors_of_the_process_are_raised():
    with (
        python('print(\'{"error": "a.onnx: expected"}\')') as worker,
        pytest.raises(InputError, match=r"a\.onnx"),
    ):
        worker.listen()


def test_long_output_on_stderr_does_not_block_the_process():
    program = "import sys; sys.stderr.write('x' * 1_000_000 + chr(10) + 'last words'); sys.exit(3)"
    with python(program) as worker, pytest.raises(Crashed, match="status 3, saying: last words$"):
        worker.listen()
