"""A profile as a trace that Perfetto, chrome://tracing and speedscope open: one lane for each level of modules.

A node runs inside of its module, that inside of the one around it. Neighbours of one module become one bar.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any

from modelexport.record.hierarchy import lineage_of
from modelexport.record.profile import KernelEvent, NodeTime, Profile

Json = dict[str, Any]
_KERNELS = "kernels"


def profile_trace(profile: Profile) -> str:
    nodes = {node.key: node for node in profile.nodes}
    classes = {module.path: module.class_name for module in profile.modules if module.path is not None}
    events = sorted(profile.events, key=lambda event: event.start)
    bars = list(_bars(events, nodes, classes))
    depth = max((bar["tid"] for bar in bars), default=0)
    kernels = [_kernel(event, nodes[event.key], depth + 1) for event in events]
    names = [f"level {level}" for level in range(depth + 1)] + [_KERNELS]
    document = {"displayTimeUnit": "ms", "traceEvents": [*_lanes(profile.file, names), *bars, *kernels]}
    return json.dumps(document) + "\n"


def _lanes(file: str, names: list[str]) -> Iterator[Json]:
    yield {"ph": "M", "pid": 1, "name": "process_name", "args": {"name": file}}
    for number, name in enumerate(names):
        yield {"ph": "M", "pid": 1, "tid": number, "name": "thread_name", "args": {"name": name}}
        yield {"ph": "M", "pid": 1, "tid": number, "name": "thread_sort_index", "args": {"sort_index": number}}


def _bars(events: list[KernelEvent], nodes: Mapping[str, NodeTime], classes: Mapping[str, str]) -> Iterator[Json]:
    """For each level of modules, bars over the kernels that run inside of one module without a break."""
    open_bars: list[tuple[tuple[int, str], float, float]] = []
    for event in events:
        stack = [(event.run, path) for path in _stack(nodes[event.key])]
        kept = 0
        while kept < min(len(open_bars), len(stack)) and open_bars[kept][0] == stack[kept]:
            kept += 1
        # A node with bodies ends after what runs inside of it; the bar of its module makes room for other modules.
        yield from _closed([(name, start, min(end, event.start)) for name, start, end in open_bars], kept, classes)
        end = event.start + event.duration
        open_bars = [(name, start, max(before, end)) for name, start, before in open_bars[:kept]]
        open_bars += [(name, event.start, end) for name in stack[kept:]]
    yield from _closed(open_bars, 0, classes)


def _closed(bars: list[tuple[tuple[int, str], float, float]], kept: int, classes: Mapping[str, str]) -> Iterator[Json]:
    for level, ((run, path), start, end) in enumerate(bars[kept:], kept):
        name = path.rpartition(".")[2] or classes.get(path, path)
        yield {
            **_bar(name, level, start, end - start),
            "args": {"module": path, "class": classes.get(path, ""), "run": run},
        }


def _stack(node: NodeTime) -> list[str]:
    """The modules that a node runs inside of, outermost first: of several owners, those around all of them."""
    paths = [list(lineage_of(owner.path)) for owner in node.owners]
    shared: list[str] = []
    for level in zip(*paths, strict=False):
        if len(set(level)) > 1:
            break
        shared.append(level[0])
    return shared


def _kernel(event: KernelEvent, node: NodeTime, lane: int) -> Json:
    modules = [str(owner) for owner in node.owners]
    return {
        **_bar(node.op_type, lane, event.start, event.duration),
        "args": {"node": node.name or node.key, "modules": modules, "provider": node.provider, "run": event.run},
    }


def _bar(name: str, lane: int, start: float, duration: float) -> Json:
    return {"ph": "X", "pid": 1, "tid": lane, "name": name, "ts": start, "dur": duration}
