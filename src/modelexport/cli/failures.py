"""The edge of the program: every failure becomes one message and an exit code, and no traceback unless asked for."""

from __future__ import annotations

import os
import sys
import traceback

import click

from modelexport.errors import ModelExportError
from modelexport.views.printable import printable_lines

_USAGE, _FAILED, _INTERRUPTED, _BROKEN_PIPE = 2, 3, 130, 141


def run_guarded(command: click.Command, arguments: list[str]) -> int:
    """Run a command; its exit code."""
    # A name that the terminal's encoding cannot show must not end the program.
    for stream in (sys.stdout, sys.stderr):
        getattr(stream, "reconfigure", lambda **_: None)(errors="backslashreplace")
    debug = "--debug" in arguments
    try:
        result = command.main(args=arguments, prog_name="modelexport", standalone_mode=False)
        sys.stdout.flush()
    except BrokenPipeError:
        return _leave_pipe()
    except (KeyboardInterrupt, click.Abort):
        _say("interrupted", "", debug)
        return _INTERRUPTED
    except click.ClickException as error:
        _say(f"error: {error.format_message()}", _usage_hint(error), debug)
        return _USAGE
    except ModelExportError as error:
        _say(f"error: {error.message}", error.hint, debug)
        return error.exit_code
    except Exception as error:  # noqa: BLE001 - nothing may reach the user as a traceback
        described = f"{type(error).__name__}: {error}" if str(error) else type(error).__name__
        hint = "" if debug else "This is a fault of modelexport: run it again with --debug and report what it says."
        _say(f"error: unexpected {described}", hint, debug)
        return _FAILED
    return result if isinstance(result, int) else 0


def _usage_hint(error: click.ClickException) -> str:
    context = getattr(error, "ctx", None)
    return f"See `{context.command_path} --help`." if isinstance(context, click.Context) else ""


def _say(message: str, hint: str, debug: bool) -> None:
    if debug:
        traceback.print_exc()
    click.echo(printable_lines(message), err=True)
    if hint:
        click.echo(printable_lines(hint), err=True)


def _leave_pipe() -> int:
    """The reader went away (`| head`), which is its right. Python must not complain when it flushes at exit."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    return _BROKEN_PIPE
