"""Profile result: where the time of a model goes, module by module, and the run-time overlay that is read back from it.

One statistic for all: the median over the runs of each node, in microseconds. The time of a module and that of the
whole model are sums of these, so that parts add up, and a run in which something else kept the machine busy counts in
none of them. The median of sums would not do: of many kernels, some are disturbed in every run.

    run           1    2    3   median
    a            10   90   10       10
    b            10   10   90       10
    a + b        20  100  100      100, and 20 = 10 + 10 is what a run takes that nothing disturbs

What modules are charged with over all runs is held against the time of all kernels (`SumCheck`), so that nothing is
lost or charged twice.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field

from modelexport.record.hierarchy import ModuleCall

# Fewer runs say nothing about how far they are apart.
RUNS_FOR_SPREAD = 5
# A module whose runs are further apart than this share of its time is noisy.
NOISY = 0.2
# Above this `Profile.noise`, modules are not ranked. Of MiniLM on a machine that does nothing else it is 0.01 to 0.03.
TOO_NOISY = 0.1


@dataclass(frozen=True, slots=True)
class RawEvent:
    """A kernel's event as it was written. Times are microseconds.

    name    that of its node; the operator and `index` if it has none
    index   the number of its node in the graph that holds it
    bodies  for a node with bodies: the events of each time that one of them ran
    """

    name: str
    op_type: str
    index: int
    provider: str
    start: float
    duration: float
    bodies: tuple[tuple[RawEvent, ...], ...] = ()


@dataclass(frozen=True, slots=True)
class RawRun:
    """One run of the whole model; `busy`: microseconds in which some kernel ran, from the times of events alone."""

    start: float
    duration: float
    busy: float
    events: tuple[RawEvent, ...]


@dataclass(frozen=True, slots=True)
class KernelEvent:
    """One run of one node.

    keys      the node; several if the profile does not tell them apart
    run       how many times the model had run before
    start     microseconds since the first run began
    inside    of the duration, what nodes inside of this one took: those of the branch of an If, for instance
    depth     how many bodies it is in
    repeated  whether one of them may run several times: that of a Loop, for instance
    """

    keys: tuple[str, ...]
    run: int
    start: float
    duration: float
    inside: float = 0.0
    depth: int = 0
    repeated: bool = False
    provider: str = ""

    @property
    def own(self) -> float:
        return max(0.0, self.duration - self.inside)


@dataclass(frozen=True, slots=True)
class NodeTime:
    """One node of the graph that really ran.

    others    keys of nodes that it may have been just as well: the profile does not tell them apart
    owners    the modules whose work it does, or may have done
    default   whether it is the module's by default alone: nothing is known of it
    module    the path of the module that its time is charged to: the one around all owners
    time      microseconds in one run of the model: the median over all of them
    kernels   how often it runs in one run of the model
    provider  who ran it, as in `CPUExecutionProvider`
    """

    key: str
    name: str
    op_type: str
    owners: tuple[ModuleCall, ...]
    module: str | None
    time: float
    kernels: float
    provider: str
    others: tuple[str, ...] = ()
    default: bool = False

    @property
    def keys(self) -> tuple[str, ...]:
        return (self.key, *self.others)

    @property
    def sharers(self) -> tuple[str, ...]:
        """The modules that have it in common; empty if it is of one module alone."""
        paths = tuple(dict.fromkeys(owner.path for owner in self.owners))
        return paths if len(paths) > 1 else ()


@dataclass(frozen=True, slots=True)
class SharedTime:
    """Nodes that are charged to none of several modules, but to the one around them.

    unclear  they did the work of one of the modules, and the profile does not say of which; else of all at once
    """

    modules: tuple[str, ...]
    time: float
    nodes: int
    unclear: bool = False


@dataclass(frozen=True, slots=True)
class ModuleTime:
    """One module, or several calls of it together. Times are microseconds in one run of the model.

    path       `None` for what belongs to no module
    time       of everything inside of it: the sum of the medians of its nodes
    own        of nodes that belong to none of the modules inside of it, shared ones among them
    spread     how far half of the runs are apart, as a share of `time`; None if they are too few to say
    charged    `own`, added up over all runs instead
    kernels    how often a node inside of it was run
    shared     nodes of its own that modules inside of it have in common
    alike      the modules next to it in time, under the same one, if they differ by less than the runs do
    """

    path: str | None
    class_name: str
    time: float
    own: float
    spread: float | None
    charged: float
    nodes: int
    calls: float
    kernels: float
    operators: Mapping[str, float]
    providers: Mapping[str, float]
    shared: tuple[SharedTime, ...] = ()
    alike: tuple[str, ...] = ()

    @property
    def noisy(self) -> bool:
        """Whether its time is not to be relied on: the runs are far apart, or too few."""
        return self.spread is None or self.spread > NOISY


@dataclass(frozen=True, slots=True)
class SumCheck:
    """Whether the parts add up to the whole, in microseconds over all runs that count.

    trace    in which some kernel ran, from the times of ONNX Runtime's events alone
    charged  what the modules are charged with
    """

    trace: float
    charged: float

    @property
    def holds(self) -> bool:
        return math.isclose(self.trace, self.charged, rel_tol=1e-6, abs_tol=1e-3)


@dataclass(frozen=True)
class Profile:
    """
    runs       that were counted; those before, to warm up, were not
    requested  providers that were asked for, the preferred one first; none if it was left to ONNX Runtime
    time       of all kernels in one run: the sum over nodes of their medians
    busy       in which some kernel ran, run by run: the median, disturbances included
    wall       of one run from outside, the median
    spread     how far half of the runs are apart, as a share of `wall`; None if they are too few to say
    noise      of the time, the share whose module the runs leave open: the standard errors of all modules added up;
               None if they are too few to say
    modules    in the order of the hierarchy; what belongs to nobody comes last
    """

    file: str
    runs: int
    warmup: int
    optimization: str
    providers: tuple[str, ...]
    requested: tuple[str, ...]
    time: float
    busy: float
    wall: float
    spread: float | None
    noise: float | None
    check: SumCheck
    nodes: tuple[NodeTime, ...]
    modules: tuple[ModuleTime, ...]
    events: tuple[KernelEvent, ...] = ()
    notes: tuple[str, ...] = ()
    seconds: Mapping[str, float] = field(default_factory=dict, compare=False)

    @property
    def attributed(self) -> float:
        """The share of the time that belongs to a module, by evidence: a default covers nothing."""
        known = (node.time for node in self.nodes if node.owners and not node.default)
        return sum(known) / self.time if self.time else 1.0

    @property
    def disturbed(self) -> bool:
        """Whether most runs have kernels that took much longer than usual, other ones each time."""
        return self.busy > self.time * (1 + NOISY)

    @property
    def rankable(self) -> bool:
        """Whether the runs agree well enough to say which module takes longer."""
        return self.noise is not None and self.noise <= TOO_NOISY and not self.disturbed

    def fallback(self, module: ModuleTime) -> float:
        """Of the module's time, what another provider than the preferred one took."""
        return sum(time for name, time in module.providers.items() if self.requested and name != self.requested[0])
