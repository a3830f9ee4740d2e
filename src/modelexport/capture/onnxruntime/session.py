"""Inference session: running a file in ONNX Runtime as anybody would, on bound inputs, and with its profiler on.

Input binding: a model is run with tensors under its own names; a file may have other names and narrower types.

    arrays {input_ids: int64 2x8, mask: int64 2x8}    graph (input_ids: int64 2x8, attention_mask: int32 2x8)
    bind_inputs(…)  ->  {input_ids: …, attention_mask: mask as int32}        by name, the rest by order where it fits

Profile: ONNX Runtime writes a list of events, https://onnxruntime.ai/docs/performance/tune-performance/profiling-tools.html.
An event is written when what it is about has ended. So the events of a graph come before the one that says that the
graph has run, and that one before the event of the node whose body the graph is:

    Add_kernel_time, …, SequentialExecutor::Execute, If_kernel_time, SequentialExecutor::Execute, model_run
    (body of the If)    (the body has run)           (the If)        (the main graph)
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import onnx

from modelexport.errors import FileUnreadable, InputError, RuntimeFailed, UserError
from modelexport.graph.file.external import KEEP_DATA, explain_missing_data
from modelexport.graph.file.reading import open_model
from modelexport.graph.missing_types import USE_FLOAT32, explain_missing_type
from modelexport.graph.types import fits, input_dims
from modelexport.record.results.profile import RawEvent, RawRun

_SILENT = 4  # fatal errors only: https://onnxruntime.ai/docs/api/python/api_summary.html (log_severity_level)


def open_session(path: Path, *, mapped: bool = False) -> Any:
    """With ONNX Runtime's default optimizations: what a user of the file would run.

    mapped  external data is read where it lies, with all optimizations but those that copy weights: ONNX Runtime
            transposes weights once and for all, and keeps them a second time in the order that its kernels like
            https://onnxruntime.ai/docs/performance/tune-performance/memory.html
    """
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.log_severity_level = _SILENT
    if mapped:
        options.add_session_config_entry("session.disable_prepacking", "1")
    copying = ["ConstantFolding"] if mapped else None
    providers = ["CPUExecutionProvider"]
    return onnxruntime.InferenceSession(str(path), options, providers=providers, disabled_optimizers=copying)


def run_session(session: Any, feed: Mapping[str, np.ndarray]) -> list[np.ndarray]:
    """What the file returns. Of the feed, what it takes; tools may drop inputs that nobody reads."""
    wanted = {value.name for value in session.get_inputs()}
    outputs: list[np.ndarray] = session.run(None, {name: array for name, array in feed.items() if name in wanted})
    return outputs


def run_file(path: Path, feed: Mapping[str, np.ndarray]) -> list[np.ndarray]:
    return run_session(open_session(path), feed)


def required_inputs(proto: onnx.ModelProto) -> dict[str, onnx.ValueInfoProto]:
    """The graph's inputs without its weights: files of IR version 3 list every initializer as an input too."""
    stored = {tensor.name for tensor in proto.graph.initializer}
    return {value.name: value for value in proto.graph.input if value.name not in stored}


