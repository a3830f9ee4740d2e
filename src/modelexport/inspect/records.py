"""The record of an ONNX file, and the same record fitted to the graph that is in the file now.

A record may be inside the file and beside it, and the file may have been changed since. What is asked about a
file is answered for the nodes that it has: a fitted record has exactly these, under the names they have now.

A file opened for validation: whatever is wrong with its record is still to be found.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path

from modelexport.errors import FileUnreadable, RecordMismatch, RecordMissing, RecordUnreadable
from modelexport.graph.file.metadata import read_record, sidecar_path
from modelexport.graph.file.reading import ModelFile
from modelexport.graph.index import Graph, Node
from modelexport.graph.related import count_known_nodes, describes
from modelexport.record.document import from_document
from modelexport.record.packed import unpack
from modelexport.record.provenance import (
    Attribution,
    Confidence,
    Evidence,
    EvidenceKind,
    NodeEntry,
    Provenance,
    unattributed,
)

_NOT_RECORDED = "not in the record: the graph was changed after export"


@dataclass(frozen=True)
class StoredRecords:
    """What is in a file (`embedded`) and beside it (`sidecar`); `problems`: records that cannot be read."""

    embedded: Provenance | None
    sidecar: Provenance | None
    problems: tuple[RecordUnreadable, ...] = ()

    def best(self, path: Path) -> Provenance:
        """The record to answer from: what is in the file cannot have been mixed up with another file's."""
        found = self.embedded or self.sidecar
        if found is not None:
            return found
        if self.problems:
            raise self.problems[0]
        raise RecordMissing(
            f"there is no hierarchy record in {path} or beside it",
            f"Put {sidecar_path(path).name} back beside it, or make one: `modelexport attach {path} -m MODEL -o FILE`.",
        )


def read_best(model: ModelFile, path: Path) -> Provenance:
    """The record to answer from; what is beside the file is not even opened if the file has its own."""
    packed = read_record(model.proto)
    if packed is not None:
        try:
            return unpack(packed)
        except RecordUnreadable:
            if not sidecar_path(path).is_file():
                raise
    return read_records(model, path).best(path)


def read_records(model: ModelFile, path: Path) -> StoredRecords:
    problems: list[RecordUnreadable] = []

    def attempt(read: Callable[[], Provenance | None]) -> Provenance | None:
        try:
            return read()
        except RecordUnreadable as error:
            problems.append(error)
            return None

    packed = read_record(model.proto)
    embedded = attempt(lambda: None if packed is None else unpack(packed))
    beside = sidecar_path(path)
    sidecar = attempt(lambda: read_sidecar(beside) if beside.is_file() else None)
    return StoredRecords(embedded, sidecar, tuple(problems))


def read_sidecar(path: Path) -> Provenance:
    try:
        document = json.loads(path.read_bytes())
    except OSError as error:
        reason = (error.strerror or str(error)).lower()
        raise FileUnreadable(f"cannot read {path}: {reason}", "Check the path and its permissions.") from error
    except (ValueError, RecursionError) as error:
        raise RecordUnreadable(f"{path} is not JSON: {error}", "Export the model again to get a new one.") from error
    return from_document(document)


def fit(record: Provenance, graph: Graph, path: Path, *, beside: bool) -> Provenance:
    """The record for exactly the nodes and initializers of this graph."""
    if not describes(record, graph, beside=beside):
        raise RecordMismatch(
            f"the hierarchy record of {path} was made for another graph: "
            f"it knows {count_known_nodes(record, graph)} of {len(graph.nodes)} nodes",
            f"Remove a {sidecar_path(path).name} that belongs to another file, or export the model again.",
        )
    nodes = {node.key: _fitted(node, record.nodes.get(node.key)) for node in graph.nodes}
    missing = unattributed(_NOT_RECORDED)
    initializers = {name: record.initializers.get(name, missing) for name in graph.initializers}
    return replace(record, nodes=nodes, initializers=initializers)


def _fitted(node: Node, recorded: NodeEntry | None) -> NodeEntry:
    if recorded is None:
        attribution = unattributed(_NOT_RECORDED)
    elif recorded.op_type == node.op_type:
        attribution = recorded.attribution
    else:
        attribution = _rewritten(recorded)
    return NodeEntry(node.key, node.name, node.op_type, attribution)


def _rewritten(recorded: NodeEntry) -> Attribution:
    """Another operator makes the same value now; it may cover more than the one that did before."""
    before = recorded.attribution
    evidence = Evidence(EvidenceKind.LINEAGE, "same output", f"was {recorded.op_type}")
    confidence = min(before.confidence, Confidence.INFERRED)
    return replace(before, confidence=confidence, evidence=(*before.evidence, evidence))


@dataclass(frozen=True)
class Inspection:
    """What the checks look at. `record` is as stored; there is at least one."""

    path: Path
    model: ModelFile
    graph: Graph
    stored: StoredRecords
    record: Provenance

    @property
    def foreign(self) -> bool:
        """The record speaks of another file, so that nothing else can be asked about it."""
        return not describes(self.record, self.graph, beside=self._beside)

    @property
    def _beside(self) -> bool:
        return self.stored.embedded is None

    @cached_property
    def fitted(self) -> Provenance:
        """The record for exactly the nodes of the file; a foreign one cannot be fitted."""
        return fit(self.record, self.graph, self.path, beside=self._beside)


def inspect(model: ModelFile, path: Path) -> Inspection:
    stored = read_records(model, path)
    return Inspection(path, model, model.graph, stored, stored.best(path))
