"""Reports: how a step ended, told from its exit code, what it wrote and what it said.

    judge_step(task, ended, folder)      (StepStatus.FAILED, "dynamo exporter: …")
    read_figures("export", report)       {"nodes": 120, "difference": 4.8e-07, "ok": True}

A report is JSON of this program, but it comes from a process that ran code of a model; so nothing in it is believed to
be of a type before it is looked at.
"""

from __future__ import annotations

import errno
import os
import signal
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from modelexport.errors import printable_line
from modelexport.fleet.process import Cause, Ended, Limits
from modelexport.fleet.verbs import LOG, REPORT
from modelexport.record.json_reading import parse_json
from modelexport.record.limits import MESSAGE_CHARACTERS
from modelexport.record.regular_files import open_regular
from modelexport.record.results.fleet import Figure, StepStatus

# Of a log, its end: a message is there, and a model can write gigabytes before it.
_LOG_BYTES = 64_000
_REPORT_BYTES = 1 << 26
_FULL = tuple(os.strerror(code).lower() for code in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG))
# What `modelexport`, Python and allocators say when memory runs out.
_NO_MEMORY = ("there is not enough memory", "memoryerror", "cannot allocate memory", "bad_alloc")
# Exit codes of this program, beside 0.
_FINDING, _FAULTS = 1, (2, 3)

Verdict = tuple[StepStatus, str]


def judge_step(ended: Ended, limits: Limits, folder: Path, outputs: Sequence[str]) -> Verdict:
    """The status of a step, and the reason in one line where it is not ok.

    outputs  what it should have written
    """
    if ended.cause is Cause.TIMED_OUT:
        return StepStatus.TIMED_OUT, f"took longer than {limits.timeout:g} s"
    if ended.cause is Cause.OUT_OF_MEMORY:
        return StepStatus.OUT_OF_MEMORY, f"took more than {(limits.memory or 0) / 1e9:.3g} GB"
    said = read_end(folder / LOG)
    missing = [name for name in outputs if not (folder / name).exists()]
    if REPORT in outputs and not missing and read_report(folder / REPORT) is None:
        missing = [REPORT]
    if ended.code == 0 and not missing:
        return StepStatus.OK, ""
    # Of a program that writes nothing, nothing can be read but that it failed.
    if ended.code == _FINDING and outputs and not missing:
        return StepStatus.FOUND, ""
    # As `subprocess` has it: -11 for SIGSEGV.
    if ended.code < 0:
        return StepStatus.CRASHED, f"killed by {_signal_name(-ended.code)}"
    return _judge_failure(ended.code, said, missing)


def _judge_failure(code: int, said: str, missing: Sequence[str]) -> Verdict:
    lines = [line.strip() for line in said.splitlines() if line.strip()]
    errors = [line for line in lines if line.startswith("error: ")]
    message = (errors or lines or [""])[-1].removeprefix("error: ")
    reason = printable_line(message, MESSAGE_CHARACTERS)
    if any(text in message.lower() for text in _FULL):
        return StepStatus.DISK_FULL, reason
    if any(text in message.lower() for text in _NO_MEMORY):
        return StepStatus.OUT_OF_MEMORY, reason
    if code in _FAULTS and errors:
        return StepStatus.FAILED, reason
    written = f"ended with exit code {code} without {missing[0]}" if missing else f"ended with exit code {code}"
    return StepStatus.CRASHED, f"{written}: {reason}" if reason else written


def _signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"


def read_end(path: Path) -> str:
    try:
        with open_regular(path) as file:
            file.seek(max(0, path.stat().st_size - _LOG_BYTES))
            return file.read(_LOG_BYTES).decode("utf-8", "replace")
    except OSError:
        return ""


def read_report(path: Path) -> Mapping[str, Any] | None:
    """None for what is none. What the code of a model prints may stand before it."""
    try:
        with open_regular(path) as file:
            text = file.read(_REPORT_BYTES).decode("utf-8", "replace")
    except OSError:
        return None
    # Reports are indented, so that this is where one begins.
    start = 0 if text.startswith("{") else text.find("\n{\n") + 1
    try:
        report = parse_json(text[start:])
    except ValueError:
        return None
    return report if isinstance(report, dict) else None


def read_figures(verb: str, report: Mapping[str, Any]) -> dict[str, Figure]:
    """The numbers that tables and budgets are about; what is not there, or is no number, is left out."""
    figures: dict[str, object] = {"ok": report.get("ok"), "nodes": _count_nodes(report)}
    match verb:
        case "export" | "attach":
            check = _table(report, "check")
            figures |= {"ok": check.get("ok"), "difference": check.get("max_abs_diff")}
        case "quantize" | "run-tool":
            figures["nodes"] = _count_nodes(_table(report, "lineage")) or _count_nodes(report)
        case "verify":
            proof = _table(report, "proof")
            figures |= {"compute": proof.get("compute"), "shown": proof.get("compute_shown")}
        case "profile":
            time = report.get("time_us")
            figures["latency"] = time / 1e6 if isinstance(time, int | float) else None
    return {name: value for name, value in figures.items() if isinstance(value, bool | int | float)}


def count_operators(report: Mapping[str, Any]) -> dict[str, int]:
    """How often each operator occurs, from the nodes of `analyze`; of a package, in all of its files."""
    counts: Counter[str] = Counter()
    for part in (report, *_components(report)):
        nodes = part.get("nodes")
        objects = [node for node in nodes if isinstance(node, dict)] if isinstance(nodes, list) else []
        counts.update(str(node["op_type"]) for node in objects if "op_type" in node)
    return dict(sorted(counts.items()))


def describe_finding(verb: str, report: Mapping[str, Any]) -> str:
    """What a command with exit code 1 found, in one line."""
    match verb:
        case "verify":
            text = _describe_difference(report)
        case "export" | "attach":
            unmet = report.get("unmet")
            text = str(_table(report, "check").get("message") or "")
            if isinstance(unmet, list) and unmet and isinstance(unmet[0], dict):
                text = text or f"not as asked: {unmet[0].get('asked')}: {unmet[0].get('done')}"
        case _:
            text = ""
    return printable_line(text or f"{verb} found something: see {REPORT}", MESSAGE_CHARACTERS)


def _describe_difference(report: Mapping[str, Any]) -> str:
    if report.get("numbers_agree") is False:
        where = _table(report, "divergence").get("modules") or _table(report, "divergence").get("calls")
        names = ", ".join(map(str, where)) if isinstance(where, list) else ""
        return f"numbers differ, first in {names or '(model)'}" if where else "numbers differ"
    faults = _table(report, "proof").get("faults")
    if isinstance(faults, dict) and faults:
        return "attributions: " + ", ".join(f"{name} {count}" for name, count in faults.items())
    return ""


def _count_nodes(report: Mapping[str, Any]) -> int | None:
    nodes = report.get("nodes")
    if isinstance(nodes, list):
        return len(nodes)
    if isinstance(nodes, int):
        return nodes
    parts = [count for part in _components(report) if (count := _count_nodes(part)) is not None]
    return sum(parts) if parts else None


def _components(report: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    components = report.get("components")
    values = components.values() if isinstance(components, dict) else components if isinstance(components, list) else ()
    return [part for part in values if isinstance(part, dict)]


def _table(report: Mapping[str, Any], key: str) -> Mapping[str, Any]:
    value = report.get(key)
    return value if isinstance(value, dict) else {}
