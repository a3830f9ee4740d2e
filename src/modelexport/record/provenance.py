"""Provenance: the module tree, and one attribution for every node and every initializer of one ONNX graph."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property

from modelexport.errors import UnknownName
from modelexport.record.evidence import Attribution
from modelexport.record.hierarchy import Hierarchy
from modelexport.record.tags import TagPolicy, Tags

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
    """

    hierarchy: Hierarchy
    nodes: Mapping[str, NodeEntry]
    initializers: Mapping[str, Attribution]
    origin: Origin
    policy: TagPolicy = TagPolicy()
    absent: Mapping[str, str] = field(default_factory=dict)

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

    def tag(self, attribution: Attribution) -> str:
        return "" if attribution.ancestor is None else self.tags.tag(attribution.ancestor.path)

    @cached_property
    def _by_name(self) -> Mapping[str, NodeEntry]:
        return {entry.name: entry for entry in reversed(list(self.nodes.values())) if entry.name}
