"""What `profile` and `relink` could answer with, made by hand and at random."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from hypothesis import strategies as st
from tests.support.building import hierarchies, provenances
from tests.support.verification import EVIL, TEXT

from modelexport.inspect.profile import Timeline
from modelexport.record.hierarchy import Hierarchy, ModuleCall
from modelexport.record.lineage import Consistency, Lineage, Link, NodeOverlap, Relation
from modelexport.record.provenance import (
    Attribution,
    Confidence,
    Evidence,
    EvidenceKind,
    NodeEntry,
    Origin,
    Provenance,
    unattributed,
)
from modelexport.record.results.files import RelinkResult
from modelexport.record.results.profile import KernelEvent, Profile, SumCheck

RUNS = 5


def credited(hierarchy: Hierarchy, *paths: str) -> Attribution:
    if not paths:
        return unattributed("nobody knows")
    owners = tuple(map(ModuleCall, paths))
    evidence = (Evidence(EvidenceKind.SCOPE, "hand"),)
    return Attribution(owners, hierarchy.common_ancestor(owners), Confidence.EXACT, evidence)


def profiled(
    record: Provenance,
    durations: Mapping[tuple[str, ...], Sequence[float]],
    providers: Mapping[str, str],
    runs: int = RUNS,
) -> Profile:
    """Nodes one after the other in every run, each as long as it says for that run."""
    events = []
    clock = 0.0
    for run in range(runs):
        for keys, series in durations.items():
            events.append(KernelEvent(keys, run, clock, series[run], provider=providers[keys[0]]))
            clock += series[run] + 1
    timeline = Timeline.of(events, record, runs)
    nodes = timeline.nodes()
    whole = sum(map(sum, durations.values()))
    return Profile(
        file=f"a{EVIL}.onnx",
        runs=runs,
        warmup=1,
        optimization="all",
        providers=tuple(dict.fromkeys(node.provider for node in nodes)),
        requested=(),
        time=sum(node.time for node in nodes),
        busy=statistics.median(sum(times) for times in zip(*durations.values(), strict=True)) if durations else 0.0,
        wall=clock / runs,
        spread=0.1,
        noise=timeline.noise(nodes),
        check=SumCheck(whole, sum(module.charged for module in timeline.modules(nodes))),
        nodes=nodes,
        modules=timeline.modules(nodes),
        events=tuple(events),
        notes=(EVIL,),
        seconds={"run": 0.1},
    )


@st.composite
def profiles(draw: st.DrawFn) -> Profile:
    hierarchy = draw(hierarchies())
    paths = st.sampled_from(sorted(hierarchy.modules))
    keys = draw(st.lists(TEXT, max_size=6, unique=True))
    entries = {
        key: NodeEntry(
            key,
            draw(TEXT),
            draw(st.sampled_from(["MatMul", "Add", EVIL])),
            credited(hierarchy, *draw(st.lists(paths, max_size=3, unique=True))),
        )
        for key in keys
    }
    record = Provenance(hierarchy, entries, {}, Origin("test", "test"))
    times = st.lists(st.floats(0, 1e6), min_size=RUNS, max_size=RUNS)
    providers = {key: draw(st.sampled_from(["CPUExecutionProvider", "CUDAExecutionProvider"])) for key in keys}
    # Now and then, a node that nobody can tell from the next.
    groups = [(key, *keys[place + 1 : place + 2]) if draw(st.booleans()) else (key,) for place, key in enumerate(keys)]
    found = profiled(record, {group: draw(times) for group in groups}, providers)
    return replace(found, requested=draw(st.sampled_from([(), ("CUDAExecutionProvider", "CPUExecutionProvider")])))


@st.composite
def lineages(draw: st.DrawFn) -> RelinkResult:
    record = draw(provenances())
    keys = st.lists(TEXT, max_size=3).map(tuple)
    links = st.builds(Link, keys, st.sampled_from(Relation), st.sampled_from(Confidence))
    shares = st.floats(0, 1)
    edges = st.lists(st.tuples(TEXT, TEXT), max_size=3).map(tuple)
    return RelinkResult(
        path=None,
        after=draw(TEXT),
        before=draw(TEXT),
        files=tuple(map(Path, draw(st.lists(st.sampled_from(["a.onnx", EVIL]), max_size=2)))),
        lineage=Lineage(
            {key: draw(links) for key in record.nodes},
            {},
            consistency=Consistency(9, draw(keys), draw(keys), draw(keys), draw(edges), draw(keys)),
            overlap=NodeOverlap(draw(shares), draw(shares)),
        ),
        provenance=record,
        related=draw(st.booleans()),
        differing=draw(keys),
        seconds=draw(st.dictionaries(TEXT, st.floats(0, 100), max_size=2)),
        idle=draw(keys),
    )


def ensure_nested(found: list[dict[str, Any]]) -> None:
    slack = 1e-3  # sums of floats
    assert [one["ts"] for one in found] == sorted(one["ts"] for one in found)
    ends: dict[int, list[float]] = {}
    for one in found:
        around = ends.setdefault(one["tid"], [])
        while around and around[-1] <= one["ts"] + slack:
            around.pop()
        end = one["ts"] + one["dur"]
        assert not around or end <= around[-1] + slack
        around.append(end)
