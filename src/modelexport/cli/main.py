"""The command line: the group of verbs, and the edge where every failure becomes a message and an exit code.

Each verb parses its options, calls the api once and hands the result to one view. Which file it is in is said by
`_FILES`; options that several verbs have are in options.py. A verb's file is imported when the verb is used, so that
`--help` and the verbs that only read stay quick. A new verb is a command in one of these files, its line of help in
`_SECTIONS` and its name in `_FILES`.
"""

from __future__ import annotations

import errno
import gc
import io
import os
import signal
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from importlib import import_module
from typing import NamedTuple, TextIO

import click

from modelexport.errors import ModelExportError, UnknownName, UserError, printable_lines
from modelexport.record.limits import MESSAGE_CHARACTERS

# The help texts are here so that listing the verbs imports none of them.
_SECTIONS = {
    "Make tagged files": {
        "export": "Export a model to ONNX and record which module produced each node.",
        "fill": "Put the weights of a checkpoint into a file that was exported without them.",
        "attach": "Tag a file that another tool exported, by its model or by what the file says itself.",
        "relink": "Carry the record to a file that an optimizer or quantizer made of a tagged one.",
        "run-tool": "Run an optimizer, converter or quantizer on a file, and relink what comes out.",
        "quantize": "Quantize a file with ONNX Runtime, by module, and relink what comes out.",
    },
    "Ask": {
        "analyze": "Show what a file consists of, module by module.",
        "query": "List the nodes that a query means: by module, operator, role, confidence and more.",
        "view": "Write one HTML page that shows a file: modules, sizes, dataflow, and how well everything is known.",
        "cost": "Count the FLOPs, parameters and bytes of a file, module by module.",
        "profile": "Run a file in ONNX Runtime and show in which module its time goes.",
        "compare": "Count how two files differ, module by module.",
        "diff": "Show what changed between two files, or two modules: nodes, attributes, shapes, weights, cost.",
    },
    "Check": {
        "validate": "Check a file, its record and its tags.",
        "verify": "Compare a file with its model, or with another file of it, module by module; prove attributions.",
        "strategies": "Judge a file by every strategy, side by side.",
    },
    "Use modules as handles": {
        "extract": "Write a module, several, or what a query means as a file of its own.",
        "select": "Write the nodes that a query means for another tool: quantizers, placement, splitting, precision.",
        "fold": "Make modules that repeat into ONNX functions, nested as the modules are.",
        "flatten": "Put functions in the place of their calls: the way back from `fold`.",
        "convert": "Write a file as other viewers show it: Model Explorer, GraphML, Graphviz, Mermaid, CSV, Netron.",
        "strip": "Write a file without what this tool has put into it.",
    },
    "Many models": {
        "fleet": "Run these commands on many models, each in a process of its own, here or on a cluster.",
    },
}
# In the order in which help lists them.
_VERBS = tuple(verb for section in _SECTIONS.values() for verb in section)
_FILES = {
    "export": ("export", "fill", "attach", "strategies"),
    "tools": ("relink", "run-tool", "quantize"),
    "read": ("analyze", "query", "validate", "cost", "profile"),
    "compare": ("compare", "diff", "verify"),
    "transform": ("extract", "select", "fold", "flatten", "strip"),
    "show": ("view", "convert"),
    "fleet": ("fleet",),
}
_FILE_OF = {verb: file for file, verbs in _FILES.items() for verb in verbs}


class LazyVerbs(click.Group):
    def list_commands(self, ctx: click.Context) -> list[str]:  # noqa: ARG002 - click calls it so
        return list(_VERBS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:  # noqa: ARG002 - click calls it so
        if cmd_name not in _VERBS:
            return None
        module = import_module(f"modelexport.cli.{_FILE_OF[cmd_name]}")
        command = getattr(module, cmd_name.replace("-", "_"))
        return command if isinstance(command, click.Command) else None

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """An unknown verb is answered with the nearest one."""
        if args and args[0] not in _VERBS and not args[0].startswith("-"):
            raise UnknownName("command", args[0], _VERBS)
        return super().resolve_command(ctx, args)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:  # noqa: ARG002 - click calls it so
        """In sections by purpose, where click would sort them by name."""
        for title, verbs in _SECTIONS.items():
            with formatter.section(title):
                formatter.write_dl(list(verbs.items()))


def show_version(ctx: click.Context, _: click.Parameter, asked: bool) -> None:
    if asked:
        click.echo(f"modelexport {_version()}")
        ctx.exit()


def _version() -> str:
    from importlib import metadata

    try:
        return metadata.version("modelexport")
    except metadata.PackageNotFoundError:
        return "(not installed)"


GARBAGE_EVERY = 100_000
# 128 + the number of the signal, as shells have it, for the last two.
_USAGE, _FAILED, _INTERRUPTED, _BROKEN_PIPE = 2, 3, 130, 141
# No space at all, none left of what this user may have, or more than one file may have.
_DISK_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)


