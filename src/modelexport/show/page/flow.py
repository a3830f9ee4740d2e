"""Dataflow of a module call: the boxes inside of it, and the values that pass between them; few enough to be read.

A value that one node makes and another reads is seen by every call around either of them. In the innermost call around
both it is an edge; it leaves the calls that are around the first alone, and enters those around the second:

    encoder ┌ layer.0 ┌ MatMul ──► a ┐         in layer.0: MatMul ──► (a leaves)
            └ layer.1 └ Add    ◄── a ┘         in encoder: layer.0 ──► layer.1

Constants and arithmetic with shapes are not drawn unless there is nothing else. If that is not enough, nodes of the
module itself that merely follow each other become one box; then those that are connected and about as deep, in as many
steps as there is room for; then all of its nodes between the same modules; then modules in the middle of a long row.

A part that very many others read, such as a mask, would hide everything else behind its lines. Those that lead far on
are left out, if what they lead to still has another one.

    before                                          after
    Shape ─► Gather ─► Concat ─► Reshape            not drawn (shapes), unless the module has nothing else
    MatMul ─► Add ─► Erf ─► Mul                     beyond 60 boxes, one: "MatMul, Add, Erf, +1 more"
    layer.0 ─► layer.1 ─► … ─► layer.79             layer.0 … layer.15, one box, layer.64 … layer.79
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import pairwise, product
from typing import NamedTuple

from modelexport.graph.algorithms import UnionFind
from modelexport.record.hierarchy import ModuleCall, common_prefix
from modelexport.record.provenance import Edges, Provenance
from modelexport.show.page.layout import flow_order


@dataclass(frozen=True, slots=True)
class Inner:
    """A call made inside of the one that is shown."""

    call: ModuleCall


@dataclass(frozen=True, slots=True)
class Own:
    """A node of the call itself, by key."""

    key: str


@dataclass(frozen=True, slots=True)
class Entering:
    """A value that was made elsewhere."""

    value: str


@dataclass(frozen=True, slots=True)
class Leaving:
    """A value that is read elsewhere."""

    value: str


Box = Inner | Own | Entering | Leaving


@dataclass
class CallFlow:
    """Boxes in the order in which their first nodes stand in the file; edges with the values that they carry."""

    boxes: dict[Box, None] = field(default_factory=dict)
    edges: dict[tuple[Box, Box], list[str]] = field(default_factory=dict)

    def connect(self, source: Box, target: Box, value: str) -> None:
        """A value that several nodes of a box read is carried once; readers of one value come one after another."""
        if source != target:
            carried = self.edges.setdefault((source, target), [])
            if value not in carried[-1:]:
                carried.append(value)

    @property
    def enters(self) -> list[str]:
        return list(dict.fromkeys(box.value for box, _ in self.edges if isinstance(box, Entering)))

    @property
    def leaves(self) -> list[str]:
        return list(dict.fromkeys(box.value for _, box in self.edges if isinstance(box, Leaving)))


Flows = Mapping[ModuleCall, CallFlow]


def flows_of(provenance: Provenance, edges: Edges) -> Flows:
    """One for each call that has a node inside of it."""
    return _Flows(provenance, edges).by_call


class _Flows:
    """Each value is passed once to all calls that see it; stacks of calls are worked out once per call."""

    def __init__(self, provenance: Provenance, edges: Edges) -> None:
        self._provenance = provenance
        self._stacks: dict[ModuleCall, tuple[_Seen, ...]] = {}
        self.by_call: dict[ModuleCall, CallFlow] = {}
        for key in provenance.nodes:
            for call, box in self._boxes(key):
                self.by_call.setdefault(call, CallFlow()).boxes[box] = None
        # Weights are listed with their module; as boxes they would be more than half of every drawing.
        returned = frozenset(edges.outputs)
        for value in (value for value in edges.values if value not in edges.initializers):
            makers, readers = edges.producers.get(value, ()), edges.consumers.get(value, ())
            for maker, reader in product(makers, readers):
                self._pass(value, maker, reader)
            for maker in makers if value in returned else ():
                self._leave(value, self._boxes(maker))
            for reader in () if makers else readers:
                self._enter(value, self._boxes(reader))

    def _pass(self, value: str, maker: str, reader: str) -> None:
        """`shared`: how many calls both nodes are in. The innermost of these draws the edge."""
        before, after = self._boxes(maker), self._boxes(reader)
        shared = len(common_prefix([seen.call for seen in boxes] for boxes in (before, after)))
        if shared:
            # Up to here both lie in the same calls: the innermost of these sees two boxes, the others one.
            call = before[shared - 1].call
            self.by_call[call].connect(before[shared - 1].box, after[shared - 1].box, value)
        self._leave(value, before[shared:])
        self._enter(value, after[shared:])

    def _leave(self, value: str, seen: Sequence[_Seen]) -> None:
        for call, box in seen:
            self.by_call[call].connect(box, Leaving(value), value)

    def _enter(self, value: str, seen: Sequence[_Seen]) -> None:
        for call, box in seen:
            self.by_call[call].connect(Entering(value), box, value)

    def _boxes(self, key: str) -> tuple[_Seen, ...]:
        call = self._provenance.nodes[key].attribution.ancestor
        if call is None:
            return ()
        if call not in self._stacks:
            pairs = pairwise(self._provenance.hierarchy.stack(call))
            self._stacks[call] = tuple(_Seen(outer, Inner(inner)) for outer, inner in pairs)
        return (*self._stacks[call], _Seen(call, Own(key)))


class _Seen(NamedTuple):
    """A call, and the box that it sees of a node: the node itself, or the call inside that holds it."""

    call: ModuleCall
    box: Box


MOST_BOXES = 60
# Of a long row, so many are drawn at either end. Inputs and outputs are many where a module hands on caches.
_ENDS = 16
_MOST_ENTERING = 12  # and as many that leave
# Of a box that more lines leave, so many are drawn.
_MOST_LEAVING = 6
_NEAR = 3  # those that lead to what comes first
# Into how many steps the depth of a flow is divided, the most that can be drawn being taken.
_BANDS = (40, 30, 24, 20, 16, 12, 8, 6, 4, 3, 2)

Group = tuple[Box, ...]


@dataclass(frozen=True)
class DrawnEdge:
    source: int
    target: int
    values: tuple[str, ...]


@dataclass(frozen=True)
class DrawnFlow:
    """What is drawn of a flow: groups of boxes, most of them one box.

    cut     edges that are not drawn, because very many leave the same box
    hidden  how many nodes are left out, because what the model is fed does not flow through them
    folded  whether boxes were put together because there are too many of them
    """

    groups: tuple[Group, ...]
    edges: tuple[DrawnEdge, ...]
    cut: tuple[DrawnEdge, ...] = ()
    hidden: int = 0
    folded: bool = False


def draw_flow(flow: CallFlow, unmoved: Collection[str], *, own_nodes: bool = True) -> DrawnFlow:
    """`unmoved` are the values that are left out. Without `own_nodes` nodes of the module itself are put together."""
    shown, hidden = _without(flow, unmoved)
    steps: list[Callable[[_Shown], Mapping[Box, int]]] = [_by_chain, _by_band, _by_stage, _by_row]
    drawn = _quotient(shown, {box: index for index, box in enumerate(shown.boxes)})
    for step in steps if own_nodes else steps[2:]:
        if own_nodes and len(drawn.groups) <= MOST_BOXES:
            break
        own_nodes = True  # one step is taken in any case; further ones only if there are still too many
        drawn = _quotient(shown, step(shown))
    # The page then says that boxes stand for several nodes.
    folded = len(drawn.groups) < len(shown.boxes)
    cut = _cut(len(drawn.groups), drawn.edges)
    return DrawnFlow(drawn.groups, tuple(edge for edge in drawn.edges if edge not in cut), tuple(cut), hidden, folded)


def _cut(count: int, edges: Sequence[DrawnEdge]) -> Collection[DrawnEdge]:
    """Of the lines that leave a box which very many leave, those to what comes last."""
    order = flow_order(count, [(edge.source, edge.target) for edge in edges])
    leaving: dict[int, list[DrawnEdge]] = {}
    for edge in edges:
        leaving.setdefault(edge.source, []).append(edge)
    arriving = Counter(edge.target for edge in edges)
    cut: dict[DrawnEdge, None] = {}
    for fan in (fan for fan in leaving.values() if len(fan) > _MOST_LEAVING):
        for edge in sorted(fan, key=lambda edge: order[edge.target])[_NEAR:]:
            # A box that nothing led to would seem to be an input.
            if arriving[edge.target] > 1:
                arriving[edge.target] -= 1
                cut[edge] = None
    return cut.keys()


@dataclass(frozen=True)
class _Shown:
    """A flow without what is left out: its boxes in the order of the file, and the edges between them."""

    boxes: tuple[Box, ...]
    edges: Mapping[tuple[Box, Box], Sequence[str]]

    @cached_property
    def ordered(self) -> tuple[Box, ...]:
        """So that edges lead on. In a file, what belongs to a box may stand long before what it reads: constants do."""
        numbers = {box: number for number, box in enumerate(self.boxes)}
        order = flow_order(len(self.boxes), [(numbers[source], numbers[target]) for source, target in self.edges])
        return tuple(sorted(self.boxes, key=lambda box: order[numbers[box]]))

    def neighbours(self) -> tuple[Mapping[Box, list[Box]], Mapping[Box, list[Box]]]:
        before: dict[Box, list[Box]] = {box: [] for box in self.boxes}
        after: dict[Box, list[Box]] = {box: [] for box in self.boxes}
        for source, target in self.edges:
            before[target].append(source)
            after[source].append(target)
        return before, after


def _without(flow: CallFlow, unmoved: Collection[str]) -> tuple[_Shown, int]:
    """Of a flow in which nothing depends on the inputs, all is kept: it would be empty."""
    dropped: set[Box] = {box for box in flow.boxes if isinstance(box, Own) and box.key in unmoved}
    hidden = len(dropped)
    if hidden == len(flow.boxes):
        hidden, dropped = 0, set()
    else:
        ends = (box for pair in flow.edges for box in pair if isinstance(box, Entering | Leaving))
        dropped.update(box for box in ends if box.value in unmoved)
    edges = {pair: values for pair, values in flow.edges.items() if not dropped.intersection(pair)}
    entering = [box for box, _ in edges if isinstance(box, Entering)]
    leaving = [box for _, box in edges if isinstance(box, Leaving)]
    boxes = dict.fromkeys([*entering, *(box for box in flow.boxes if box not in dropped), *leaving])
    return _Shown(tuple(boxes), edges), hidden


def _by_chain(shown: _Shown) -> Mapping[Box, int]:
    """Nodes of the module itself of which the second reads only the first, and the first is read by it alone."""
    before, after = shown.neighbours()
    sets = UnionFind(shown.boxes)
    for source, target in shown.edges:
        both = isinstance(source, Own) and isinstance(target, Own)
        if both and len(after[source]) == 1 and len(before[target]) == 1:
            sets.join(source, target)
    return sets.numbers()


def _by_stage(shown: _Shown) -> Mapping[Box, int]:
    """Nodes of the module itself that are connected, with as many modules before them."""
    stages = _longest_ways(shown, Inner)
    sets = UnionFind(shown.boxes)
    for source, target in shown.edges:
        if isinstance(source, Own) and isinstance(target, Own) and stages[source] == stages[target]:
            sets.join(source, target)
    return sets.numbers()


def _by_band(shown: _Shown) -> Mapping[Box, int]:
    """Nodes of the module itself that are connected, with as many modules before them and in the same band of depth.

    Both grow along every edge, so that boxes made of them never lie on a cycle.
    """
    stages, depths = _longest_ways(shown, Inner), _longest_ways(shown, object)
    own = [pair for pair in shown.edges if isinstance(pair[0], Own) and isinstance(pair[1], Own)]
    beside = [(source, target) for source, target in own if stages[source] == stages[target]]
    deepest = max(depths.values(), default=0) + 1
    numbers: Mapping[Box, int] = {}
    for bands in _BANDS:
        sets = UnionFind(shown.boxes)
        for source, target in beside:
            if depths[source] * bands // deepest == depths[target] * bands // deepest:
                sets.join(source, target)
        numbers = sets.numbers()
        if len(set(numbers.values())) <= MOST_BOXES:
            break
    return numbers


def _longest_ways(shown: _Shown, counted: type[object]) -> Mapping[Box, int]:
    """How many boxes of a kind are on the longest way to each box: of all kinds its depth, of modules its stage."""
    before, _ = shown.neighbours()
    lengths: dict[Box, int] = {}
    for box in shown.ordered:
        # A source that is not there yet closes a cycle, which has no longest way.
        known = (lengths[source] + isinstance(source, counted) for source in before[box] if source in lengths)
        lengths[box] = max(known, default=0)
    return lengths


def _by_row(shown: _Shown) -> Mapping[Box, int]:
    """As by stage, with one box for the middle of everything that there is too much of."""
    stages, numbers = _longest_ways(shown, Inner), _by_stage(shown)
    sets = UnionFind(shown.boxes)
    middle = [box for box in shown.ordered if isinstance(box, Inner)][_ENDS:-_ENDS]
    sets.join_all(middle)
    depths = {stages[box] for box in middle}
    own = [box for box in shown.boxes if isinstance(box, Own)]
    # What lies between modules in the middle is in the middle too.
    sets.join_all([*middle[:1], *(box for box in own if stages[box] - 1 in depths and stages[box] in depths)])
    firsts: dict[int, Box] = {}
    for box in own:
        sets.join(firsts.setdefault(numbers[box], box), box)
    for kind in (Entering, Leaving):
        sets.join_all([box for box in shown.boxes if isinstance(box, kind)][_MOST_ENTERING:])
    joined = sets.numbers()
    order = {number: position for position, number in enumerate(dict.fromkeys(joined[box] for box in shown.boxes))}
    # If nothing else helped, the last groups are one.
    return {box: min(order[joined[box]], MOST_BOXES - 1) for box in shown.boxes}


def _quotient(shown: _Shown, numbers: Mapping[Box, int]) -> DrawnFlow:
    """The graph of groups: edges inside of a group vanish, those between two groups become one."""
    members: dict[int, list[Box]] = {}
    for box in shown.boxes:
        members.setdefault(numbers[box], []).append(box)
    positions = {number: position for position, number in enumerate(members)}
    carried: dict[tuple[int, int], dict[str, None]] = {}
    for (source, target), values in shown.edges.items():
        pair = positions[numbers[source]], positions[numbers[target]]
        if pair[0] != pair[1]:
            carried.setdefault(pair, {}).update(dict.fromkeys(values))
    edges = tuple(DrawnEdge(*pair, tuple(values)) for pair, values in carried.items())
    return DrawnFlow(tuple(map(tuple, members.values())), edges)
