"""Checking that a file is sound, that its record belongs to it, and that both say the same.

Each check is one function that yields findings; `_CHECKS` is the list of them. A check must not fail on what
another one is there to find.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

from modelexport.analysis.consistency import contradictions
from modelexport.analysis.findings import Finding, error, warning
from modelexport.analysis.recorded import StoredRecords, known_nodes
from modelexport.graph.check import check_graph
from modelexport.graph.embed import MODULE_KEY, TAG_KEY, node_keys, read_node_keys
from modelexport.graph.index import Graph, walk_nodes
from modelexport.graph.model_file import ModelFile
from modelexport.record.evidence import Attribution, Confidence
from modelexport.record.hierarchy import ModuleCall
from modelexport.record.provenance import Provenance


@dataclass(frozen=True)
class Evidence:
    """What the checks look at. `record` is as stored, `fitted` speaks of exactly the nodes of the file."""

    model: ModelFile
    graph: Graph
    stored: StoredRecords
    record: Provenance
    fitted: Provenance


Check = Callable[[Evidence], Iterator[Finding]]


def run_checks(evidence: Evidence, *, check_consistency: bool) -> tuple[tuple[str, ...], tuple[Finding, ...]]:
    """The names of the checks that ran, and what they found."""
    checks = {**_CHECKS, **({"dataflow": _dataflow} if check_consistency else {})}
    findings = [finding for check in checks.values() for finding in check(evidence)]
    return tuple(checks), tuple(findings)


def _valid_model(evidence: Evidence) -> Iterator[Finding]:
    problem = check_graph(evidence.model)
    if problem is not None:
        yield error("invalid-model", "", problem)


def _readable_records(evidence: Evidence) -> Iterator[Finding]:
    for problem in evidence.stored.problems:
        yield error("record-unreadable", "", problem.message)


def _same_graph(evidence: Evidence) -> Iterator[Finding]:
    record, graph = evidence.record, evidence.graph
    if record.origin.graph == graph.fingerprint:
        return
    known = known_nodes(record, graph)
    gone = len(record.nodes) - known
    yield error(
        "graph-changed",
        "",
        f"this is not the graph that the record was made for: {known} of its {len(graph.nodes)} nodes "
        f"are in the record, {gone} nodes of the record are gone",
    )


def _same_records(evidence: Evidence) -> Iterator[Finding]:
    embedded, sidecar = evidence.stored.embedded, evidence.stored.sidecar
    if embedded is None or sidecar is None or embedded == sidecar:
        return
    if embedded.origin.graph != sidecar.origin.graph:
        yield error("sidecar-foreign", "", "the record beside the file was made for another graph than the one inside")
    else:
        yield error("sidecar-differs", "", "the record beside the file and the one inside say different things")


def _attributed(evidence: Evidence) -> Iterator[Finding]:
    for key, entry in evidence.fitted.nodes.items():
        attribution = entry.attribution
        if attribution.ancestor is None or attribution.confidence is Confidence.NONE:
            reason = attribution.reason or "the record gives no reason"
            yield error("node-unattributed", key, f"{entry.op_type} has no module: {reason}")
        elif attribution.confidence is Confidence.FALLBACK:
            yield warning("node-fallback", key, f"{entry.op_type} has a default instead of evidence")


def _known_modules(evidence: Evidence) -> Iterator[Finding]:
    known = _KnownCalls(evidence.fitted)
    for key, entry in evidence.fitted.nodes.items():
        yield from known.findings(key, entry.attribution)
    for name, attribution in evidence.fitted.initializers.items():
        yield from known.findings(name, attribution)


class _KnownCalls:
    def __init__(self, provenance: Provenance) -> None:
        self._modules = provenance.hierarchy.modules
        self._counts = provenance.hierarchy.call_counts

    def findings(self, subject: str, attribution: Attribution) -> Iterator[Finding]:
        ancestor = attribution.ancestor
        for call in dict.fromkeys((*attribution.owners, *(() if ancestor is None else (ancestor,)))):
            if call.path not in self._modules:
                yield error("module-unknown", subject, f"the model has no module {call.path!r}")
            elif not self._is_recorded(call):
                count = self._counts.get(call.path, 0)
                yield error("call-unknown", subject, f"{call} is a later call, but {call.path!r} was called {count}×")

    def _is_recorded(self, call: ModuleCall) -> bool:
        # A module may run without being called (`sub.forward(x)`), which counts as its first call.
        return call.index == 0 or call.index < self._counts.get(call.path, 0)


def _unique_tags(evidence: Evidence) -> Iterator[Finding]:
    tags = evidence.fitted.tags.by_path
    counts = Counter(tags.values())
    for path, tag in tags.items():
        if counts[tag] > 1:
            yield error("tag-ambiguous", path, f"the tag {tag} names {counts[tag]} modules")


def _resolving_tags(evidence: Evidence) -> Iterator[Finding]:
    tags = evidence.fitted.tags
    for key, node in walk_nodes(evidence.model.proto):
        tag = read_node_keys(node).get(TAG_KEY)
        if tag is not None and tags.path(tag) is None:
            yield error("tag-unresolved", key, f"the tag {tag} names no module")


def _agreeing_keys(evidence: Evidence) -> Iterator[Finding]:
    found = {key: read_node_keys(node) for key, node in walk_nodes(evidence.model.proto)}
    if not any(found.values()):
        return  # the record alone was embedded
    for key, seen in found.items():
        entry = evidence.fitted.nodes.get(key)
        expected = {} if entry is None else node_keys(evidence.fitted, entry.attribution)
        if not seen and entry is not None and entry.attribution.owners:
            yield error("node-keys-missing", key, f"{entry.op_type} carries no keys, though other nodes do")
        elif seen and seen != expected:
            yield error("node-keys-differ", key, _difference(seen, expected))


def _difference(seen: dict[str, str], expected: dict[str, str]) -> str:
    keys = [key for key in (MODULE_KEY, TAG_KEY, *expected, *seen) if seen.get(key) != expected.get(key)]
    return f"{keys[0]} is {seen.get(keys[0])!r} on the node and {expected.get(keys[0])!r} in the record"


def _dataflow(evidence: Evidence) -> Iterator[Finding]:
    yield from contradictions(_as_tagged(evidence), evidence.graph)


def _as_tagged(evidence: Evidence) -> Provenance:
    """The record with what the nodes themselves say, where that is something else: both are asked about."""
    nodes = dict(evidence.fitted.nodes)
    for key, node in walk_nodes(evidence.model.proto):
        keys, entry = read_node_keys(node), nodes.get(key)
        module = keys.get(MODULE_KEY)
        if entry is not None and module is not None and module != entry.attribution.module:
            call = ModuleCall.parse(module)
            nodes[key] = replace(entry, attribution=Attribution((call,), call, entry.attribution.confidence))
    return replace(evidence.fitted, nodes=nodes)


_CHECKS: dict[str, Check] = {
    "onnx checker": _valid_model,
    "records readable": _readable_records,
    "record made for this graph": _same_graph,
    "record inside and beside agree": _same_records,
    "every node attributed": _attributed,
    "every module exists": _known_modules,
    "tags unique": _unique_tags,
    "tags resolve": _resolving_tags,
    "nodes and record agree": _agreeing_keys,
}