# Not a dataclass, which takes longer to make than all else that `--help` needs of this file.
class _CommandFailure(NamedTuple):
    exit_code: int
    message: str
    hint: str = ""


def run_guarded(command: click.Command, arguments: list[str]) -> int:
    _open_closed_output()
    _complete_output()
    # A name that the terminal's encoding cannot show must not end the program.
    for stream in (sys.stdout, sys.stderr):
        getattr(stream, "reconfigure", lambda **_: None)(errors="backslashreplace")
    debug = "--debug" in arguments  # not by click: parsing itself may fail
    with _ending_on_signals() as arrived:
        try:
            result = _run(command, arguments)
            sys.stdout.flush()
        except BrokenPipeError:
            _leave_output()  # the reader went away (`| head`), which is its right
            return _BROKEN_PIPE
        except (Exception, KeyboardInterrupt, SystemExit) as error:  # noqa: BLE001 - nothing may reach the user as a traceback
            failure = _failure(Stopped(arrived[0]) if arrived else error)
            if debug:
                import traceback

                traceback.print_exc()
        else:
            if not arrived:
                return result
            failure = _failure(Stopped(arrived[0]))
        _say(failure)
        return failure.exit_code


class Stopped(KeyboardInterrupt):
    """A signal asks the program to end: whatever an interrupt cleans up is cleaned up."""

    def __init__(self, number: int) -> None:
        super().__init__()
        self.exit_code = 128 + number


@contextmanager
def _ending_on_signals() -> Iterator[list[int]]:
    """A `kill` or a closed terminal ends the program as Ctrl-C does, unless it was started to ignore that (`nohup`).

    The numbers of the signals that came are kept: code in C that is imported at that moment makes an ImportError of
    whatever is raised, and somebody may take it for a package that is missing.
    """
    arrived: list[int] = []

    def stop(number: int, _: object) -> None:
        arrived.append(number)
        raise Stopped(number)

    numbers = [getattr(signal, name) for name in ("SIGINT", "SIGTERM", "SIGHUP") if hasattr(signal, name)]
    usual = (signal.SIG_DFL, signal.default_int_handler)
    before = {number: handler for number in numbers if (handler := signal.getsignal(number)) in usual}
    if threading.current_thread() is not threading.main_thread():
        before = {}
    try:
        for number in before:
            signal.signal(number, stop)
        yield arrived
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _run(command: click.Command, arguments: list[str]) -> int:
    """Errors of click come out as they are: its own `main` would print them and end the process."""
    # Not `command.main`, which has other ideas about interrupts and broken pipes.
    try:
        with command.make_context("modelexport", list(arguments)) as context:
            result = command.invoke(context)
    except click.exceptions.Exit as stopped:
        return stopped.exit_code
    return result if isinstance(result, int) else 0


def _failure(error: BaseException) -> _CommandFailure:
    """Exit codes: 2 the user can fix it, 3 a fault of this program, 128 and the number of the signal that ended it."""
    match error:
        case KeyboardInterrupt() | click.Abort():
            return _CommandFailure(error.exit_code if isinstance(error, Stopped) else _INTERRUPTED, "interrupted")
        case SystemExit():
            hint = "Take the call of sys.exit out of the code of the model."
            return _CommandFailure(_USAGE, f"error: the code of the model ended the program ({error.code})", hint)
        case click.ClickException():
            return _CommandFailure(_USAGE, f"error: {error.format_message()}", _usage_hint(error))
        case ModelExportError():
            return _CommandFailure(error.exit_code, f"error: {error.message}", error.hint)
    return _exhausted(error) or _fault(error)


