"""Provenance: the module tree, and one attribution for every node and every initializer of one ONNX graph.

    claim        "node_linear is encoder.fc's, EXACT, by its scope"     what one strategy says
    attribution  owners, ancestor, confidence, evidence, role           the answer for one node
    provenance   hierarchy + attributions + where they come from        the answer for one file

`Edges` (which nodes make and read each value) come from the graph and are never stored in a record; with them, a
provenance also answers which tensors go into a module and come out of it (`boundary`).
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from enum import IntEnum, StrEnum
from functools import cached_property

from modelexport.errors import UnknownName, UserError
from modelexport.record.hierarchy import Hierarchy, ModuleCall
from modelexport.record.tags import TagPolicy, Tags


class Confidence(IntEnum):
    """Ordered; never a float.

    EXACT     a recorded fact names the module call
    STRONG    a recorded fact names the module; something beside it (the call, a companion) follows from structure
    INFERRED  follows from the neighbours in the dataflow
    FALLBACK  nothing but a default
    NONE      unknown; the attribution says why
    """

    NONE = 0
    FALLBACK = 1
    INFERRED = 2
    STRONG = 3
    EXACT = 4

    @property
    def label(self) -> str:
        return self.name.lower()

    @classmethod
    def parse(cls, label: str) -> Confidence:
        return cls[label.upper()]


class EvidenceKind(StrEnum):
    SCOPE = "scope"
    FX = "fx"
    TRACE = "trace"
    VALUE = "value"
    PARAMETER = "parameter"
    DATAFLOW = "dataflow"
    LINEAGE = "lineage"


@dataclass(frozen=True, order=True, slots=True)
class Evidence:
    """One reason: its kind, who gave it, and a detail for people."""

    kind: EvidenceKind
    source: str
    detail: str = ""

    def __str__(self) -> str:
        return f"{self.kind}:{self.source}" + (f" ({self.detail})" if self.detail else "")


@dataclass(frozen=True, slots=True)
class Claim:
    """What one strategy says of one node or initializer: the module calls that it belongs to, and why."""

    owners: tuple[ModuleCall, ...]
    confidence: Confidence
    evidence: tuple[Evidence, ...]
    strategy: str


@dataclass(frozen=True, slots=True)
class Attribution:
    """The answer for one node or initializer.

    owners    the module calls that issued it: one, or several for a fused or shared node
    ancestor  the one owner, or the innermost call that encloses all of them
    reason    why there is no owner, where there is none
    lost      claims that said something else
    role      what the node does, found from dataflow: `attention.query`, `mlp.gate`, `norm`; empty if nothing is known
    layer_id  the number of the repeated block that it is part of, in the order of execution
    """

    owners: tuple[ModuleCall, ...]
    ancestor: ModuleCall | None
    confidence: Confidence
    evidence: tuple[Evidence, ...] = ()
    reason: str = ""
    lost: tuple[Claim, ...] = ()
    role: str = ""
    layer_id: int | None = None

    @property
    def semantic_type(self) -> str:
        """The first part of the role: `attention` of `attention.query`."""
        return self.role.partition(".")[0]

    @property
    def component(self) -> str:
        """The second part of the role: `query` of `attention.query`."""
        return self.role.partition(".")[2]

    @property
    def module(self) -> str | None:
        """Path of the module (`#n` for a later call); for several owners, of the module that encloses them."""
        return None if self.ancestor is None else str(self.ancestor)

    @property
    def modules(self) -> tuple[str, ...]:
        return tuple(str(owner) for owner in self.owners)


def unattributed(reason: str) -> Attribution:
    return Attribution((), None, Confidence.NONE, reason=reason)


@dataclass(frozen=True)
class Edges:
    """Values by their ids: names in the main graph, behind the id of the graph in bodies and functions.

    producers     the key of the node that makes a value; for what a body or a function is given, the nodes that run it
    consumers     all nodes that read a value, in file order; what a body returns is read by the node that runs it
    initializers  values that are stored in the file, with the number of their elements
    domains       of the operators that are not ONNX's own, by node key
    """

    producers: Mapping[str, tuple[str, ...]]
    consumers: Mapping[str, tuple[str, ...]]
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    initializers: Mapping[str, int]
    domains: Mapping[str, str]

    @cached_property
    def values(self) -> tuple[str, ...]:
        return tuple(dict.fromkeys(value for group in self._groups for value in group))

    def __contains__(self, value: str) -> bool:
        return any(value in group for group in self._groups)

    @property
    def _groups(self) -> tuple[Collection[str], ...]:
        return self.inputs, self.initializers, self.producers, self.consumers, self.outputs

    def around(self, value: str) -> tuple[str, ...]:
        return (*self.producers.get(value, ()), *self.consumers.get(value, ()))


@dataclass(frozen=True, slots=True)
class TensorEntry:
    """One value of the graph: where it comes from and everything that reads it, nodes by key and in file order.

    producers    as in `Edges`; empty for inputs and initializers
    initializer  where it belongs, if it is stored in the file
    """

    name: str
    producers: Mapping[str, Attribution]
    initializer: Attribution | None
    consumers: Mapping[str, Attribution]
    is_input: bool
    is_output: bool

    @property
    def producer(self) -> Attribution | None:
        """Of the node that makes it, or of the initializer. None for an input, or if several nodes run its function."""
        if self.initializer is not None:
            return self.initializer
        return next(iter(self.producers.values())) if len(self.producers) == 1 else None

    @property
    def consuming_modules(self) -> tuple[ModuleCall, ...]:
        return tuple(dict.fromkeys(owner for attribution in self.consumers.values() for owner in attribution.owners))


@dataclass(frozen=True, slots=True)
class Boundary:
    """Names of the tensors between a module and the rest of the graph, in file order.

    enters  read inside, made outside; the module's own weights are not among them
    leaves  made inside, read outside or returned by the model
    """

    module: str
    enters: tuple[str, ...]
    leaves: tuple[str, ...]


def find_boundary(module: str, edges: Edges, inside: Collection[str], own: Collection[str]) -> Boundary:
    """From the keys of the nodes inside, and the initializers that belong there."""
    enters, leaves = [], []
    for value in edges.values:
        makers, readers = edges.producers.get(value, ()), edges.consumers.get(value, ())
        read_outside = any(key not in inside for key in readers)
        if any(key in inside for key in makers):
            if read_outside or value in edges.outputs:
                leaves.append(value)
        # A stored value that nothing else reads is the module's, whoever it is credited to.
        elif (
            any(key in inside for key in readers)
            and value not in own
            and (read_outside or value not in edges.initializers)
        ):
            enters.append(value)
    return Boundary(module, tuple(enters), tuple(leaves))


SCHEMA_VERSION = 1


@dataclass(frozen=True, slots=True)
class NodeEntry:
    """One ONNX node: its key (graph and first output), its name and operator, and where it comes from."""

    key: str
    name: str
    op_type: str
    attribution: Attribution


FROM_FILE = "file"


@dataclass(frozen=True, slots=True)
class Origin:
    """How a record came to be.

    strategy  FROM_FILE if no model was run, and everything was read from the file itself
    exporter  who exported the file; of a record that was read from the file, what it was read from
    graph     the fingerprint of the graph that it was made for
    sizes     of axes that the file leaves open and the model does not, by input: {"past_key_values.0.key": {3: 16}}
    """

    strategy: str
    exporter: str
    graph: str = ""
    model: str = ""
    tools: Mapping[str, str] = field(default_factory=dict)
    sizes: Mapping[str, Mapping[int, int]] = field(default_factory=dict)

    @property
    def is_file(self) -> bool:
        return self.strategy == FROM_FILE

    @property
    def source_text(self) -> str:
        """`modules are read from TorchScript node names`, of a record that was read from the file itself."""
        return f"modules are read from {self.exporter}" if self.exporter else "nothing in it tells of modules"


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

    @property
    def owning_paths(self) -> set[str]:
        """Paths of the modules that own a node or an initializer."""
        attributions = (*(entry.attribution for entry in self.nodes.values()), *self.initializers.values())
        return {owner.path for attribution in attributions for owner in attribution.owners}

    def entry(self, name_or_key: str) -> NodeEntry:
        # Keys first: they are unique, while a tool may have given two nodes one name.
        entry = self.nodes.get(name_or_key) or self._by_name.get(name_or_key)
        if entry is None:
            raise UnknownName("node", name_or_key, [entry.name or entry.key for entry in self.nodes.values()])
        return entry

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
        return lambda attribution: any(map(inside, attribution.owners))

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
    return not above or path == above or path.startswith(f"{above}.")
