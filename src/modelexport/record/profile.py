"""Where the time of a model goes, module by module."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from modelexport.record.hierarchy import ModuleCall


@dataclass(frozen=True, slots=True)
class RawEvent:
    """A kernel's event as it was written. Times are microseconds."""

    name: str
    op_type: str
    provider: str
    start: float
    duration: float


@dataclass(frozen=True, slots=True)
class Span:
    """One run of the whole model."""

    start: float
    duration: float

    @property
    def end(self) -> float:
        return self.start + self.duration


@dataclass(frozen=True, slots=True)
class KernelEvent:
    """One run of one node.

    run     how many times the model had run before
    start   microseconds since the first run began
    inside  of the duration, what nodes inside of this one took: those of the branch of an If, for instance
    """

    key: str
    run: int
    start: float
    duration: float
    inside: float = 0.0

    @property
    def own(self) -> float:
        return max(0.0, self.duration - self.inside)


@dataclass(frozen=True, slots=True)
class NodeTime:
    """One node of the graph that really ran.

    owners    the modules whose work it does
    time      microseconds in one run of the model: the median over all of them
    calls     how often it runs in one run of the model
    provider  who ran it, as in `CPUExecutionProvider`
    """

    key: str
    name: str
    op_type: str
    owners: tuple[ModuleCall, ...]
    time: float
    calls: float
    provider: str


@dataclass(frozen=True, slots=True)
class SharedTime:
    """Nodes that do the work of several modules at once; they are charged to none of them."""

    modules: tuple[str, ...]
    time: float
    nodes: int


@dataclass(frozen=True, slots=True)
class ModuleTime:
    """One module, or several calls of it together. Times are microseconds in one run of the model.

    path       `None` for what belongs to no module
    time       of everything inside of it
    own        of nodes that belong to none of the modules inside of it, shared ones among them
    spread     how far half of the runs are apart, as a share of the time
    calls      how often a node of it was run
    operators  time by operator
    providers  time by provider
    shared     nodes of its own that modules inside of it have in common
    """

    path: str | None
    class_name: str
    time: float
    own: float
    spread: float
    nodes: int
    calls: float
    operators: Mapping[str, float]
    providers: Mapping[str, float]
    shared: tuple[SharedTime, ...] = ()


@dataclass(frozen=True)
class Profile:
    """The time of one file.

    runs       that were counted; those before, to warm up, were not
    time       of all kernels in one run: the sum over nodes of their medians
    wall       of one run from outside, the median
    spread     how far half of the runs are apart, as a share of the median
    modules    in the order of the hierarchy; what belongs to nobody comes last
    events     every run of every node
    """

    file: str
    runs: int
    warmup: int
    optimization: str
    providers: tuple[str, ...]
    time: float
    wall: float
    spread: float
    nodes: tuple[NodeTime, ...]
    modules: tuple[ModuleTime, ...]
    events: tuple[KernelEvent, ...] = ()
    notes: tuple[str, ...] = ()
    seconds: Mapping[str, float] = field(default_factory=dict, compare=False)

    @property
    def attributed(self) -> float:
        """The share of the time that belongs to a module."""
        return sum(node.time for node in self.nodes if node.owners) / self.time if self.time else 1.0