def _exhausted(error: BaseException) -> _CommandFailure | None:
    """Of the disk, of memory, or of Python's stack there was not enough for the input."""
    match error:
        case OSError(errno=code) if code in _DISK_FULL:
            _leave_output()
            return _CommandFailure(_USAGE, f"error: {error.strerror}", "Free some space, or write to another disk.")
        case OSError(errno=int(), filename=str(name)):
            return _CommandFailure(_USAGE, f"error: {name}: {(error.strerror or '').lower()}", "Check the path.")
        case MemoryError():
            return _CommandFailure(
                _USAGE, "error: there is not enough memory for this", "Use a smaller file, or more memory."
            )
        case RecursionError():
            return _CommandFailure(
                _USAGE, "error: the input is nested too deeply", "Run it again with --debug to see where."
            )
    return None


def _fault(error: BaseException) -> _CommandFailure:
    described = f"{type(error).__name__}: {error}" if str(error) else type(error).__name__
    hint = "This is a fault of modelexport: run it again with --debug and report what it says."
    return _CommandFailure(_FAILED, f"error: unexpected {described}", hint)


def _usage_hint(error: click.ClickException) -> str:
    context = getattr(error, "ctx", None)
    return f"See `{context.command_path} --help`." if isinstance(context, click.Context) else ""


def _say(failure: _CommandFailure) -> None:
    try:
        for text in (failure.message, failure.hint):
            if text:
                click.echo(printable_lines(text, MESSAGE_CHARACTERS), err=True)
    except OSError:
        # Full, or read by nobody: the exit code has to do, and one of Python itself would say something else.
        _leave_output(sys.stderr)


def _open_closed_output() -> None:
    """Whoever starts a program without output (`>&-`) wants none; and the first file must not get its number."""
    for name in ("stdout", "stderr"):
        if getattr(sys, name) is None:
            setattr(sys, name, os.fdopen(os.open(os.devnull, os.O_WRONLY), "w", encoding="utf-8"))


def _complete_output() -> None:
    """Make sure that all of the text is written, or an error raised.

    Python without buffers (`-u`, PYTHONUNBUFFERED) writes once and drops what did not fit: half a report, exit code 0.
    """
    if isinstance(getattr(sys.stdout, "buffer", None), io.RawIOBase):
        stream, number = sys.stdout, sys.stdout.fileno()
        whole = io.BufferedWriter(io.FileIO(number, "w", closefd=False))
        sys.stdout = io.TextIOWrapper(whole, stream.encoding, stream.errors, line_buffering=True)


def _leave_output(stream: TextIO | None = None) -> None:
    """Nothing more can be written to standard output, or to another stream; Python must not try when it flushes."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), (stream or sys.stdout).fileno())


@click.group(
    cls=LazyVerbs,
    context_settings={"help_option_names": ["-h", "--help"]},
    no_args_is_help=False,
    invoke_without_command=True,
)
@click.option(
    "--version",
    is_flag=True,
    is_eager=True,
    expose_value=False,
    callback=show_version,
    help="Show the version and exit.",
)
@click.pass_context
def modelexport(context: click.Context) -> None:
    """Export models to ONNX, and say which PyTorch or Hugging Face module produced each node."""
    if context.invoked_subcommand is None:
        click.echo(context.get_help())


def check_arguments(arguments: list[str]) -> None:
    """Parse a command line and run nothing. Raises UserError for a verb, an option or a value that cannot be."""
    try:
        command = modelexport.get_command(click.Context(modelexport), arguments[0])
        if command is None:
            raise UnknownName("command", arguments[0], _VERBS)
        command.make_context(arguments[0], arguments[1:])
    except click.ClickException as error:
        raise UserError(error.format_message(), f"See `modelexport {arguments[0]} --help`.") from error
    except click.exceptions.Exit as ended:
        raise UserError(f"{arguments[0]} would run nothing", "Leave out options such as --list.") from ended


def main(arguments: list[str] | None = None) -> None:
    """Run the command line and exit: 0 fine, 1 a check found something, 2 the user can fix it, 3 the tool failed."""
    arguments_given = sys.argv[1:] if arguments is None else arguments
    # A large file becomes some hundred thousand values that all stay; to look for garbage among them every 700 is a
    # quarter of the time that reading takes.
    gc.set_threshold(max(GARBAGE_EVERY, gc.get_threshold()[0]))
    try:
        code = run_guarded(modelexport, arguments_given)
    except KeyboardInterrupt as stopped:  # at the very beginning or end, when there is nothing to say about it
        code = getattr(stopped, "exit_code", _INTERRUPTED)
    if arguments is None:
        # What is left is the end of the process, which an interrupt would only garnish with a traceback.
        signal.signal(signal.SIGINT, signal.SIG_IGN)
    sys.exit(code)
