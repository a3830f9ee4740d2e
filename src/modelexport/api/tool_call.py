"""Calls of tools: one tool on one file, and whether ONNX Runtime runs what came out.

A tool raises whatever it likes, leaves files behind and writes to the terminal; here it becomes a `ToolFailed` with its
message.
"""

from __future__ import annotations

import contextlib
import importlib.util
import threading
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from modelexport.capture.silence import silence_tools
from modelexport.errors import ExtraMissing, ModelExportError, ToolFailed

if TYPE_CHECKING:
    from modelexport.transform.tools.tool import Feed, Tool

# Of a tool's own message; what follows are stacks and addresses.
_MESSAGE_LINES = 3
# The working directory is the whole process's: one tool at a time.
_TOOL_LOCK = threading.Lock()


def call_tool(tool: Tool, option: str, source: Path, target: Path, feeds: tuple[Feed, ...]) -> None:
    """Run one tool on one file. Whatever it raises becomes ToolFailed, with its own message."""
    from modelexport.transform.tools.tool import Job

    # Asked before the call: a tool that misses its package deep inside may not say so.
    if importlib.util.find_spec(tool.package) is None:
        raise _missing_package(tool, tool.package)
    try:
        # Some tools leave files where they are called when they fail.
        with _TOOL_LOCK, silence_tools(), contextlib.chdir(target.parent):
            tool.run(Job(source, target, option, feeds))
    except ModelExportError:
        raise
    except ModuleNotFoundError as error:
        raise _missing_package(tool, error.name or str(error)) from error
    except Exception as error:
        raise ToolFailed(
            f"{tool.name} failed: {_first_lines(error)}",
            f"Nothing was written. The message is the tool's own. {tool.remedy}".strip(),
        ) from error
    if not target.is_file():
        raise ToolFailed(f"{tool.name} wrote nothing, and did not say why", "Nothing was written.")


def _missing_package(tool: Tool, package: str) -> ExtraMissing:
    return ExtraMissing(
        f"{tool.name} needs the package {package}, which is not installed",
        f"Install it: pip install 'modelexport[{tool.extra}]', or pip install {package}.",
    )


def _first_lines(error: Exception) -> str:
    lines = [line.strip() for line in str(error).strip().splitlines() if line.strip()]
    return " ".join(lines[:_MESSAGE_LINES]) or type(error).__name__


@dataclass(frozen=True, slots=True)
class RunFailure:
    """What ONNX Runtime says; `is_loaded`: it took the file, and failed on the inputs."""

    text: str
    is_loaded: bool


def find_failure(path: Path, feed: Feed) -> RunFailure | None:
    """Why ONNX Runtime cannot run a file; None if it can. Raises ImportError if it is not there."""
    from modelexport.capture.onnxruntime.session import open_session, run_session

    session = None
    try:
        session = open_session(path)
        run_session(session, feed)
    except ImportError:
        raise
    except Exception as error:  # noqa: BLE001 - the runtime raises whatever it likes, and what it says is the answer
        return RunFailure(_first_lines(error).replace(str(path), "it"), session is not None)
    return None
