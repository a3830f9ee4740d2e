"""What is different between two files: model, modules, nodes and weights, each where it belongs.

Names are no difference. Two files that compute the same by the same operators with the same weights have none, whatever
their values and nodes are called and in whatever order they are listed.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from enum import StrEnum

from modelexport.record.polynomial import Polynomial


class Change(StrEnum):
    """What became of a module, node or weight. REPLACED: other nodes do its work; CHANGED: in both, not the same."""

    ADDED = "added"
    REMOVED = "removed"
    REPLACED = "replaced"
    CHANGED = "changed"


class WeightForm(StrEnum):
    """How a weight is related to the one in its place.

    VALUES     the same shape and type, other numbers
    CAST       the same in another number format, as far as that goes
    QUANTIZED  as integers, with scales beside them
    TRANSPOSED the same numbers the other way round
    RESHAPED   the same numbers in another shape
    UNREAD     it differs, and nobody looked how much
    """

    VALUES = "values"
    SHAPE = "shape"
    CAST = "cast"
    QUANTIZED = "quantized"
    TRANSPOSED = "transposed"
    RESHAPED = "reshaped"
    UNREAD = "unread"
    ADDED = "added"
    REMOVED = "removed"


class Source(StrEnum):
    """Where the modules of a file's nodes are known from.

    RECORD  its own record, as far as it knows the nodes
    NODES   what is written on its nodes
    OTHER   the other file, along what both have in common
    FILE    what it says itself: metadata and names of other tools, or structure
    NONE    nobody knows modules: everything belongs to the model as a whole
    """

    RECORD = "record"
    NODES = "nodes"
    OTHER = "other file"
    FILE = "file"
    NONE = "none"


@dataclass(frozen=True, slots=True)
class Amount:
    """How many there are in the first file and in the second."""

    left: int
    right: int


@dataclass(frozen=True, slots=True)
class FieldChange:
    """One thing that can be said in a line: what it is, what it was, what it is now; empty where there was nothing.

    what  `attribute axis`, `output 0 shape`, `input 1`, `opset ai.onnx`, `metadata author`
    """

    what: str
    left: str
    right: str


@dataclass(frozen=True, slots=True)
class NodeRef:
    """A node of one of the files. Its operator carries the domain where that is not ONNX's own."""

    key: str
    name: str
    op_type: str


@dataclass(frozen=True, slots=True)
class NodeChange:
    """Nodes that belong together: no `left` if added, no `right` if removed; `fields` if it is one node, in both."""

    change: Change
    left: tuple[NodeRef, ...]
    right: tuple[NodeRef, ...]
    fields: tuple[FieldChange, ...] = ()


@dataclass(frozen=True, slots=True)
class WeightRef:
    """A stored tensor of one of the files. `parameter` is what the model calls it, where that is known."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    parameter: str = ""


@dataclass(frozen=True, slots=True)
class WeightChange:
    """A weight or other constant that is not the same in both files.

    largest   the largest difference between two numbers; None if they were not compared
    relative  the root of the mean squared difference, in terms of that of the numbers in the first file
    changed   how many of the numbers are different
    values    what a small constant holds in both files
    readers   keys of the nodes of the first file that read it (of the second, if it was added)
    """

    form: WeightForm
    left: WeightRef | None
    right: WeightRef | None
    largest: float | None = None
    relative: float | None = None
    changed: int | None = None
    values: FieldChange | None = None
    readers: tuple[str, ...] = ()

    @property
    def name(self) -> str:
        """What to call it: the name in the first file, if it is there."""
        weight = self.left or self.right
        return "" if weight is None else weight.parameter or weight.name


@dataclass(frozen=True, slots=True)
class CostChange:
    """What running a module and everything inside of it takes, before and after. Only what differs is there, by name:
    `flops`, `parameters`, `weight_bytes`, `activation_bytes`."""

    amounts: Mapping[str, tuple[Polynomial, Polynomial]]


@dataclass(frozen=True)
class ModuleChange:
    """One module call of the two files, or of one alone. What lies deeper has an entry of its own.

    left, right  what each file calls it (`encoder.layer.3`, `block#2`, empty for the model); None if it is not there
    classes      its class in each file; empty where that is not known
    nodes        how many nodes it has with everything inside of it; known of a module of one file alone
    parameters   how many numbers its weights have, of the same
    """

    change: Change
    left: str | None
    right: str | None
    classes: tuple[str, str] = ("", "")
    nodes: Amount = Amount(0, 0)
    parameters: int = 0
    changes: tuple[NodeChange, ...] = ()
    weights: tuple[WeightChange, ...] = ()
    cost: CostChange | None = None

    @property
    def path(self) -> str:
        """As the first file calls it, if it is there."""
        return (self.right or "") if self.left is None else self.left

    @property
    def class_changed(self) -> bool:
        return self.change is Change.CHANGED and all(self.classes) and self.classes[0] != self.classes[1]


@dataclass(frozen=True, slots=True)
class Renamed:
    """What has another name and is the same: no difference, but good to know. `what` is module, input or output."""

    what: str
    left: str
    right: str


@dataclass(frozen=True, slots=True)
class Side:
    """One of the files. `module` is the part of it that was looked at; empty for all."""

    path: str
    nodes: int
    weights: int
    source: Source
    exporter: str = ""
    module: str = ""


@dataclass(frozen=True)
class Diff:
    """
    model         what differs in the model as such: inputs and outputs, opsets, metadata
    modules       in the order of the first file; those that are in the second alone behind what comes before them there
    cost          of everything, where that differs
    renamed       what has another name alone; it does not count
    alike         the share of nodes of both files that are paired, whatever else is different about them
    same_weights  the share of weights of both files that hold exactly the same; 1 if there are none
    aligned       module calls of the first file, mapped to what they are in the second
    pairs         keys of nodes of the first file, mapped to that of the same node in the second
    left_nodes    keys of nodes of the first file that are not simply the same, and what became of them
    weights_read  whether the numbers of large weights were compared
    """

    left: Side
    right: Side
    model: tuple[FieldChange, ...] = ()
    modules: tuple[ModuleChange, ...] = ()
    cost: CostChange | None = None
    renamed: tuple[Renamed, ...] = ()
    alike: float = 1.0
    same_weights: float = 1.0
    weights_read: bool = True
    notes: tuple[str, ...] = ()
    aligned: Mapping[str, str] = field(default_factory=dict, repr=False)
    pairs: Mapping[str, str] = field(default_factory=dict, repr=False)
    left_nodes: Mapping[str, Change] = field(default_factory=dict, repr=False)
    right_nodes: Mapping[str, Change] = field(default_factory=dict, repr=False)

    @property
    def identical(self) -> bool:
        return not (self.model or self.modules)

    def node_changes(self) -> Iterator[tuple[ModuleChange, NodeChange]]:
        return ((module, change) for module in self.modules for change in module.changes)

    def weight_changes(self) -> Iterator[tuple[ModuleChange, WeightChange]]:
        return ((module, change) for module in self.modules for change in module.weights)

    @property
    def counts(self) -> Mapping[str, int]:
        """How much there is of what: modules and nodes by change, and weights."""
        # A module in which only nodes or weights changed counts by these.
        modules = [module for module in self.modules if module.change is not Change.CHANGED or module.class_changed]
        counts = Counter(f"modules {module.change}" for module in modules)
        counts.update(f"nodes {change.change}" for _, change in self.node_changes())
        counts.update("weights" for _ in self.weight_changes())
        return dict(counts)
