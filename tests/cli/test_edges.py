from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import click
import pytest
from tests.support.children import run_child, started

from modelexport.cli.main import main, modelexport, run_guarded
from modelexport.errors import UserError


def failing(error: BaseException) -> click.Command:
    def callback(debug: bool) -> None:
        raise error

    return click.Command("verb", callback=callback, params=[click.Option(["--debug"], is_flag=True)])


def test_an_error_is_one_message_and_a_hint(capsys: pytest.CaptureFixture[str]) -> None:
    assert run_guarded(failing(UserError("it is broken", "Mend it.")), []) == 2
    captured = capsys.readouterr()
    assert (captured.out, captured.err) == ("", "error: it is broken\nMend it.\n")


def test_an_unexpected_error_has_no_traceback_unless_asked(capsys: pytest.CaptureFixture[str]) -> None:
    assert run_guarded(failing(ZeroDivisionError("oops")), []) == 3
    error = capsys.readouterr().err
    assert error.startswith("error: unexpected ZeroDivisionError: oops\n")
    assert "--debug" in error
    assert "Traceback" not in error
    assert run_guarded(failing(ZeroDivisionError("oops")), ["--debug"]) == 3
    assert "Traceback" in capsys.readouterr().err


def test_a_file_with_a_slash_behind_it_is_no_file(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run_guarded(modelexport, ["strip", str(tmp_path / "a.onnx"), "-o", f"{tmp_path}/b.onnx/"]) == 2
    assert "is a folder by its last sign, and a file by its name" in capsys.readouterr().err
    assert not (tmp_path / "b.onnx").exists()


@pytest.mark.parametrize("interrupt", [KeyboardInterrupt(), click.Abort()])
def test_an_interrupt(interrupt: BaseException, capsys: pytest.CaptureFixture[str]) -> None:
    assert run_guarded(failing(interrupt), []) == 130
    assert capsys.readouterr().err == "interrupted\n"


def test_control_characters_do_not_reach_the_terminal(capsys: pytest.CaptureFixture[str]) -> None:
    run_guarded(failing(UserError("bad name '\x1b[31m\u202e'")), [])
    assert capsys.readouterr().err == "error: bad name '\\x1b[31m\\u202e'\n"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["anlyze"], "Did you mean 'analyze'?"),
        (["analyze"], "Missing argument 'MODEL'"),
        (["analyze", "a.onnx", "--format", "xml"], "'xml' is not one of"),
        (["analyze", "a.onnx", "--no-such"], "No such option"),
        (["export", "-o", "a.onnx"], "Missing option"),
        (["--no-such"], "No such option"),
        (["analyze", "no-such-file.onnx"], "cannot read no-such-file.onnx"),
    ],
)
def test_usage_errors(arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as stopped:
        main(arguments)
    assert stopped.value.code == 2
    error = capsys.readouterr().err
    assert error.startswith("error: ")
    assert message in error


@pytest.mark.parametrize("arguments", [[], ["--help"], ["-h"], ["--version"], ["export", "--help"]])
def test_help_and_version(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as stopped:
        main(arguments)
    assert not stopped.value.code
    assert "modelexport" in capsys.readouterr().out


def _command(*arguments: str) -> list[str]:
    return [sys.executable, *arguments]


@pytest.mark.parametrize(
    "verb",
    [
        "",
        "export",
        "attach",
        "strategies",
        "verify",
        "analyze",
        "validate",
        "compare",
        "query",
        "relink",
        "run-tool",
        "profile",
    ],
)
def test_help_imports_nothing_but_click(verb: str) -> None:
    command = _command("-X", "importtime", "-m", "modelexport", *verb.split(), "--help")
    result = run_child(command, check=True, env=_environment())
    imported = {line.rsplit("|", 1)[1].strip().split(".")[0] for line in result.stderr.splitlines() if "|" in line}
    assert not imported & {"onnx", "numpy", "rich", "torch", "transformers", "onnxruntime"}


@pytest.mark.skipif(os.name == "nt", reason="pipes break differently there")
def test_a_reader_that_goes_away(small_path: Path) -> None:
    command = _command("-m", "modelexport", "analyze", str(small_path), "--format", "json")
    with started(command, env=_environment()) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        process.stdout.close()
        assert process.stderr.read() == ""
        process.wait()
    assert process.returncode == 141


@pytest.mark.skipif(os.name == "nt", reason="there is no such shell")
def test_output_that_is_closed_from_the_start(small_path: Path) -> None:
    command = _command("-m", "modelexport", "query", str(small_path), "op=*")
    closing = ["sh", "-c", 'exec "$@" >&-', "sh", *command]
    result = run_child(closing, stderr=subprocess.PIPE, env=_environment())
    assert (result.returncode, result.stderr) == (0, "")


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="there is no full device here")
def test_a_full_disk(small_path: Path) -> None:
    command = _command("-m", "modelexport", "analyze", str(small_path))
    with Path("/dev/full").open("wb") as full:
        result = run_child(command, stdout=full, stderr=subprocess.PIPE, env=_environment())
    assert (result.returncode, result.stderr.splitlines()[0]) == (2, "error: No space left on device")


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="there is no full device here")
@pytest.mark.parametrize("unbuffered", ["", "1"], ids=["buffered", "unbuffered"])
@pytest.mark.parametrize("verb", ["analyze", "--help", "nothing"])
def test_errors_that_cannot_be_said_have_their_exit_code(verb: str, unbuffered: str, small_path: Path) -> None:
    """1 would be the finding of a check."""
    command = _command("-m", "modelexport", verb, *([str(small_path)] if verb == "analyze" else []))
    environment = _environment() | {"PYTHONUNBUFFERED": unbuffered}
    with Path("/dev/full").open("wb") as full:
        assert run_child(command, stdout=full, stderr=full, env=environment).returncode == 2


