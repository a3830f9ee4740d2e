"""Validation: a file is sound, its record belongs to it, and both say the same. Findings are values, not exceptions.

Each check is one function that yields findings. To add a check: write it, and name it in `_FILE_CHECKS` (any file),
`_READING_CHECKS` (a record is stored),
`_STORED_CHECKS` (it can be read) or `_RECORD_CHECKS` (it is about this file), at the end. A check must
not fail on what another one is there to find.

Dataflow consistency (`--check-consistency`). Calls nest, so what one call makes can only be read by calls that had not
ended before it began. An edge that goes back in time means that one of its two ends is credited wrongly:

    MatMul, credited to layer.1  ──►  Add, credited to layer.0     layer.0 had ended when layer.1 began

Blamed is the end with the larger share of such edges, or else the one that is known less well. This holds for every
correct attribution, whatever the model does; a shared node is consistent if one of its owners is. A record that was
read from the file itself does not know the calls, and is not asked.

Repair (`--repair`) rewrites what nodes say about themselves from the record.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from enum import StrEnum
from math import isinf

from modelexport.errors import RecordUnreadable, quote_argument, some_of
from modelexport.graph.file import metadata
from modelexport.graph.file.declared import missing_weights
from modelexport.graph.file.external import is_external, missing_data
from modelexport.graph.file.tagged_file import TaggedFile, skip_unreadable
from modelexport.graph.index import Node
from modelexport.graph.outline import sketches_of
from modelexport.graph.related import count_known_nodes
from modelexport.graph.soundness import check_graph
from modelexport.record.hierarchy import Hierarchy, ModuleCall
from modelexport.record.provenance import Attribution, Confidence, Provenance


class Severity(StrEnum):
    """An error makes `validate` fail; a warning is told and no more."""

    ERROR = "error"
    WARNING = "warning"


@dataclass(frozen=True, order=True, slots=True)
class Finding:
    """One thing that is wrong. `subject` is a node, an initializer, a module, or empty for the file."""

    severity: Severity
    code: str
    subject: str
    message: str


@dataclass(frozen=True)
class Validation:
    """Findings in the order of the checks that made them; `checks` are the names of all checks that ran.

    repaired   how many nodes were given other keys
    written    the file that the repaired model went to, if anything was written
    """

    path: str
    checks: tuple[str, ...]
    findings: tuple[Finding, ...]
    repaired: int = 0
    written: str = ""

    @property
    def ok(self) -> bool:
        return not self.errors

    @property
    def errors(self) -> tuple[Finding, ...]:
        return tuple(finding for finding in self.findings if finding.severity is Severity.ERROR)


def error(code: str, subject: str, message: str) -> Finding:
    return Finding(Severity.ERROR, code, subject, message)


def repair_keys(file: TaggedFile) -> int:
    """Give every node the keys that the record has for it, in place; how many nodes had others.

    The record goes back as it was stored: a graph that was changed since must not look like its own.
    """
    before = _keys(file)
    # In two steps: nodes get their keys from the record as it holds for this graph, not as it was stored.
    metadata.embed(file.proto, file.record, metadata.EmbedOptions(metadata.Level.LEAN))
    metadata.write_node_keys(file.proto, file.provenance)
    after = _keys(file)
    return sum(before[key] != after[key] for key in before)


def _keys(file: TaggedFile) -> dict[str, dict[str, str]]:
    return {key: metadata.read_node_keys(node) for key, node in file.protos.items()}


# The node that makes a value, and one that reads it.
_Edge = tuple[Node, Node]


def _find_contradictions(file: TaggedFile) -> Iterator[Finding]:
    """One finding for each node that must be credited wrongly."""
    provenance = _as_tagged(file)
    edges = [(maker, reader) for maker in file.graph.nodes for reader in file.graph.successors(maker)]
    wrong = [edge for edge in edges if _goes_back(provenance, edge)]
    edge_counts, wrong_counts = _count_ends(edges), _count_ends(wrong)

    def suspicion(node: Node) -> tuple[float, int]:
        # A wrong node has nearly all of its edges wrong; a right one beside it has only that to the wrong one.
        entry = provenance.nodes.get(node.key)
        confidence = Confidence.NONE if entry is None else entry.attribution.confidence
        return wrong_counts[node.key] / edge_counts[node.key], -confidence

    blamed: dict[str, _Edge] = {}
    for edge in wrong:
        # One edge is proof enough; a node with hundreds of readers would otherwise be reported for each.
        blamed.setdefault(max(edge, key=suspicion).key, edge)
    for key, edge in blamed.items():
        maker, reader = (_described(provenance, node) for node in edge)
        yield error("dataflow", key, f"{maker} is read by {reader}, which had ended before")


def _are_calls_known(file: TaggedFile) -> bool:
    """Not if modules were read from the file: each is written as called once, so when a call ended is not known."""
    return not file.provenance.origin.is_file


def _goes_back(provenance: Provenance, edge: _Edge) -> bool:
    """Whether every call of the reader had ended before any of the maker's began."""
    maker, reader = (_owners(provenance, node) for node in edge)
    pairs = [(early, late) for early in reader for late in maker]
    return bool(pairs) and all(_is_earlier(provenance.hierarchy, early, late) for early, late in pairs)


