"""A short run of `make fuzz` with fixed numbers, on seeds that need no torch; and that its rule is a rule."""

from __future__ import annotations

import contextlib
import json
import os
import re
import signal
import sys
import time
from dataclasses import replace
from pathlib import Path
from random import Random

import click
import onnx
import pytest
from measure.fuzzing.cases import COMMANDS, PER_FILE, MutatedFile, draw_file
from measure.fuzzing.fuzz_page import compose_fuzz_page, list_failures
from measure.fuzzing.mutate_documents import mutate_json_file, mutate_packed
from measure.fuzzing.mutate_messages import mutate_message, serialize
from measure.fuzzing.run_cases import CaseResult, Scratch, Supervisor, read_results
from measure.fuzzing.seeds import Seed, make_seeds
from measure.job import ROOT
from tests.support.any_files import with_bodies
from tests.support.children import run_child, started

from measure.fuzzing import limits, run_cases
from modelexport.cli.main import run_guarded
from modelexport.record.packed import squeeze, unsqueeze

FILES = 24


@pytest.fixture(scope="module")
def seeds(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, tuple[Seed, ...]]:
    folder = tmp_path_factory.mktemp("fuzz") / "seeds"
    folder.mkdir()
    return folder, make_seeds(folder, with_torch=False)


def test_mutated_files_are_answered_or_refused(seeds: tuple[Path, tuple[Seed, ...]]) -> None:
    """In a process of its own, as `make fuzz` does it: what is forked must not inherit threads of the tests."""
    folder, _ = seeds
    command = [sys.executable, "-W", "ignore", "-m", "measure.fuzzing.run_cases"]
    cases = FILES * PER_FILE
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(map(str, (ROOT / "src", ROOT)))}
    done = run_child([*command, str(folder.parent), "0/1", "0", str(cases), "600"], cwd=ROOT, env=environment)
    assert done.returncode == 0, done.stderr
    results = list(read_results(folder.parent))
    assert len(results) == cases
    assert [result for result in results if result.fault] == []
    # Files that all verbs refuse, or that are as good as sound, would show nothing.
    assert {0, 1, 2} == {result.code for result in results}
    assert sum(result.code == 0 for result in results) > cases / 5
    assert {result.verb for result in results} >= COMMANDS.keys()
    assert "No case broke the rule." in list_failures(results)
    assert f"| **all** | {cases} |" in compose_fuzz_page(results)


_FUZZ_UNTIL_ENDED = """
import sys
from pathlib import Path
from measure.catalogue import Options
from measure.fuzzing import fuzz_run
from measure.workers import ending_on_signals
fuzz_run.FOLDER = Path(sys.argv[1])
with ending_on_signals():
    fuzz_run.run_cases(Options(cases=1_000_000, jobs=1))
"""


_RESUME = """
import sys
from pathlib import Path
from measure.catalogue import Options
from measure.fuzzing import fuzz_run
fuzz_run.FOLDER = Path(sys.argv[1])
fuzz_run.run_cases(Options(cases=24, jobs=1, resume=True))
"""


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
def test_ended_by_a_signal_it_leaves_no_process(
    number: int, seeds: tuple[Path, tuple[Seed, ...]], tmp_path: Path
) -> None:
    """The signal goes to the first process alone; a case that runs, and may hang, is two processes below."""
    (tmp_path / "seeds").symlink_to(seeds[0])
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(map(str, (ROOT / "src", ROOT)))}
    command = [sys.executable, "-W", "ignore", "-c", _FUZZ_UNTIL_ENDED, str(tmp_path)]
    with started(command, cwd=ROOT, env=environment, start_new_session=True) as run:
        while run.poll() is None and not any(path.stat().st_size for path in tmp_path.glob("share0/results.jsonl")):
            time.sleep(0.05)
        assert len(_find_processes(tmp_path)) >= 3
        run.send_signal(number)
        assert run.wait(60) == 128 + number
        assert _find_processes(tmp_path) == []


def _find_processes(folder: Path) -> list[str]:
    """Those with this folder in their command line, which forked ones share: cases run in sessions of their own."""
    commands = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        with contextlib.suppress(OSError):
            commands.append(path.read_bytes())
    return [command.decode() for command in commands if str(folder).encode() in command]


