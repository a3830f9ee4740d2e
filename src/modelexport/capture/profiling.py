"""Running a file in ONNX Runtime with its profiler on.

An event is written when what it is about has ended. So the events of a graph come before the one that says that the
graph has run, and that one before the event of the node whose body the graph is.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, TypeVar

import numpy as np

from modelexport.errors import RuntimeFailed, UserError
from modelexport.record.profile import RawEvent, RawRun

_KERNEL = "_kernel_time"
_GRAPH = "::Execute"
_RUN = "model_run"


@dataclass(frozen=True)
class ProfiledRun:
    """What the profiler wrote about the runs that count.

    requested  the providers that were asked for, the preferred one first
    """

    runs: tuple[RawRun, ...]
    requested: tuple[str, ...]


@dataclass(frozen=True)
class ProfileRequest:
    """
    runs       that are counted
    warmup     runs before them
    providers  of ONNX Runtime, the preferred one first; its own choice if there are none
    threads    for one operator; 0 for as many as there are
    """

    runs: int
    warmup: int
    providers: tuple[str, ...]
    threads: int


def profiled_run(path: Path, feed: Mapping[str, np.ndarray], options: Any, request: ProfileRequest) -> ProfiledRun:
    """`options` are those of a session that saves its graph; the profile goes beside that."""
    import onnxruntime

    options.enable_profiling = True
    options.profile_file_prefix = str(Path(options.optimized_model_filepath).with_name("profile"))
    options.intra_op_num_threads = request.threads
    # One operator at a time: what runs side by side cannot be added up.
    options.execution_mode = onnxruntime.ExecutionMode.ORT_SEQUENTIAL
    providers = _providers(onnxruntime.get_available_providers(), request.providers)
    try:
        session = onnxruntime.InferenceSession(str(path), options, providers=providers)
        _ensure_started(session.get_providers(), providers if request.providers else [])
        for _ in range(request.warmup + request.runs):
            session.run(None, dict(feed))
        written = Path(session.end_profiling())
    except UserError:
        raise
    except Exception as error:
        raise RuntimeFailed(
            f"ONNX Runtime cannot run {path}: {str(error).strip().splitlines()[0]}",
            "Check the file with `modelexport validate`, and the inputs (--input, --inputs).",
        ) from error
    runs = _read(written)
    if len(runs) != request.warmup + request.runs:
        raise RuntimeFailed(
            f"ONNX Runtime wrote down {len(runs)} of {request.warmup + request.runs} runs: its profile is full",
            "Ask for fewer: --runs, --warmup.",
        )
    return ProfiledRun(runs[request.warmup :], tuple(providers) if request.providers else ())


def _providers(known: Sequence[str], wanted: Sequence[str]) -> list[str]:
    named = {name.removesuffix("ExecutionProvider").lower(): name for name in known}
    found = []
    for one in wanted:
        name = one if one in known else named.get(one.removesuffix("ExecutionProvider").lower())
        if name is None:
            raise UserError(f"this ONNX Runtime has no provider {one!r}", f"It has: {', '.join(known)}.")
        found.append(name)
    return list(dict.fromkeys(found or known))


def _ensure_started(started: Sequence[str], wanted: Sequence[str]) -> None:
    """ONNX Runtime goes on without a provider whose libraries or device are missing, and the time is another's."""
    missing = [name for name in wanted if name not in started]
    if missing:
        raise UserError(
            f"ONNX Runtime could not start {', '.join(missing)}",
            f"It started: {', '.join(started)}. Check the libraries and the device, or ask for another: --providers.",
        )


def _read(path: Path) -> tuple[RawRun, ...]:
    """The runs of the whole model, in their order."""
    try:
        document = json.loads(path.read_text())
        return runs_of(document)
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise RuntimeFailed(f"ONNX Runtime's profile cannot be read: {error}") from error


def runs_of(document: Iterable[Mapping[str, Any]]) -> tuple[RawRun, ...]:
    """The runs in a profile, each with the events of its kernels: bodies inside of the nodes that hold them."""
    waiting: list[RawEvent | _Ended] = []  # for the end of what they are inside of
    times: list[tuple[float, float]] = []
    runs: list[RawRun] = []
    for item in document:
        name, start = item["name"], float(item["ts"])
        if item.get("cat") == "Node" and name.endswith(_KERNEL):
            event = _event(item)
            times.append((start, start + event.duration))
            bodies = _taken(waiting, start, _Ended)
            waiting.append(replace(event, bodies=tuple(body.events for body in bodies)))
        elif name.endswith(_GRAPH):
            waiting.append(_Ended(start, tuple(_taken(waiting, start, RawEvent))))
        elif name == _RUN:
            events = tuple(event for graph in _taken(waiting, start, _Ended) for event in graph.events)
            runs.append(RawRun(start, float(item["dur"]), _covered(times), events))
            waiting, times = [], []
    return tuple(runs)


@dataclass(frozen=True, slots=True)
class _Ended:
    """A graph that has run."""

    start: float
    events: tuple[RawEvent, ...]


_Kind = TypeVar("_Kind", RawEvent, _Ended)


def _taken(waiting: list[RawEvent | _Ended], start: float, kind: type[_Kind]) -> list[_Kind]:
    """Take away from the end what is of a kind and began since some time."""
    found: list[_Kind] = []
    while waiting and isinstance(last := waiting[-1], kind) and last.start >= start:
        found.append(last)
        waiting.pop()
    return found[::-1]


def _event(item: Mapping[str, Any]) -> RawEvent:
    about = item["args"]
    return RawEvent(
        name=item["name"].removesuffix(_KERNEL),
        op_type=about.get("op_name", ""),
        index=int(about.get("node_index", -1)),
        provider=about.get("provider", ""),
        start=float(item["ts"]),
        duration=float(item["dur"]),
    )


def _covered(times: Iterable[tuple[float, float]]) -> float:
    """How much time some spans of it cover, what several of them cover counted once."""
    covered, until = 0.0, float("-inf")
    for start, end in sorted(times):
        covered += max(0.0, end - max(start, until))
        until = max(until, end)
    return covered