def _is_earlier(hierarchy: Hierarchy, early: ModuleCall, late: ModuleCall) -> bool:
    """Whether a call had ended when another began. A call inside of another has not ended before it, nor it before."""
    began = hierarchy.call_order
    if early not in began or late not in began:
        return False  # a module that ran without being called has no known time
    # Where the stacks part, two calls stand side by side in one call: they cannot overlap.
    for call, other_call in zip(hierarchy.stack(early), hierarchy.stack(late), strict=False):
        if call != other_call:
            return began[call] < began[other_call]
    return False


def _count_ends(edges: list[_Edge]) -> Counter[str]:
    """How many edges begin or end at each node."""
    return Counter(node.key for edge in edges for node in edge)


def _owners(provenance: Provenance, node: Node) -> tuple[ModuleCall, ...]:
    entry = provenance.nodes.get(node.key)
    return () if entry is None else entry.attribution.owners


def _described(provenance: Provenance, node: Node) -> str:
    modules = " and ".join(str(call) or "the root" for call in _owners(provenance, node))
    return f"{node.op_type} {node.key!r} of {modules}"


Check = Callable[[TaggedFile], Iterator[Finding]]


def run_checks(file: TaggedFile, *, check_consistency: bool, require_record: bool = False) -> Validation:
    """Run all checks that make sense for the file. `require_record`: that there is no record is an error."""
    checks = dict(_FILE_CHECKS)
    if not file.is_recorded:
        severity = Severity.ERROR if require_record else Severity.WARNING
        checks |= {"record present": lambda file: _missing_record(file, severity)}
    elif file.embedded.provenance is None and file.sidecar.provenance is None:
        checks |= _READING_CHECKS
    else:
        checks |= _READING_CHECKS | _STORED_CHECKS
        if not file.is_record_foreign:
            checks |= _RECORD_CHECKS
            checks |= {"dataflow": _find_contradictions} if check_consistency and _are_calls_known(file) else {}
    findings = [finding for check in checks.values() for finding in check(file)]
    return Validation(str(file.path), tuple(checks), tuple(findings))


def report_faults(path: str, faults: Iterable[str]) -> Validation:
    """Of a file with parts that cannot be read: no other check can be run on it."""
    return Validation(path, ("every part readable",), tuple(error("malformed", "", fault) for fault in faults))