def test_a_run_goes_on_where_it_was_and_runs_again_what_broke_the_rule(
    seeds: tuple[Path, tuple[Seed, ...]], tmp_path: Path
) -> None:
    """Run with two shares and ended, and resumed with one: every case once, and what had failed says so."""
    (tmp_path / "seeds").symlink_to(seeds[0])
    done = [CaseResult(number, "tagged", "record", "cost", 0, 1.25) for number in range(16)]
    done[3] = replace(done[3], code=3, fault="exit 3")
    for share in (0, 1):
        lines = [json.dumps(result.to_json()) + "\n" for result in done if result.number // PER_FILE % 2 == share]
        (tmp_path / f"share{share}").mkdir()
        (tmp_path / f"share{share}" / "results.jsonl").write_text("".join(lines) + '{"number": 17, "se')
    for expected in (24, 24):  # the second time, nothing is left to do
        run_child(
            [sys.executable, "-W", "ignore", "-c", _RESUME, str(tmp_path)],
            cwd=ROOT,
            env={**os.environ, "PYTHONPATH": os.pathsep.join(map(str, (ROOT / "src", ROOT)))},
        )
        results = read_results(tmp_path)
        assert [result.number for result in results] == list(range(expected))
        assert [result.number for result in results if result.seconds == 1.25] == [*range(3), *range(4, 16)]
        assert [(result.number, result.fault, result.earlier) for result in results if result.earlier] == [
            (3, "", "exit 3")
        ]
    page = compose_fuzz_page(results)
    assert "24 cases, from 0 to 23" in page
    assert re.search(r"first run, and do no longer.*\| exit 3 \| 1 \| 3 \(\w+\)", page, re.DOTALL)


def test_a_number_is_always_the_same_case(seeds: tuple[Path, tuple[Seed, ...]]) -> None:
    folder, known = seeds
    assert draw_file(7, known, folder) == draw_file(7, known, folder)
    assert draw_file(7, known, folder) != draw_file(8, known, folder)


@pytest.mark.parametrize(
    ("code", "fault"),
    [
        ("raise KeyError('odd')", "exit 3"),
        ("while True: pass", "time"),
        ("import time; time.sleep(60)", "time"),
        ("import os; os.abort()", "SIGABRT"),
        ("x = bytes(8 << 30)", "memory"),
        ("import sys; sys.stderr.write('x' * 600)", "long line"),
    ],
)
def test_what_breaks_the_rule_is_found_and_costs_one_case(
    code: str,
    fault: str,
    seeds: tuple[Path, tuple[Seed, ...]],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    folder, known = seeds
    supervisor = Supervisor(Scratch(folder, tmp_path))
    file = draw_file(3, known, folder)
    first = MutatedFile(file.files, file.cases[:3])
    _run_instead(code, file.cases[2].verb, monkeypatch)
    results = list(supervisor.run([first]))
    assert [result.number for result in results] == [case.number for case in first.cases]
    assert [bool(result.fault) for result in results] == [False, False, True]
    assert results[2].fault == fault
    assert results[2].where.startswith("cli/main.py") == (fault in ("exit 3", "time", "memory")), results[2].where


def _run_instead(code: str, verb: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Have a verb run other code, in the children of this process, which may take one second."""

    def run(*_: object) -> int:
        exec(code)
        return 0

    def run_other(command: click.Command, arguments: list[str]) -> int:
        if arguments[0] == verb:
            from modelexport.cli import main

            monkeypatch.setattr(main, "_run", run)
        return run_guarded(command, arguments)

    monkeypatch.setattr(limits, "SECONDS", 1.0)
    monkeypatch.setattr(limits, "LOOK", 0.1)
    monkeypatch.setattr(run_cases, "run_guarded", run_other)


def test_a_case_that_is_not_let_run_is_not_at_fault(
    seeds: tuple[Path, tuple[Seed, ...]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A busy machine gives a process of low priority nothing for many seconds. Here it is stopped for three."""
    folder, known = seeds
    file = draw_file(3, known, folder)
    stopped = (
        "import os, signal, subprocess; "
        "subprocess.Popen(['sh', '-c', f'sleep 3; kill -CONT {os.getpid()}']); os.kill(os.getpid(), signal.SIGSTOP)"
    )
    _run_instead(stopped, file.cases[0].verb, monkeypatch)
    began = time.monotonic()
    (result,) = Supervisor(Scratch(folder, tmp_path)).run([MutatedFile(file.files, file.cases[:1])])
    assert (result.code, result.fault) == (0, "")
    assert time.monotonic() - began > 2


def test_every_message_is_reached_and_text_can_be_invalid() -> None:
    random, kinds, invalid = Random(0), set(), 0
    for _ in range(300):
        model = with_bodies()
        before = model.SerializeToString()
        mutate_message(model, random)
        data = serialize(model)
        invalid += b"\xff\xfe" in data
        kinds.add(data != before)
    assert kinds >= {True}
    assert invalid


def test_documents_and_packed_records_stay_readable_as_such() -> None:
    random = Random(0)
    document = {"modules": {"a": [1, 2, {"b": "c"}]}, "keys": ["x", "y"]}
    mutated = [mutate_json_file(json.dumps(document).encode(), random) for _ in range(100)]
    assert sum(json.dumps(document).encode() != data for data in mutated) > 80
    packed = mutate_packed(f"modelexport-record-2:{squeeze(document)}", random)
    assert unsqueeze(packed.partition(":")[2]) != document


def test_failures_are_listed_by_where_they_happened() -> None:
    results = [
        CaseResult(number, "tagged", "record", "cost", 3, fault="exit 3", where="graph/index.py:12 f KeyError: 'a'")
        for number in range(4)
    ]
    assert list_failures(results).splitlines() == [
        "     4  exit 3       graph/index.py:12 f KeyError: 'a'  [0 (cost), 1 (cost), 2 (cost)]"
    ]


def test_a_mutated_model_can_be_any_model(seeds: tuple[Path, tuple[Seed, ...]]) -> None:
    """Mutations by field leave a file that protobuf reads, or verbs would never get to see the fields."""
    folder, known = seeds
    files = (draw_file(number, known, folder) for number in range(200))
    structured = [file for file in files if file.cases[0].mutation == "message"]
    for file in structured[:30]:
        for path, data in file.files.items():
            if path.suffix == ".onnx":
                onnx.ModelProto().ParseFromString(data) if b"\xff\xfe\xc3" not in data else None
