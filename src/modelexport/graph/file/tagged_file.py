"""Tagged file: an opened ONNX model with its record, as one value. Every part is made when it is first asked for.

    file = open_tagged(Path("bert.onnx"))
    file.proto, file.weights    structure, and where the large weights are (`ModelFile`)
    file.sized_proto            the structure, with sizes of axes that are known from elsewhere
    file.graph, file.types      index of nodes and values; types and shapes of values
    file.record                 the record as it is stored: in the metadata, else in bert.hierarchy.json beside it
    file.provenance             that record, fitted to the nodes that the file has now

A tool may have changed the graph after the record was made. Questions about a file are answered from the fitted record,
by all verbs: it has exactly the nodes of the file, and `stale_notes` say so. Only what makes a new record (`relink`,
and `profile` of the graph that was optimized) traces lineage, from the graph that the record was made for: `Ancestor`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

from modelexport.errors import FileUnreadable, RecordMismatch, RecordMissing, RecordUnreadable, quote_argument
from modelexport.graph.file.metadata import (
    count_differing_nodes,
    name_nodes,
    read_outline,
    read_record,
    sidecar_path,
)
from modelexport.graph.file.reading import ModelFile, open_model
from modelexport.graph.index import Graph, Node, edges_of, walk_nodes
from modelexport.record.document import SIDECAR_SUFFIX, from_document
from modelexport.record.json_reading import read_json
from modelexport.record.packed import unpack
from modelexport.record.provenance import Confidence, Evidence, EvidenceKind, NodeEntry, Provenance, unattributed

# What a part takes to be made is imported when it is: most questions need few of them.
if TYPE_CHECKING:
    import onnx

    from modelexport.graph.crossings import Crossings
    from modelexport.graph.types import ValueTypes
    from modelexport.record.outline import Outline, Sketch, Sketches

_NOT_RECORDED = "not in the record: the graph was changed after export"
STALE_NOTE = (
    "the graph was changed after its record was made: nodes that the record does not know have no module. "
    "`modelexport relink` finds out where they come from"
)


@dataclass(frozen=True)
class StoredRecord:
    """A record in one of its two places: what it says, or why it cannot be read. Both are None if there is none."""

    provenance: Provenance | None = None
    problem: RecordUnreadable | FileUnreadable | None = None


@dataclass(frozen=True, eq=False)
class TaggedFile(ModelFile):
    """A model file that was opened by its path, and what is recorded of it.

    believed  a record for exactly this graph that is not stored yet: that of a file which a tool has just made
    """

    believed: Provenance | None = None

    @property
    def path(self) -> Path:
        return (self.directory or Path()) / self.file_name

    @cached_property
    def types(self) -> ValueTypes:
        from modelexport.graph.types import ValueTypes

        return ValueTypes(self)

    @cached_property
    def sized_proto(self) -> onnx.ModelProto:
        """The model with sizes for axes that it leaves open, where the record or the configuration beside it has them.

        past_key_values.0.key [batch, 2, past, head]  ->  [batch, 2, past, 16]
        """
        from modelexport.graph.file.context import find_cache_sizes
        from modelexport.graph.types import fill_sizes

        stated = find_cache_sizes(self.path.parent, [value.name for value in self.proto.graph.input])
        record = self.related_record
        return fill_sizes(self.proto, {**stated, **(record.origin.sizes if record is not None else {})})

    @cached_property
    def protos(self) -> Mapping[str, onnx.NodeProto]:
        """Nodes of the main graph, of subgraphs and of functions, by key."""
        return dict(walk_nodes(self.proto))

    @cached_property
    def embedded(self) -> StoredRecord:
        packed = read_record(self.proto)
        return StoredRecord() if packed is None else _attempt(lambda: unpack(packed))

    @cached_property
    def sidecar(self) -> StoredRecord:
        beside = sidecar_path(self.path)
        return _attempt(lambda: read_sidecar(beside)) if beside.is_file() else StoredRecord()

    @cached_property
    def record(self) -> Provenance:
        """The record as it is stored, for the graph that it was made for.

        What is in the file cannot have been mixed up with another file's, so the sidecar is not even opened then.
        """
        # Relinking has just made it for this graph; what the tool left in the metadata is older.
        if self.believed is not None:
            return self.believed
        stored = self.embedded.provenance or self.sidecar.provenance
        if stored is not None:
            return stored
        how = f"`modelexport attach {quote_argument(self.path)} -o FILE` (with -m MODEL, by values)"
        hint = f"Put {sidecar_path(self.path).name} back beside it, or make one: {how}."
        missing = RecordMissing(f"there is no hierarchy record in {self.path} or beside it", hint)
        raise self.embedded.problem or self.sidecar.problem or missing

    @property
    def is_recorded(self) -> bool:
        """Whether a record is stored in the file or beside it, be it one that cannot be read."""
        # One after the other: a sidecar beside a file with its own record is not even opened.
        return any(stored.provenance or stored.problem for stored in self._stored_records())

    def _stored_records(self) -> Iterator[StoredRecord]:
        yield self.embedded
        yield self.sidecar

    def believing(self, record: Provenance) -> TaggedFile:
        """The same file with a record for this graph that is not stored."""
        believing = replace(self, believed=record)
        # The index of a large graph takes as long as any question about it, and says the same of both.
        vars(believing)["graph"] = self.graph
        return believing

    @property
    def is_record_beside(self) -> bool:
        return self.believed is None and self.embedded.provenance is None

    @property
    def is_up_to_date(self) -> bool:
        """Whether the record was made for this very graph."""
        return self.record.origin.graph == self.graph.fingerprint

    @property
    def stale_notes(self) -> tuple[str, ...]:
        """What all verbs say of a record that was made for an earlier graph."""
        return () if self.is_up_to_date else (STALE_NOTE,)

    @cached_property
    def key_notes(self) -> tuple[str, ...]:
        """What verbs say where nodes carry keys that are not those of the record. Of an earlier graph they may be."""
        record = None if self.believed is not None else self.embedded.provenance
        if record is None or not self.is_up_to_date:
            return ()
        count = count_differing_nodes(self.graph.nodes, record)
        if not count:
            return ()
        nodes = "1 node differ" if count == 1 else f"{count:,} nodes differ"
        return (f"keys on {nodes} from the record: modelexport validate --repair {quote_argument(self.path)}",)

    @property
    def is_record_foreign(self) -> bool:
        """Whether the record speaks of another model, so that nothing can be asked about this one."""
        if self.is_up_to_date:
            return False
        from modelexport.graph.related import describes

        return not describes(self.record, self.graph, beside=self.is_record_beside)

    @cached_property
    def related_record(self) -> Provenance | None:
        """The stored record, up to date or not; None if there is none, it cannot be read, or it is another model's."""
        try:
            return None if self.is_record_beside and self.is_record_foreign else self.record
        except (RecordMissing, RecordUnreadable, FileUnreadable):
            return None

    @cached_property
    def provenance(self) -> Provenance:
        """The record for exactly the nodes and initializers that there are."""
        return self.believed or self._fit_record()

    @cached_property
    def provenance_with_edges(self) -> Provenance:
        """The same with what the nodes make and read, for questions about tensors and neighbours."""
        return replace(self.provenance, edges=edges_of(self.graph))

    @cached_property
    def crossings(self) -> Crossings:
        from modelexport.graph.crossings import find_crossings

        return find_crossings(self.graph, self.provenance)

    @cached_property
    def outline(self) -> Outline | None:
        """The graph that the record was made for, in brief, if that is in the file."""
        packed = read_outline(self.proto)
        if packed is None:
            return None
        from modelexport.record.outline import unpack_outline

        return unpack_outline(packed, self.record)

    def with_names(self, refuses: Callable[[str], str]) -> tuple[TaggedFile, int]:
        """The same file with names for nodes that have none of their own or a refused one, and how many those are."""
        attributions = {key: entry.attribution for key, entry in self.provenance.nodes.items()}
        changed = name_nodes(self.proto, attributions, refuses)
        # A new value, because everything cached here was made with the old names.
        renamed = replace(self)
        if self.believed is not None:
            entries = {node.key: replace(self.believed.nodes[node.key], name=node.name) for node in renamed.graph.nodes}
            renamed = renamed.believing(replace(self.believed, nodes=entries))
        return renamed, len(changed)

    def _fit_record(self) -> Provenance:
        record, graph = self.record, self.graph
        if self.is_record_foreign:
            from modelexport.graph.related import count_known_nodes

            raise RecordMismatch(
                f"the hierarchy record of {self.path} was made for another graph: "
                f"it knows {count_known_nodes(record, graph)} of {len(graph.nodes)} nodes",
                f"Remove a {sidecar_path(self.path).name} that belongs to another file, or export the model again.",
            )
        nodes = {node.key: _fit_entry(node, record.nodes.get(node.key)) for node in graph.nodes}
        missing = unattributed(_NOT_RECORDED)
        initializers = {name: record.initializers.get(name, missing) for name in graph.initializers}
        return replace(record, nodes=nodes, initializers=initializers)