@pytest.mark.skipif(os.name == "nt", reason="there is no such shell")
def test_errors_nobody_listens_to() -> None:
    closing = ["sh", "-c", 'exec "$@" 2>&-', "sh", *_command("-m", "modelexport", "nothing")]
    assert run_child(closing, env=_environment()).returncode == 2


def _environment() -> dict[str, str]:
    source = Path(__file__).parents[2] / "src"
    return {**os.environ, "PYTHONPATH": str(source)}


def test_a_file_beside_the_model_that_is_no_record_is_spared(small_path: Path, tmp_path: Path) -> None:
    notes = tmp_path / "out.hierarchy.json"
    notes.write_text('{"a": 1}')
    with pytest.raises(SystemExit) as stopped:
        main(["extract", str(small_path), "layers.0", "-o", str(tmp_path / "out.onnx")])
    assert stopped.value.code == 2
    assert notes.read_text() == '{"a": 1}'


def test_a_terminated_run_unwinds_and_says_so_by_its_exit_code(tmp_path: Path) -> None:
    code = (
        "import os, signal, sys, click\n"
        "from modelexport.cli.main import run_guarded\n"
        "@click.command()\n"
        "def wait():\n"
        "    try:\n"
        "        os.kill(os.getpid(), signal.SIGTERM)\n"
        "    finally:\n"
        "        print('cleaned up')\n"
        "sys.exit(run_guarded(wait, []))\n"
    )
    ran = run_child([sys.executable, "-c", code], cwd=tmp_path)
    assert (ran.returncode, ran.stdout) == (143, "cleaned up\n")


@pytest.mark.slow
def test_code_of_a_model_that_ends_the_program_is_an_error(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "leaving.py").write_text(
        "import sys\nimport torch\n\n\ndef build():\n    sys.exit(0)\n\n\n"
        "class Net(torch.nn.Linear):\n    def __init__(self):\n        super().__init__(2, 2)\n\n"
        "    def forward(self, x):\n        sys.exit(0)\n"
    )
    (tmp_path / "quitting.py").write_text("import sys\nsys.exit()\n")
    monkeypatch.chdir(tmp_path)
    for source in ("leaving:build", "leaving.py:build", "leaving:Net", "quitting:x", "quitting.py:x"):
        assert run_guarded(modelexport, ["export", "-m", source, "-o", "out.onnx", "--input", "x=2x2"]) == 2
        assert "the program" in capsys.readouterr().err
    assert not (tmp_path / "out.onnx").exists()


# A package in C whose import meets a signal: it makes an ImportError of what the handler raises.
_IMPORTING = (
    "import os, signal, sys, click\n"
    "from modelexport.cli.main import run_guarded\n"
    "from modelexport.errors import ExtraMissing\n"
    "signal.signal(signal.SIGINT, signal.default_int_handler)\n"
    "@click.command()\n"
    "@click.argument('number', type=int)\n"
    "@click.argument('needed', type=bool)\n"
    "def load(number, needed):\n"
    "    try:\n"
    "        os.kill(os.getpid(), number)\n"
    "    except KeyboardInterrupt:\n"
    "        if needed:\n"
    "            raise ExtraMissing.of_runtime(ImportError('initialization failed'))\n"
    "sys.exit(run_guarded(load, sys.argv[1:]))\n"
)


@pytest.mark.skipif(os.name == "nt", reason="signals work differently there")
@pytest.mark.parametrize("needed", ["true", "false"])
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_an_interrupt_that_an_import_made_another_error_of_ends_the_program(
    number: signal.Signals, needed: str
) -> None:
    ran = run_child([sys.executable, "-c", _IMPORTING, str(int(number)), needed], env=_environment())
    assert (ran.returncode, ran.stderr) == (128 + number, "interrupted\n")


@pytest.mark.skipif(os.name == "nt", reason="signals work differently there")
def test_an_interrupt_while_the_command_line_itself_is_imported(tmp_path: Path) -> None:
    (tmp_path / "click.py").write_text("import os, signal\nos.kill(os.getpid(), signal.SIGINT)\n")
    environment = _environment()
    environment["PYTHONPATH"] = os.pathsep.join((str(tmp_path), environment["PYTHONPATH"]))
    with started(_command("-m", "modelexport", "--help"), env=environment) as process:
        assert process.stderr is not None
        assert process.stderr.read() == "interrupted\n"
        process.wait()
    assert process.returncode == 130


def test_a_package_that_is_there_and_cannot_be_imported_is_not_called_missing(tmp_path: Path, small_path: Path) -> None:
    package = tmp_path / "onnxruntime"
    package.mkdir()
    (package / "__init__.py").write_text("raise ImportError('libdnnl.so.3: cannot open shared object file')\n")
    environment = _environment()
    environment["PYTHONPATH"] = os.pathsep.join((str(tmp_path), environment["PYTHONPATH"]))
    ran = run_child(_command("-m", "modelexport", "profile", str(small_path)), env=environment)
    assert ran.returncode == 2
    assert "which is installed and cannot be imported: ImportError: libdnnl.so.3: cannot open" in ran.stderr
    assert "not installed" not in ran.stderr
