"""Folding plan: which module calls become calls of which functions, from the innermost modules out.

    Linear ×4, Attention ×2, Layer ×2     →     Layer calls Attention calls Linear

Only a convex region can be one call: no path may leave it and come back. If one does, the region is divided. Nodes are
counted by how often a path from the region has left it and come back before them, or will do so after them. Nodes of
one count have no such path among them, and the largest such part is taken.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import chain
from typing import TypeAlias

from modelexport.graph.index import MAIN, node_key
from modelexport.record.hierarchy import ModuleCall
from modelexport.record.provenance import Provenance
from modelexport.record.results.files import ALONE, INTERLEAVED, SMALL, UNREAD
from modelexport.transform.fold.patterns import FoldRegion, FunctionPattern, RegionPatterns, Row, find_subpattern
from modelexport.transform.fold.working_graph import FoldNode, WorkingGraph


@dataclass(eq=False)
class CallBranch:
    """A call of a module: the nodes that it issued itself, and the calls that it made.

    height  0 if it made no calls that have nodes
    """

    call: ModuleCall
    own: list[int] = field(default_factory=list)
    below: list[CallBranch] = field(default_factory=list)
    height: int = 0


def list_levels(fold_nodes: Sequence[FoldNode], provenance: Provenance) -> Iterator[list[CallBranch]]:
    """All calls with nodes but the outermost, those that made none first; a call comes after all that it made."""
    branches = _build_branches(fold_nodes, provenance)
    # Whoever made a call comes before it. A record of a stranger may say something else of how deep calls are.
    for branch in reversed(branches.values()):
        branch.height = 1 + max((below.height for below in branch.below), default=-1)
    inner = {below.call for branch in branches.values() for below in branch.below}
    levels: dict[int, list[CallBranch]] = {}
    for call, branch in branches.items():
        if call in inner:
            levels.setdefault(branch.height, []).append(branch)
    yield from (levels[height] for height in sorted(levels))


def _build_branches(fold_nodes: Sequence[FoldNode], provenance: Provenance) -> dict[ModuleCall, CallBranch]:
    branches: dict[ModuleCall, CallBranch] = {}
    for number, fold_node in enumerate(fold_nodes):
        # What several calls share goes by the innermost call around all of them.
        call = provenance.recorded(node_key(fold_node.proto, MAIN)).ancestor
        if call is None or fold_node.large:
            continue
        above: CallBranch | None = None
        for outer in provenance.hierarchy.stack(call):
            if outer not in branches:
                branches[outer] = CallBranch(outer)
                if above is not None:
                    above.below.append(branches[outer])
            above = branches[outer]
        branches[call].own.append(number)
    return branches


def find_convex_part(working: WorkingGraph, members: Collection[int]) -> list[int]:
    """The largest part found that can be one call; all of them if they can.

    a ─► x ─► b,  a ─► c        a, b, c: inside; x: not       entered: a 0, c 0, b 1       part: a, c
    """
    window = working.window(members)
    inside = set(members)
    if len(window) == len(inside):  # nothing lies between them, so no path can leave and come back
        return window
    entered = _count_entries(working, window, inside)
    if not any(entered[item] for item in inside):
        return [item for item in window if item in inside]
    left = _count_exits(working, window, inside)
    parts: dict[tuple[int, int], list[int]] = {}
    for item in window:
        if item in inside:
            parts.setdefault((0, left[item]), []).append(item)
            parts.setdefault((1, entered[item]), []).append(item)
    return max(parts.values(), key=lambda part: sum(working.weight[item] for item in part))


def is_convex(working: WorkingGraph, members: Collection[int]) -> bool:
    return len(find_convex_part(working, members)) == len(set(members))


def _count_entries(working: WorkingGraph, window: Sequence[int], inside: Collection[int]) -> dict[int, int]:
    """How often a way from the region has come back to it at an item; items that no way leads to are left out."""
    entries: dict[int, int] = {}
    for item in window:
        here = item in inside
        known = working.before(item) & entries.keys()
        if here or known:
            entries[item] = max((entries[before] + (here and before not in inside) for before in known), default=0)
    return entries


def _count_exits(working: WorkingGraph, window: Sequence[int], inside: Collection[int]) -> dict[int, int]:
    """How often a way will leave the region and come back to it after an item."""
    exits: dict[int, int] = {}
    for item in reversed(window):
        here = item in inside
        if here:
            exits.setdefault(item, 0)
        if item in exits:
            for before in working.before(item):
                count = exits[item] + (before in inside and not here)
                exits[before] = max(exits.get(before, 0), count)
    return exits


_Body: TypeAlias = tuple[str, str, tuple[Row, ...], tuple[int, ...]]

# Bodies of a class that another one is held against; a class with more of them has nothing that all have in common.
_MOST_TRIED = 8


@dataclass(frozen=True, eq=False)
class FoldingPlan:
    """What a graph becomes.

    items      what the main graph consists of afterwards, in order: nodes, and calls in `regions.called`
    functions  in the order in which they were made: each after those that it calls
    outside    nodes of a folded module that stay out of its function, by class
    unfolded   calls that did not become one, by class, with the reasons
    """

    items: tuple[int, ...]
    functions: tuple[FunctionPattern, ...]
    regions: RegionPatterns
    outside: dict[str, int]
    unfolded: dict[str, dict[str, int]]


def plan_folding(
    fold_nodes: Sequence[FoldNode], kept: Iterable[str], provenance: Provenance, classes: Collection[str] = ()
) -> FoldingPlan:
    """`classes`: those that are folded, also if they are called once; without any, all that repeat."""
    levels = list(list_levels(fold_nodes, provenance))
    modules = provenance.hierarchy.modules
    paths = (branch.call.path for level in levels for branch in level)
    counts = Counter(modules[path].class_name for path in paths if path in modules)
    wanted = frozenset(classes) or frozenset(name for name, count in counts.items() if count > 1)
    # A call in the place of a single node is no gain, unless somebody asks for it.
    planner = _Planner(WorkingGraph(fold_nodes, kept), provenance, wanted, smallest=1 if classes else 2)
    for level in levels:
        planner.fold(level)
    functions = tuple(function for function in planner.functions.values() if function.calls)
    items = tuple(planner.working.items())
    return FoldingPlan(items, functions, planner.regions, planner.outside, planner.unfolded)


def list_hidden_values(plan: FoldingPlan) -> Iterator[str]:
    regions = plan.regions
    for item in plan.items:
        if item in regions.called:
            shown = set(regions.makes(item))
            made = regions.fold_nodes(regions.called[item])
            yield from (name for fold_node in made for name in fold_node.makes if name and name not in shown)


@dataclass(eq=False)
class _Candidate:
    """A module call that may become a call of a function.

    members  all items of the module
    region   those of them that can be one call
    """

    branch: CallBranch
    class_name: str
    package: str
    members: list[int]
    region: FoldRegion

    @property
    def body(self) -> _Body:
        return self.class_name, self.package, self.region.rows, self.region.contents


@dataclass(eq=False)
class _Planner:
    """
    pending   by the id of a branch: its items, until the call around takes them over
    smallest  items that a region must have
    """

    working: WorkingGraph
    provenance: Provenance
    classes: frozenset[str]
    smallest: int
    functions: dict[_Body, FunctionPattern] = field(default_factory=dict)
    pending: dict[int, list[int]] = field(default_factory=dict)
    outside: dict[str, int] = field(default_factory=dict)
    unfolded: dict[str, dict[str, int]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.regions = RegionPatterns(self.working)

    def fold(self, level: list[CallBranch]) -> None:
        """Make calls of the modules of one level, wherever they do the same."""
        groups: dict[tuple[str, str, tuple[Row, ...]], list[_Candidate]] = {}
        for branch in level:
            candidate = self._candidate(branch)
            if candidate is not None:
                key = (candidate.class_name, candidate.package, candidate.region.rows)
                groups.setdefault(key, []).append(candidate)
        for group in groups.values():
            self._lift_differing_constants(group)
        bodies: dict[_Body, list[_Candidate]] = {}
        for candidate in chain.from_iterable(groups.values()):
            bodies.setdefault(candidate.body, []).append(candidate)
        # The smallest first: a larger one may then call it.
        for candidates in sorted(bodies.values(), key=lambda group: len(group[0].region.items)):
            self._find_shared_body(candidates)
            self._make_calls(candidates)

    def _candidate(self, branch: CallBranch) -> _Candidate | None:
        members = [*branch.own, *(item for below in branch.below for item in self.pending.pop(id(below)))]
        self.pending[id(branch)] = members
        module = self.provenance.hierarchy.modules.get(branch.call.path)
        if module is None:
            return None
        part = self._part(members) if module.class_name in self.classes else []
        reason = self._reason(module.class_name, members, part)
        if reason:
            self._refuse(module.class_name, reason)
            return None
        region = self.regions.build_region(branch.call, part)
        return _Candidate(branch, module.class_name, module.package, members, region)

    def _reason(self, class_name: str, members: Sequence[int], part: Sequence[int]) -> str:
        """Why a module cannot, or need not, become a call; empty if it can."""
        if class_name not in self.classes:
            return ALONE
        weight = self.working.weight
        # A function with less than half of the nodes would bear the name of a module that it does not do the work of.
        if sum(weight[item] for item in part) * 2 < sum(weight[item] for item in members):
            return INTERLEAVED
        return SMALL if len(part) < self.smallest else ""

    def _refuse(self, class_name: str, reason: str, times: int = 1) -> None:
        reasons = self.unfolded.setdefault(class_name, {})
        reasons[reason] = reasons.get(reason, 0) + times

    def _part(self, members: Sequence[int]) -> list[int]:
        """What of a module can be one call. Constants that others read as well stay out of it."""
        part = self._without_shared(members)
        convex = find_convex_part(self.working, part) if part else []
        # What was divided has more outside than before, and so more constants that others read.
        return convex if len(convex) == len(part) else self._without_shared(convex)

    def _without_shared(self, members: Sequence[int]) -> list[int]:
        inside = set(members)
        outputs = {item: self.regions.makes(item) for item in members if self.working.is_source(item)}
        is_read = self.working.is_read_outside
        shared = {item for item, names in outputs.items() if any(is_read(name, inside) for name in filter(None, names))}
        return [item for item in members if item not in shared]

    def _lift_differing_constants(self, group: list[_Candidate]) -> None:
        """Constants that are not the same in all calls are given to them."""
        columns = zip(*(candidate.region.contents for candidate in group), strict=True)
        differing = {index for index, column in enumerate(columns) if len(set(column)) > 1}
        for candidate in group if differing else ():
            region = candidate.region
            left = [item for index, item in enumerate(region.items) if index not in differing]
            candidate.region = self.regions.build_region(region.call, left)

    def _find_shared_body(self, candidates: list[_Candidate]) -> None:
        """Where another function of the class does most of what these do, they call it."""
        first = candidates[0]
        if first.body in self.functions:
            return
        called = [function for function in self.functions.values() if function.calls]
        same_class = [function for function in called if function.class_name == first.class_name]
        for function in sorted(same_class, key=lambda pattern: -len(pattern.calls[0].items))[:_MOST_TRIED]:
            core = find_subpattern(function.calls[0], first.region)
            if core is not None:
                for candidate in candidates:
                    self._call_shared_body(function, candidate, core)
                return

    def _call_shared_body(self, function: FunctionPattern, candidate: _Candidate, core: list[int]) -> None:
        region, pattern = candidate.region, function.calls[0]
        inside = self.regions.build_region(region.call, [region.items[number] for number in core])
        # The match went by results alone; formals may still be in another order.
        if (inside.rows, inside.contents) != (pattern.rows, pattern.contents):
            return
        if is_convex(self.working, inside.items):
            self._add_outputs(function, [inside])
            call = self._contract(function, inside)
            gone = set(inside.items)
            candidate.members = [call, *(item for item in candidate.members if item not in gone)]
            self.pending[id(candidate.branch)] = candidate.members
            left = [item for item in region.items if item not in gone]
            candidate.region = self.regions.build_region(region.call, [*left, call])

    def _make_calls(self, candidates: list[_Candidate]) -> None:
        bodies: dict[_Body, list[_Candidate]] = {}
        for candidate in candidates:
            bodies.setdefault(candidate.body, []).append(candidate)
        for body, alike in bodies.items():
            name, regions = body[0], [candidate.region for candidate in alike]
            # A call of it would have no output, and nobody to read it.
            if body not in self.functions and not any(region.results for region in regions):
                self._refuse(name, UNREAD, len(alike))
                continue
            function = self.functions.setdefault(body, FunctionPattern(len(self.functions), name))
            self._add_outputs(function, regions)
            for candidate in alike:
                self._make_call(function, candidate)

    def _add_outputs(self, function: FunctionPattern, regions: Iterable[FoldRegion]) -> None:
        read = {region.values[value] for region in regions for value in region.results}
        function.outputs += sorted(read.difference(function.outputs))

    def _make_call(self, function: FunctionPattern, candidate: _Candidate) -> None:
        region = candidate.region
        if not is_convex(self.working, region.items):  # others became calls since it was looked at
            self._refuse(function.class_name, INTERLEAVED)
            return
        call = self._contract(function, region)
        inside = set(region.items)
        left = [item for item in candidate.members if item not in inside]
        self.pending[id(candidate.branch)] = [call, *left]
        if left:
            weight = sum(self.working.weight[item] for item in left)
            self.outside[function.class_name] = self.outside.get(function.class_name, 0) + weight

    def _contract(self, function: FunctionPattern, region: FoldRegion) -> int:
        """Make a region a call; returns the item that it is from now on."""
        region.function = function
        function.calls.append(region)
        item = self.working.contract(region.items, region.formals)
        self.regions.called[item] = region
        return item