def open_tagged(path: Path) -> TaggedFile:
    """Raise FileUnreadable for a path that is no model; a missing record is an error when it is first asked for."""
    # Tab completion offers it beside the model, and "not an ONNX model" would not say what to do.
    if path.name.endswith(SIDECAR_SUFFIX):
        raise FileUnreadable(f"{path} is a hierarchy record, not a model", "Give the .onnx file beside it.")
    model = open_model(path)
    return TaggedFile(model.proto, model.weights, model.directory, model.file_name)


def read_sidecar(path: Path) -> Provenance:
    try:
        document = read_json(path)
    except OSError as error:
        raise FileUnreadable.from_os_error(path, error) from error
    except ValueError as error:
        raise RecordUnreadable(f"{path} is not JSON: {error}", "Export the model again to get a new one.") from error
    return from_document(document)


def _attempt(read: Callable[[], Provenance]) -> StoredRecord:
    try:
        return StoredRecord(read())
    except (RecordUnreadable, FileUnreadable) as error:
        return StoredRecord(problem=error)


def _fit_entry(node: Node, recorded: NodeEntry | None) -> NodeEntry:
    if recorded is not None and recorded.op_type == node.op_type and recorded.name == node.name:
        return recorded
    attribution = unattributed(_NOT_RECORDED) if recorded is None else recorded.attribution
    if recorded is not None and recorded.op_type != node.op_type:
        # Another operator makes the same value now. It may do more than its module's work: never better than inferred.
        evidence = Evidence(EvidenceKind.LINEAGE, "same output", f"was {recorded.op_type}")
        confidence = min(attribution.confidence, Confidence.INFERRED)
        attribution = replace(attribution, confidence=confidence, evidence=(*attribution.evidence, evidence))
    return NodeEntry(node.key, node.name, node.op_type, attribution)


