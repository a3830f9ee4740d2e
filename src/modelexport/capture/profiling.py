"""Running a file in ONNX Runtime with its profiler on."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from modelexport.errors import RuntimeFailed, UserError
from modelexport.record.profile import RawEvent, Span

_KERNEL = "_kernel_time"
_RUN = "model_run"


@dataclass(frozen=True)
class ProfiledRun:
    """What the profiler wrote about the runs that count."""

    events: tuple[RawEvent, ...]
    spans: tuple[Span, ...]
    providers: tuple[str, ...]


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
    providers = _providers(onnxruntime, request.providers)
    try:
        session = onnxruntime.InferenceSession(str(path), options, providers=providers)
        for _ in range(request.warmup + request.runs):
            session.run(None, dict(feed))
        written = Path(session.end_profiling())
    except Exception as error:
        raise RuntimeFailed(
            f"ONNX Runtime cannot run {path}: {str(error).strip().splitlines()[0]}",
            "Check the file with `modelexport validate`, and the inputs (--input, --inputs).",
        ) from error
    events, spans = _read(written)
    counted = spans[request.warmup :]
    ran = tuple(dict.fromkeys(event.provider for event in events if event.provider))
    return ProfiledRun(events, counted, ran or tuple(session.get_providers()))


def _providers(runtime: Any, wanted: Sequence[str]) -> list[str]:
    known = runtime.get_available_providers()
    named = {name.removesuffix("ExecutionProvider").lower(): name for name in known}
    found = []
    for one in wanted:
        name = one if one in known else named.get(one.removesuffix("ExecutionProvider").lower())
        if name is None:
            raise UserError(f"this ONNX Runtime has no provider {one!r}", f"It has: {', '.join(known)}.")
        found.append(name)
    return found or known


def _read(path: Path) -> tuple[tuple[RawEvent, ...], tuple[Span, ...]]:
    """Kernels, and runs of the whole model in their order."""
    try:
        document = json.loads(path.read_text())
    except (OSError, ValueError) as error:
        raise RuntimeFailed(f"ONNX Runtime's profile cannot be read: {error}") from error
    kernels = tuple(
        RawEvent(
            name=item["name"].removesuffix(_KERNEL),
            op_type=item["args"].get("op_name", ""),
            provider=item["args"].get("provider", ""),
            start=float(item["ts"]),
            duration=float(item["dur"]),
        )
        for item in document
        if item.get("cat") == "Node" and item["name"].endswith(_KERNEL)
    )
    runs = [Span(float(item["ts"]), float(item["dur"])) for item in document if item.get("name") == _RUN]
    return kernels, tuple(sorted(runs, key=lambda span: span.start))