def bind_inputs(proto: onnx.ModelProto, arrays: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    wanted = required_inputs(proto)
    feed = {}
    for name, source in assign_inputs(proto, arrays).items():
        if not _fits(wanted[name], arrays[source]):
            raise _unfit(wanted[name], arrays[source])
        # In the width that the graph wants: a file may have been made smaller than the model.
        kind = wanted[name].type.tensor_type.elem_type
        dtype = onnx.helper.tensor_dtype_to_np_dtype(kind) if kind else arrays[source].dtype
        feed[name] = arrays[source].astype(dtype, copy=False)
    return feed


def assign_inputs(proto: onnx.ModelProto, arrays: Mapping[str, np.ndarray]) -> dict[str, str]:
    """Which array goes into each input of the graph: by name, and what remains by order, where type and shape fit."""
    wanted = required_inputs(proto)
    sources = {name: name for name in wanted if name in arrays}
    spare = [name for name in arrays if name not in sources]
    for name, value in wanted.items():
        if name not in sources:
            match = next((source for source in spare if _fits(value, arrays[source])), None)
            if match is None:
                raise _missing(value, arrays)
            spare.remove(match)
            sources[name] = match
    return {name: sources[name] for name in wanted}


def _fits(value: onnx.ValueInfoProto, array: np.ndarray) -> bool:
    """Whether kind (integer, float) and fixed sizes are the graph's; the width can be converted."""
    kind, dims = value.type.tensor_type.elem_type, input_dims(value)
    if kind and onnx.helper.tensor_dtype_to_np_dtype(kind).kind != array.dtype.kind:
        return False
    return dims is None or fits(dims, array.shape)


def _missing(value: onnx.ValueInfoProto, arrays: Mapping[str, np.ndarray]) -> InputError:
    had = ", ".join(f"{name} ({_described(array)})" for name, array in arrays.items())
    return InputError(
        f"the graph takes an input {value.name!r} ({_wanted(value)}) that the model was not run with: it had {had}",
        f"Run the model on what the file takes: --input {value.name}=SHAPE:DTYPE, or --inputs FILE.npz.",
    )


def _unfit(value: onnx.ValueInfoProto, array: np.ndarray) -> InputError:
    if onnx.helper.tensor_dtype_to_np_dtype(value.type.tensor_type.elem_type).kind == "V":
        return InputError(
            f"the graph takes {value.name!r} as {_wanted(value)}, which ONNX Runtime cannot be given from Python",
            USE_FLOAT32,
        )
    return InputError(
        f"the graph takes {value.name!r} as {_wanted(value)}; the model was run with {_described(array)}",
        "Give inputs of the shape that the file was exported with: --input NAME=SHAPE:DTYPE.",
    )


def format_shape(sizes: Sequence[int | str]) -> str:
    """`batchx8`; `?` for an axis without size and name."""
    return "x".join(str(size or "?") for size in sizes) or "scalar"


def _described(array: np.ndarray) -> str:
    return f"{'x'.join(map(str, array.shape)) or 'scalar'} {array.dtype}"


def _wanted(value: onnx.ValueInfoProto) -> str:
    stated = onnx.TensorProto.DataType.Name(value.type.tensor_type.elem_type).lower()
    return f"{format_shape(input_dims(value) or ())} {stated}"


# How ONNX Runtime ends the names of its events: a node's kernel, a graph, a call of session.run.
_KERNEL, _GRAPH, _RUN = "_kernel_time", "::Execute", "model_run"


@dataclass(frozen=True)
class ProfiledRun:
    """What the profiler wrote about the runs that count; `requested` are providers, the preferred one first."""

    runs: tuple[RawRun, ...]
    requested: tuple[str, ...]


@dataclass(frozen=True)
class ProfileRequest:
    """How to run a file with the profiler on.

    runs       that are counted
    warmup     runs before them
    providers  of ONNX Runtime, the preferred one first; its own choice if there are none
    threads    for one operator; 0 for as many as there are
    made       the inputs as options of the command line, if they were made up
    """

    runs: int
    warmup: int
    providers: tuple[str, ...]
    threads: int
    made: str = ""


def profile_file(path: Path, feed: Mapping[str, np.ndarray], options: Any, request: ProfileRequest) -> ProfiledRun:
    """`options` are those of a session that saves its graph; the profile goes beside that."""
    import onnxruntime

    options.enable_profiling = True
    options.profile_file_prefix = str(Path(options.optimized_model_filepath).with_name("profile"))
    options.intra_op_num_threads = request.threads
    # One operator at a time: what runs side by side cannot be added up.
    options.execution_mode = onnxruntime.ExecutionMode.ORT_SEQUENTIAL
    providers = _choose_providers(onnxruntime.get_available_providers(), request.providers)
    session = None
    try:
        session = onnxruntime.InferenceSession(str(path), options, providers=providers)
        _ensure_started(session.get_providers(), providers if request.providers else [])
        for _ in range(request.warmup + request.runs):
            session.run(None, dict(feed))
        written = Path(session.end_profiling())
    except UserError:
        raise
    except Exception as error:
        proto = open_model(path).proto
        if missing := explain_missing_type(error, proto):
            raise RuntimeFailed(missing, USE_FLOAT32) from error
        if missing := explain_missing_data(proto, path.parent):
            raise FileUnreadable(f"cannot run {path}: {missing}", KEEP_DATA) from error
        # A file that it does not even take is not run on any inputs.
        made = f" on inputs that were made up ({request.made})" if request.made and session is not None else ""
        other = "Give other shapes in the same way, or the inputs themselves: --inputs FILE.npz. " if made else ""
        raise RuntimeFailed(
            f"ONNX Runtime cannot run {path}{made}: {str(error).strip().splitlines()[0]}",
            f"{other}Check the file with `modelexport validate`{'' if made else ', and the inputs'}.",
        ) from error
    runs = _read_profile(written)
    if len(runs) != request.warmup + request.runs:
        raise RuntimeFailed(
            f"ONNX Runtime wrote down {len(runs)} of {request.warmup + request.runs} runs: its profile is full",
            "Ask for fewer: --runs, --warmup.",
        )
    return ProfiledRun(runs[request.warmup :], tuple(providers) if request.providers else ())


def _choose_providers(known: Sequence[str], wanted: Sequence[str]) -> list[str]:
    """ONNX Runtime's names of the providers; `cuda` will do for `CUDAExecutionProvider`."""
    by_short_name = {name.removesuffix("ExecutionProvider").lower(): name for name in known}
    chosen = []
    for provider in wanted:
        name = provider if provider in known else by_short_name.get(provider.removesuffix("ExecutionProvider").lower())
        if name is None:
            raise UserError(f"this ONNX Runtime has no provider {provider!r}", f"It has: {', '.join(known)}.")
        chosen.append(name)
    return list(dict.fromkeys(chosen or known))


def _ensure_started(started: Sequence[str], wanted: Sequence[str]) -> None:
    """ONNX Runtime goes on without a provider whose libraries or device are missing, and the time is another's."""
    missing = [name for name in wanted if name not in started]
    if missing:
        raise UserError(
            f"ONNX Runtime could not start {', '.join(missing)}",
            f"It started: {', '.join(started)}. Check the libraries and the device, or ask for another: --providers.",
        )


def _read_profile(path: Path) -> tuple[RawRun, ...]:
    try:
        return parse_profile(json.loads(path.read_text()))
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise RuntimeFailed(f"ONNX Runtime's profile cannot be read: {error}") from error


def parse_profile(document: Iterable[Mapping[str, Any]]) -> tuple[RawRun, ...]:
    """The runs in a profile, each with the events of its kernels: bodies inside of the nodes that hold them."""
    waiting: list[RawEvent | _GraphRun] = []  # for the end of what they are inside of
    times: list[tuple[float, float]] = []
    runs: list[RawRun] = []
    for item in document:
        name, start = item["name"], float(item["ts"])
        if item.get("cat") == "Node" and name.endswith(_KERNEL):
            event = _event(item)
            times.append((start, start + event.duration))
            bodies = _pop_since(waiting, start, _GraphRun)
            waiting.append(replace(event, bodies=tuple(body.events for body in bodies)))
        elif name.endswith(_GRAPH):
            waiting.append(_GraphRun(start, tuple(_pop_since(waiting, start, RawEvent))))
        elif name == _RUN:
            events = tuple(event for graph in _pop_since(waiting, start, _GraphRun) for event in graph.events)
            runs.append(RawRun(start, float(item["dur"]), _covered_time(times), events))
            waiting, times = [], []
    return tuple(runs)


@dataclass(frozen=True, slots=True)
class _GraphRun:
    start: float
    events: tuple[RawEvent, ...]


_Kind = TypeVar("_Kind", RawEvent, _GraphRun)


def _pop_since(waiting: list[RawEvent | _GraphRun], start: float, kind: type[_Kind]) -> list[_Kind]:
    """Take away from the end what is of a kind and began since `start`: it happened inside of what began then."""
    inner: list[_Kind] = []
    while waiting and isinstance(last := waiting[-1], kind) and last.start >= start:
        inner.append(last)
        waiting.pop()
    return inner[::-1]


def _event(item: Mapping[str, Any]) -> RawEvent:
    facts = item["args"]
    return RawEvent(
        name=item["name"].removesuffix(_KERNEL),
        op_type=facts.get("op_name", ""),
        index=int(facts.get("node_index", -1)),
        provider=facts.get("provider", ""),
        start=float(item["ts"]),
        duration=float(item["dur"]),
    )


def _covered_time(times: Iterable[tuple[float, float]]) -> float:
    """How much time some spans of it cover, what several of them cover counted once."""
    covered, until = 0.0, float("-inf")
    for start, end in sorted(times):
        covered += max(0.0, end - max(start, until))
        until = max(until, end)
    return covered