@dataclass(frozen=True)
class Ancestor:
    """The graph that a record was made for: what nodes and weights of a file are traced back to.

    name      a path, or "the record in" one, for messages
    graph     with digests in the place of attributes and constants, as `outline.digested` gives it
    sketches  of its constants by name
    """

    name: str
    record: Provenance
    graph: Graph
    sketches: Sketches


def find_ancestor(file: TaggedFile) -> Ancestor:
    """The file itself if its record is up to date; else the graph before, if the file has an outline of it."""
    if file.is_up_to_date or read_outline(file.proto) is None:
        return tagged_ancestor(file)
    return outlined_ancestor(file)


def tagged_ancestor(file: TaggedFile) -> Ancestor:
    """The graph of the file itself, whatever it was made from."""
    from modelexport.graph.outline import digested, sketches_of
    from modelexport.graph.soundness import ensure_sound

    # Lineage walks producers, and would not return from a cycle.
    ensure_sound(file.proto, file.graph, str(file.path))
    return Ancestor(str(file.path), file.provenance, digested(file.graph), skip_unreadable(sketches_of(file)))


def outlined_ancestor(file: TaggedFile) -> Ancestor:
    from modelexport.graph.outline import graph_of

    outline = file.outline
    if outline is None:
        raise RecordMissing(
            f"{file.path} does not say what it was made from: it carries no outline of the graph before",
            "Give the tagged file as well: modelexport relink BEFORE AFTER -o FILE.",
        )
    return Ancestor(f"the record in {file.path}", file.record, graph_of(outline), outline.sketches.get)


def skip_unreadable(sketches: Sketches) -> Sketches:
    """Weights may lie in a file that is not there; names and structure say enough without their numbers."""

    def find_sketch(name: str) -> Sketch | None:
        try:
            return sketches(name)
        except FileUnreadable:
            return None

    return find_sketch