def _valid_model(file: TaggedFile) -> Iterator[Finding]:
    """ONNX's own checker, and data that lies in files which are not there."""
    problem = check_graph(file)
    if problem is not None and check_graph(file, stated_shapes=False) is None:
        # ONNX Runtime infers shapes itself and runs such a file; it refuses one that states wrong element types.
        yield Finding(Severity.WARNING, "stated-shape", "", f"the file states a wrong shape of a value: {problem}")
    elif problem is not None:
        yield error("invalid-model", "", problem)
    for name, reason in missing_data(file.proto, file.directory):
        yield error("data-missing", name, reason)
    if missing := missing_weights(file):
        message = f"{len(missing)} weights have no numbers, so that the file cannot be run: `modelexport fill` fills it"
        yield Finding(Severity.WARNING, "weights-missing", "", message)


def _missing_record(file: TaggedFile, severity: Severity) -> Iterator[Finding]:
    """A file of another tool is no worse for having none: other verbs read what it says itself."""
    how = f"`modelexport attach {quote_argument(file.path)} -o FILE` writes one"
    yield Finding(severity, "record-missing", "", f"there is no hierarchy record in the file or beside it: {how}")


def _readable_records(file: TaggedFile) -> Iterator[Finding]:
    """A record that cannot be read is not the same as none."""
    for stored in (file.embedded, file.sidecar):
        if stored.problem is not None:
            yield error("record-unreadable", "", stored.problem.message)


def _same_graph(file: TaggedFile) -> Iterator[Finding]:
    """By the fingerprint, which leaves out names of nodes: an optimizer changes it, a viewer does not."""
    record, graph = file.record, file.graph
    if record.origin.graph == graph.fingerprint:
        return
    known = f"{count_known_nodes(record, graph)} of the file's {len(graph.nodes)} nodes are in the record"
    if file.is_record_foreign:
        yield error("record-foreign", "", f"the record belongs to another file: {known}")
    else:
        yield error("graph-changed", "", f"the graph was changed since the record was made: {known}")


def _same_records(file: TaggedFile) -> Iterator[Finding]:
    """A copy beside the file may be older, or another file's."""
    embedded, sidecar = file.embedded.provenance, file.sidecar.provenance
    if embedded is None or sidecar is None or embedded == sidecar:
        return
    if embedded.origin.graph != sidecar.origin.graph:
        yield error("sidecar-foreign", "", "the record beside the file was made for another graph than the one inside")
    else:
        yield error("sidecar-differs", "", "the record beside the file and the one inside say different things")


def _own_data(file: TaggedFile) -> Iterator[Finding]:
    """Data in a file of its own can be exchanged, by hand or by a run that was killed before it had moved the model.

    Eight numbers of each weight are compared with what the outline has of them; weights inside came with the model.
    """
    try:
        outline = file.outline if file.is_up_to_date else None
    except RecordUnreadable as problem:
        yield error("record-unreadable", "", problem.message)
        return
    outside = [tensor.name for tensor in filter(is_external, file.proto.graph.initializer)]
    recorded = {} if outline is None else {name: outline.sketches[name] for name in outside if name in outline.sketches}
    present = skip_unreadable(sketches_of(file))
    stored = {name: present(name) for name in recorded}
    other = [name for name, sketch in stored.items() if sketch is not None and isinf(sketch.distance(recorded[name]))]
    if other:
        count = f"{len(other)} of {len(recorded)} weights in data files are not those that the file was written with"
        yield error("data-foreign", "", f"{count}: {some_of(other)}")


def _attributed(file: TaggedFile) -> Iterator[Finding]:
    """Every node has a module, by evidence; a default is only a warning."""
    for key, entry in file.provenance.nodes.items():
        attribution = entry.attribution
        if attribution.ancestor is None or attribution.confidence is Confidence.NONE:
            reason = attribution.reason or "the record gives no reason"
            yield error("node-unattributed", key, f"{entry.op_type} has no module: {reason}")
        elif attribution.confidence is Confidence.FALLBACK:
            message = f"{entry.op_type} has a default instead of evidence"
            yield Finding(Severity.WARNING, "node-fallback", key, message)


