"""Provenance: the module tree, and one attribution for every node and every initializer of one ONNX graph."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cached_property

from modelexport.errors import UnknownName, UserError
from modelexport.record.edges import Edges
from modelexport.record.evidence import Attribution, unattributed
from modelexport.record.hierarchy import Hierarchy, ModuleCall
from modelexport.record.tags import TagPolicy, Tags
from modelexport.record.tensors import Boundary, TensorEntry, find_boundary

SCHEMA_VERSION = 1


@dataclass(frozen=True, slots=True)
class NodeEntry:
    """One ONNX node: its key (graph and first output), its name and operator, and where it comes from."""

    key: str
    name: str
    op_type: str
    attribution: Attribution


@dataclass(frozen=True, slots=True)
class Origin:
    """How a record came to be. `graph` is the fingerprint of the graph that it was made for."""

    strategy: str
    exporter: str
    graph: str = ""
    model: str = ""
    tools: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Provenance:
    """What is known about one ONNX file. Needs neither torch nor the model.

    absent  executed modules that own nothing in the graph, and why
    edges   what the nodes make and read; known where the graph is at hand, and not part of the record
    """

    hierarchy: Hierarchy
    nodes: Mapping[str, NodeEntry]
    initializers: Mapping[str, Attribution]
    origin: Origin
    policy: TagPolicy = TagPolicy()
    absent: Mapping[str, str] = field(default_factory=dict)
    edges: Edges | None = field(default=None, compare=False, repr=False)

    @cached_property
    def tags(self) -> Tags:
        return Tags(self.hierarchy, self.policy)

    def entry(self, name_or_key: str) -> NodeEntry:
        """The node with this name or key."""
        found = self.nodes.get(name_or_key) or self._by_name.get(name_or_key)
        if found is None:
            raise UnknownName("node", name_or_key, [entry.name or entry.key for entry in self.nodes.values()])
        return found

    def attribution(self, name_or_key: str) -> Attribution:
        return self.entry(name_or_key).attribution

    def recorded(self, key: str) -> Attribution:
        """The same by key alone; an empty one with a reason for a node that the record does not have."""
        entry = self.nodes.get(key)
        return unattributed("not in the record") if entry is None else entry.attribution

    def tag(self, attribution: Attribution) -> str:
        return "" if attribution.ancestor is None else self.tags.tag(attribution.ancestor.path)

    @cached_property
    def _by_name(self) -> Mapping[str, NodeEntry]:
        return {entry.name: entry for entry in reversed(list(self.nodes.values())) if entry.name}

    def known_edges(self) -> Edges:
        """The edges, or an error that says how to get them."""
        if self.edges is None:
            raise UserError(
                "tensors are not part of a record: only the model knows what its nodes make and read",
                "Load the .onnx file instead of the .hierarchy.json beside it.",
            )
        return self.edges

    def tensor(self, name: str) -> TensorEntry:
        """A value of the graph, what makes it and all that read it. In a body, behind the id of that body."""
        edges = self.known_edges()
        if name not in edges:
            raise UnknownName("tensor", name, edges.values)
        return TensorEntry(
            name=name,
            producers={key: self.nodes[key].attribution for key in edges.producers.get(name, ())},
            initializer=self.initializers.get(name),
            consumers={key: self.nodes[key].attribution for key in edges.consumers.get(name, ())},
            is_input=name in edges.inputs,
            is_output=name in edges.outputs,
        )

    def boundary(self, module: str) -> Boundary:
        """The tensors that go into a module (all of its calls, or the one in `block#2`) and come out of it.

        Inside is what ran while the module, or one below its path, was being called. A node with several owners is
        inside if one of them is.
        """
        edges = self.known_edges()
        within = self.issued_within(module)
        inside = {key for key, entry in self.nodes.items() if within(entry.attribution)}
        own = {name for name, attribution in self.initializers.items() if within(attribution)}
        return find_boundary(module, edges, inside, own)

    def issued_within(self, module: str) -> Callable[[Attribution], bool]:
        """Whether something was issued inside a module (all of its calls), or inside the one call in `block#2`."""
        inside = self.ran_within(module)
        return lambda found: any(map(inside, found.owners))

    def ran_within(self, module: str) -> Callable[[ModuleCall], bool]:
        """The same of a call."""
        hierarchy = self.hierarchy
        wanted = ModuleCall.parse(module)
        path = hierarchy.path_of(module)
        if path is None and wanted not in hierarchy.stacks:
            raise UnknownName("module", module, hierarchy.canonical)

        def fits(call: ModuleCall) -> bool:
            return call == wanted if path is None else is_within(call.path, path)

        return lambda inner: any(map(fits, hierarchy.stack(inner)))


def is_within(path: str, above: str) -> bool:
    """Whether a path is that of a module or of one below it."""
    return not above or path == above or path.startswith(f"{above}.")
