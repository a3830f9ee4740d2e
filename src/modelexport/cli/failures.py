"""The edge of the program: every failure becomes one message and an exit code, and no traceback unless asked for."""

from __future__ import annotations

import errno
import os
import sys
import traceback
from dataclasses import dataclass

import click

from modelexport.errors import ModelExportError
from modelexport.views.printable import printable_lines

_USAGE, _FAILED, _INTERRUPTED, _BROKEN_PIPE = 2, 3, 130, 141
_DISK_FULL = (errno.ENOSPC, errno.EDQUOT)


@dataclass(frozen=True, slots=True)
class _Failure:
    exit_code: int
    message: str
    hint: str = ""


def run_guarded(command: click.Command, arguments: list[str]) -> int:
    """Run a command; its exit code."""
    _open_closed_output()
    # A name that the terminal's encoding cannot show must not end the program.
    for stream in (sys.stdout, sys.stderr):
        getattr(stream, "reconfigure", lambda **_: None)(errors="backslashreplace")
    debug = "--debug" in arguments
    try:
        result = _run(command, arguments)
        sys.stdout.flush()
    except BrokenPipeError:
        _leave_output()  # the reader went away (`| head`), which is its right
        return _BROKEN_PIPE
    except (Exception, KeyboardInterrupt) as error:  # noqa: BLE001 - nothing may reach the user as a traceback
        failure = _failure(error)
        if debug:
            traceback.print_exc()
        _say(failure)
        return failure.exit_code
    return result


def _run(command: click.Command, arguments: list[str]) -> int:
    # Not `command.main`, which has other ideas about interrupts and broken pipes.
    try:
        with command.make_context("modelexport", list(arguments)) as context:
            result = command.invoke(context)
    except click.exceptions.Exit as stopped:
        return stopped.exit_code
    return result if isinstance(result, int) else 0


def _failure(error: BaseException) -> _Failure:
    match error:
        case KeyboardInterrupt() | click.Abort():
            return _Failure(_INTERRUPTED, "interrupted")
        case click.ClickException():
            return _Failure(_USAGE, f"error: {error.format_message()}", _usage_hint(error))
        case ModelExportError():
            return _Failure(error.exit_code, f"error: {error.message}", error.hint)
        case OSError(errno=code) if code in _DISK_FULL:
            _leave_output()
            return _Failure(_USAGE, f"error: {error.strerror}", "Free some space, or write to another disk.")
    described = f"{type(error).__name__}: {error}" if str(error) else type(error).__name__
    hint = "This is a fault of modelexport: run it again with --debug and report what it says."
    return _Failure(_FAILED, f"error: unexpected {described}", hint)


def _usage_hint(error: click.ClickException) -> str:
    context = getattr(error, "ctx", None)
    return f"See `{context.command_path} --help`." if isinstance(context, click.Context) else ""


def _say(failure: _Failure) -> None:
    for text in (failure.message, failure.hint):
        if text:
            click.echo(printable_lines(text), err=True)


def _open_closed_output() -> None:
    """Whoever starts a program without output (`>&-`) wants none; and the first file must not get its number."""
    for name in ("stdout", "stderr"):
        if getattr(sys, name) is None:
            setattr(sys, name, os.fdopen(os.open(os.devnull, os.O_WRONLY), "w", encoding="utf-8"))


def _leave_output() -> None:
    """Nothing can be written to standard output any more, and Python must not try when it flushes at exit."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