def _known_modules(file: TaggedFile) -> Iterator[Finding]:
    """A record can be edited, or belong to another version of the model: it then names modules that are not there."""
    hierarchy = file.provenance.hierarchy
    nodes = {key: entry.attribution for key, entry in file.provenance.nodes.items()}
    for subject, attribution in (*nodes.items(), *file.provenance.initializers.items()):
        around = () if attribution.ancestor is None else (attribution.ancestor,)
        for call in dict.fromkeys((*attribution.owners, *around)):
            count = hierarchy.call_counts.get(call.path, 0)
            if call.path not in hierarchy.modules:
                yield error("module-unknown", subject, f"the model has no module {call.path!r}")
            # A module may run without being called (`sub.forward(x)`), which counts as its first call.
            elif call.index > 0 and call.index >= count:
                yield error("call-unknown", subject, f"{call} is a later call, but {call.path!r} was called {count}×")


def _unique_tags(file: TaggedFile) -> Iterator[Finding]:
    """A tag that names two modules leads to the wrong one of them half of the time."""
    tags = file.provenance.tags.by_path
    counts = Counter(tags.values())
    for path, tag in tags.items():
        if counts[tag] > 1:
            yield error("tag-ambiguous", path, f"the tag {tag} names {counts[tag]} modules")


def _resolving_tags(file: TaggedFile) -> Iterator[Finding]:
    """Tags on nodes lead back to modules: what a reader does with them."""
    tags = file.provenance.tags
    for key, node in file.protos.items():
        tag = metadata.read_node_keys(node).get(metadata.TAG_KEY)
        if tag is not None and tags.path(tag) is None:
            yield error("tag-unresolved", key, f"the tag {tag} names no module")


def _agreeing_keys(file: TaggedFile) -> Iterator[Finding]:
    """Nodes carry copies of what the record says, which tools copy, drop or mix up."""
    keys = _keys(file)
    if not any(keys.values()):
        return  # the record alone was embedded
    for key, seen in keys.items():
        entry = file.provenance.nodes.get(key)
        expected = {} if entry is None else metadata.node_keys(file.provenance, entry.attribution)
        if not seen and entry is not None and entry.attribution.owners:
            yield error("node-keys-missing", key, f"{entry.op_type} carries no keys, though other nodes do")
        elif seen and seen != expected:
            # The module and its tag first: if they differ, so does most of the rest, and only because of them.
            first = next(
                key
                for key in (metadata.MODULE_KEY, metadata.TAG_KEY, *expected, *seen)
                if seen.get(key) != expected.get(key)
            )
            values = f"{seen.get(first)!r} on the node and {expected.get(first)!r} in the record"
            yield error("node-keys-differ", key, f"{first} is {values}")


def _as_tagged(file: TaggedFile) -> Provenance:
    """The record with what nodes say of themselves where that is something else, which makes them suspects."""
    nodes = dict(file.provenance.nodes)
    for key, node in file.protos.items():
        module, entry = metadata.read_node_keys(node).get(metadata.MODULE_KEY), nodes.get(key)
        if entry is not None and module is not None and module != entry.attribution.module:
            call = ModuleCall.parse(module)
            nodes[key] = replace(entry, attribution=Attribution((call,), call, Confidence.FALLBACK))
    return replace(file.provenance, nodes=nodes)


_FILE_CHECKS: dict[str, Check] = {
    "onnx checker": _valid_model,
}
_READING_CHECKS: dict[str, Check] = {
    "records readable": _readable_records,
}
_STORED_CHECKS: dict[str, Check] = {
    "record made for this graph": _same_graph,
}
_RECORD_CHECKS: dict[str, Check] = {
    "records inside and beside agree": _same_records,
    "data belongs to the model": _own_data,
    "every node attributed": _attributed,
    "every module exists": _known_modules,
    "tags unique": _unique_tags,
    "tags resolve": _resolving_tags,
    "nodes and record agree": _agreeing_keys,
}
