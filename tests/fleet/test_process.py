"""A process ends by itself or is ended, and nothing of it is left."""

from __future__ import annotations

import sys
import threading
import time
from pathlib import Path

import pytest

from modelexport.fleet.pool import Pool
from modelexport.fleet.process import Cause, Ended, Limits, ProcessSpec, find_session, run_process

needs_proc = pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="memory is read from /proc")


def run(folder: Path, code: str, limits: Limits | None = None, stop: threading.Event | None = None) -> Ended:
    spec = ProcessSpec((sys.executable, "-S", "-c", code), folder, output=folder / "out", errors=folder / "out")
    return run_process(spec, limits or Limits(), stop)


def said(folder: Path) -> str:
    return (folder / "out").read_text()


def test_the_exit_code_and_what_it_said_come_through(tmp_path: Path) -> None:
    ended = run(tmp_path, "import os, sys; print('hello', flush=True); print('you', file=sys.stderr); os._exit(7)")
    assert (ended.cause, ended.code) == (Cause.EXITED, 7)
    assert said(tmp_path) == "hello\nyou\n"


def test_a_signal_is_a_negative_code(tmp_path: Path) -> None:
    assert run(tmp_path, "import os, signal; os.kill(os.getpid(), signal.SIGSEGV)").code == -11


def test_one_that_hangs_is_cut_off_even_if_it_ignores_that(tmp_path: Path) -> None:
    code = "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); time.sleep(60)"
    ended = run(tmp_path, code, Limits(timeout=0.5))
    assert ended.cause is Cause.TIMED_OUT
    assert ended.seconds < 20


@needs_proc
def test_memory_of_its_children_counts(tmp_path: Path) -> None:
    eat = "x = bytearray(400_000_000); import time; time.sleep(60)"
    code = f"import subprocess, sys; subprocess.run([sys.executable, '-S', '-c', {eat!r}])"
    ended = run(tmp_path, code, Limits(timeout=50, memory=200_000_000))
    assert ended.cause is Cause.OUT_OF_MEMORY
    assert ended.peak_bytes is not None
    assert ended.peak_bytes > 200_000_000


@needs_proc
def test_memory_of_what_has_left_its_parent_counts(tmp_path: Path) -> None:
    """Nobody lists it as a child; it is found among all processes."""
    code = (
        "import os, time\n"
        "if os.fork():\n    time.sleep(60)\n"
        "elif os.fork():\n    os._exit(0)\n"
        "time.sleep(1)\nx = bytearray(400_000_000)\ntime.sleep(60)"
    )
    ended = run(tmp_path, code, Limits(timeout=50, memory=200_000_000))
    assert ended.cause is Cause.OUT_OF_MEMORY


@needs_proc
def test_what_it_has_started_ends_with_it(tmp_path: Path) -> None:
    code = "import subprocess, os; print(os.getsid(0)); subprocess.Popen(['sleep', '300'])"
    run(tmp_path, code)
    deadline = time.monotonic() + 10
    while find_session(int(said(tmp_path))) and time.monotonic() < deadline:
        time.sleep(0.05)  # killed, and not yet waited for by whoever inherits it
    assert not find_session(int(said(tmp_path)))


def test_it_ends_when_nobody_wants_it(tmp_path: Path) -> None:
    stop = threading.Event()
    threading.Timer(0.3, stop.set).start()
    assert run(tmp_path, "import time; time.sleep(60)", stop=stop).cause is Cause.STOPPED


def test_a_command_that_cannot_be_started_says_so(tmp_path: Path) -> None:
    spec = ProcessSpec(("/nowhere/python",), tmp_path, output=tmp_path / "out", errors=tmp_path / "out")
    assert run_process(spec, Limits()).code == 127
    assert "cannot start /nowhere/python" in said(tmp_path)


@needs_proc
def test_it_dies_with_whoever_started_it(tmp_path: Path) -> None:
    """A worker that is killed must not leave an export behind."""
    inner = (
        "import sys; from pathlib import Path; from modelexport.fleet.process import *\n"
        f"run_process(ProcessSpec((sys.executable, '-S', '-c', 'import os, time; print(os.getpid(), flush=True);"
        f" time.sleep(120)'), Path({str(tmp_path)!r}), output=Path({str(tmp_path / 'pid')!r})), Limits())"
    )
    source = Path(__file__).parents[2] / "src"
    outer = f"import sys; sys.path.insert(0, {str(source)!r})\n{inner}"
    spec = ProcessSpec((sys.executable, "-c", outer), tmp_path, output=tmp_path / "out", errors=tmp_path / "out")
    # The inner process has a session of its own, so that only the death of its parent can end it.
    run_process(spec, Limits(timeout=5))
    process = int((tmp_path / "pid").read_text())
    deadline = time.monotonic() + 10
    while Path(f"/proc/{process}").exists() and time.monotonic() < deadline:
        time.sleep(0.05)
    assert not Path(f"/proc/{process}").exists()


class TestPool:
    def test_results_come_as_they_end_and_all_of_them(self) -> None:
        with Pool[int, int](3) as pool:
            assert sorted(pool.run(range(20), lambda number: number * 2)) == [(n, 2 * n) for n in range(20)]

    def test_an_error_of_the_work_is_raised_and_nothing_new_is_started(self) -> None:
        begun = []

        def work(number: int) -> None:
            begun.append(number)
            time.sleep(0.01)
            raise KeyError(number)

        with pytest.raises(KeyError), Pool[int, None](1) as pool:
            list(pool.run(range(100), work))
        assert len(begun) < 100

    def test_leaving_it_ends_processes(self, tmp_path: Path) -> None:
        start = time.monotonic()
        with Pool[str, Ended](2) as pool:
            for name in "ab":
                (tmp_path / name).mkdir()
                pool.submit(name, lambda item: run(tmp_path / item, "import time; time.sleep(60)", stop=pool.stop))
            time.sleep(0.3)
        assert time.monotonic() - start < 30
