"""Trace events: a profile that Perfetto, chrome://tracing and speedscope open, with one lane for each level of modules.

    level 0  │ BertModel                                  │
    level 1  │ embeddings │ encoder                       │
    level 2  │ LayerNorm  │ layer.0      │ layer.1         │
    kernels  │ Gather Add │ MatMul Add … │ MatMul …        │

A node runs inside of its module, that inside of the one around it. Neighbours of one module become one bar. What
several modules have in common is a bar of its own inside of the module around them, named after them all.

    modelexport profile bert.onnx --trace trace.json      then open it at https://ui.perfetto.dev

Bars are found in one pass over the kernels in the order of time: they grow while the next kernel runs inside of the
same modules, and end where it leaves them or is one of another run.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

from modelexport.record.hierarchy import lineage_of
from modelexport.record.results.profile import KernelEvent, NodeTime, Profile

Json = dict[str, Any]
_KERNELS = "kernels"  # the lane below those of modules


@dataclass(frozen=True, slots=True)
class _Span:
    """What a bar stands for: a module in one run, or several that have kernels in common."""

    run: int
    path: str
    sharers: tuple[str, ...] = ()
    unclear: bool = False


@dataclass(frozen=True, slots=True)
class _OpenBar:
    span: _Span
    start: float
    end: float


def profile_trace(profile: Profile) -> str:
    """The format is that of https://github.com/google/perfetto's legacy JSON importer: complete events, `ph: X`."""
    nodes = {node.keys: node for node in profile.nodes}
    classes = {module.path: module.class_name for module in profile.modules if module.path is not None}
    events = sorted(profile.events, key=lambda event: event.start)
    bars = list(_bars(events, nodes, classes))
    depth = max((bar["tid"] for bar in bars), default=0)
    bars += [_kernel(event, nodes[event.keys], depth + 1) for event in events]
    # In the order of time, and what is around others before them: some readers nest bars as they come.
    bars.sort(key=lambda bar: (bar["ts"], -bar["dur"], bar["tid"]))
    names = [f"level {level}" for level in range(depth + 1)] + [_KERNELS]
    document = {"displayTimeUnit": "ms", "traceEvents": [*_lanes(profile.file, names), *bars]}
    return json.dumps(document) + "\n"


def _lanes(file: str, names: list[str]) -> Iterator[Json]:
    yield {"ph": "M", "pid": 1, "name": "process_name", "args": {"name": file}}
    for number, name in enumerate(names):
        yield {"ph": "M", "pid": 1, "tid": number, "name": "thread_name", "args": {"name": name}}
        yield {"ph": "M", "pid": 1, "tid": number, "name": "thread_sort_index", "args": {"sort_index": number}}


def _bars(
    events: list[KernelEvent], nodes: Mapping[tuple[str, ...], NodeTime], classes: Mapping[str, str]
) -> Iterator[Json]:
    """For each level of modules, bars over the kernels that run inside of one module without a break."""
    bars: list[_OpenBar] = []
    for event in events:
        stack = _stack(nodes[event.keys], event.run)
        kept = 0  # levels on which the kernel runs inside of the same module as the one before it
        while kept < min(len(bars), len(stack)) and bars[kept].span == stack[kept]:
            kept += 1
        # A node with bodies ends after what runs inside of it; the bar of its module makes room for other modules.
        yield from _closed([replace(bar, end=min(bar.end, event.start)) for bar in bars], kept, classes)
        end = event.start + event.duration
        bars = [replace(bar, end=max(bar.end, end)) for bar in bars[:kept]]
        bars += [_OpenBar(span, event.start, end) for span in stack[kept:]]
    yield from _closed(bars, 0, classes)


def _closed(bars: list[_OpenBar], kept: int, classes: Mapping[str, str]) -> Iterator[Json]:
    """Bars from `kept` on end here; those before go on in the next event."""
    for level, bar in enumerate(bars[kept:], kept):
        span = bar.span
        about: Json = {"module": span.path, "class": classes.get(span.path, ""), "run": span.run}
        if span.sharers:
            about["one of" if span.unclear else "fused"] = list(span.sharers)
        yield {**_bar(_name(span, classes), level, bar.start, bar.end - bar.start), "args": about}


def _name(span: _Span, classes: Mapping[str, str]) -> str:
    """Short, because a bar is short: the last step of the path, or the class of the model itself."""
    if not span.sharers:
        return span.path.rpartition(".")[2] or classes.get(span.path, span.path)
    names = [path.removeprefix(f"{span.path}.") or "(model)" for path in span.sharers]
    return f"one of: {' or '.join(names)}" if span.unclear else f"fused: {'+'.join(names)}"


def _stack(node: NodeTime, run: int) -> list[_Span]:
    """The modules that a node runs inside of, outermost first; below them, those that have it in common."""
    if node.module is None:
        return []
    around = [_Span(run, path) for path in lineage_of(node.module)]
    return [*around, _Span(run, node.module, node.sharers, bool(node.others))] if node.sharers else around


def _kernel(event: KernelEvent, node: NodeTime, lane: int) -> Json:
    """The lowest lane: what ONNX Runtime says it ran, with the modules that it does the work of."""
    modules = [str(owner) for owner in node.owners]
    return {
        **_bar(node.op_type, lane, event.start, event.duration),
        "args": {"node": node.name or node.key, "modules": modules, "provider": node.provider, "run": event.run},
    }


def _bar(name: str, lane: int, start: float, duration: float) -> Json:
    """Times are microseconds, which is the unit of the format."""
    return {"ph": "X", "pid": 1, "tid": lane, "name": name, "ts": start, "dur": duration}
