"""Module alignment: which module call of the one file is which of the other, and where every node belongs.

    encoder.layer.0  ↔  encoder.layer.0
    encoder.layer.1      removed: all of its nodes, and its weights, are gone
    encoder.layer.2  ↔  encoder.layer.1      renamed: its nodes are paired with these

Calls are aligned by the nodes that they share; name and class decide ties. A file without a record borrows the modules
of the other one, node by node. Costs and counts of modules that differ are added at the end.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from math import prod

import onnx

from modelexport.graph.index import Node
from modelexport.inspect.diff.changed_regions import ChangedRegion
from modelexport.inspect.diff.node_diff import NodePairs
from modelexport.inspect.diff.sides import DiffSide
from modelexport.record.hierarchy import ROOT, ModuleCall, common_prefix
from modelexport.record.lineage import Link
from modelexport.record.polynomial import Polynomial, sizes_sum
from modelexport.record.results.cost import NodeCost
from modelexport.record.results.diff import Amount, Change, CostChange, Diff, ModuleChange, Source

# What the same name, and the same class, add to the share of nodes that two modules have in common.
_SAME_NAME, _SAME_CLASS = 0.1, 0.05


@dataclass(frozen=True)
class ModuleAlignment:
    """
    left, right  by the key of a node: the call that it belongs to
    aligned      calls of the first file, mapped to calls of the second
    """

    sides: tuple[DiffSide, DiffSide]
    left: Mapping[str, str]
    right: Mapping[str, str]
    aligned: Mapping[str, str]

    @cached_property
    def reversed(self) -> Mapping[str, str]:
        return {other: call for call, other in self.aligned.items()}

    @cached_property
    def homes(self) -> tuple[Mapping[str, str], Mapping[str, str]]:
        """By key: a word for where a node belongs, the same in both files for the same module."""
        right = {key: self.label(None, call) for key, call in self.right.items()}
        return {key: self.label(call, None) for key, call in self.left.items()}, right

    def label(self, call: str | None, other: str | None) -> str:
        """The call in the first file, if there is one."""
        call = self.reversed.get(other or "") if call is None else call
        return f"right {other}" if call is None else call

    def stack(self, side: int, call: str) -> tuple[str, ...]:
        return self._speaker(side).stack(call)

    def class_of(self, side: int, call: str) -> str:
        return self._speaker(side).class_of(call)

    def _speaker(self, side: int) -> DiffSide:
        """Who knows the modules of a file: the other one, if that has lent them."""
        own = self.sides[side]
        return self.sides[1 - side] if own.source is Source.OTHER else own

    def node_count(self, side: int, call: str | None = None) -> int:
        """How many nodes there are in a call and inside of it, Constants included; of all that is compared, if None.

        Without functions and Constants that others read, it is what `analyze` says of the module.
        """
        compared, calls = self.sides[side], self.left if side == 0 else self.right
        if call is None and not compared.module:
            return len(compared.graph.nodes)
        stacks = (self.stack(side, calls.get(node.key, ROOT)) for node in compared.graph.nodes)
        return sum(
            any(compared.is_part(around) if call is None else around == call for around in stack) for stack in stacks
        )

    def parameter_count(self, side: int, call: str, nodes: Iterable[Node], *, recorded: bool) -> int:
        """Numbers of the parameters of a module; `recorded`: of those that its record knows, if it has one."""
        compared = self.sides[side]
        if recorded and compared.totals is not None and not compared.module:
            return compared.totals.total(ModuleCall.parse(call).path).parameters
        read = {name for node in nodes for name in node.inputs if name in compared.graph.initializers}
        return sum(map(compared.weight_sizes.size, read))

    def common_call(self, side: int, keys: Iterable[str]) -> str:
        """The innermost call around all of some nodes."""
        calls = self.left if side == 0 else self.right
        return _innermost([self.stack(side, call) for call in dict.fromkeys(calls.get(key, ROOT) for key in keys)])


def align_modules(left: DiffSide, right: DiffSide, pairs: NodePairs, links: Mapping[str, Link]) -> ModuleAlignment:
    left_calls, right_calls = dict(left.calls), dict(right.calls)
    if left.source is Source.OTHER:
        left_calls.update(
            (node.key, right_calls[other.key]) for other, node in _list_pairs(pairs) if other.key in right_calls
        )
    if right.source is Source.OTHER:
        right_calls.update(
            (other.key, left_calls[node.key]) for other, node in _list_pairs(pairs) if node.key in left_calls
        )
        right_calls.update(_inherit_calls(links, left_calls, right_calls, left, pairs))
    _spread_calls(left, left_calls)
    _spread_calls(right, right_calls)
    lent = Source.OTHER in (left.source, right.source)
    borrowed = ModuleAlignment((left, right), left_calls, right_calls, {})
    calls = dict.fromkeys((*left_calls.values(), *right_calls.values()))
    same = {call: call for inner in calls for call in borrowed.stack(0, inner)} if lent else {}
    aligned = same or _align_calls(left, right, pairs, left_calls, right_calls)
    return ModuleAlignment((left, right), left_calls, right_calls, aligned)


def align_equal(left: DiffSide, right: DiffSide) -> ModuleAlignment:
    """Every module call of two equal sides with itself, in the order of its first node.

    One of the sides may have lent its modules to the other.
    """
    speaker = right if left.source is Source.OTHER else left
    calls = dict(speaker.calls)
    _spread_calls(speaker, calls)
    lent = Source.OTHER in (left.source, right.source)
    issuing = calls.values() if lent else (calls[node.key] for node in speaker.flow.order)
    aligned = {call: call for inner in dict.fromkeys(issuing) for call in speaker.stack(inner)}
    return ModuleAlignment((left, right), calls, calls, aligned)


def _list_pairs(pairs: NodePairs) -> list[tuple[Node, Node]]:
    """Nodes of the second file, each with its partner."""
    return [(other, pairs.left[other.key]) for other in pairs.right.values()]


def _inherit_calls(
    links: Mapping[str, Link],
    left_calls: Mapping[str, str],
    right_calls: Mapping[str, str],
    left: DiffSide,
    pairs: NodePairs,
) -> dict[str, str]:
    """Of nodes without a partner: the call around all that is gone and that they come from."""
    inherited: dict[str, str] = {}
    for key, link in links.items():
        calls = [left_calls[source] for source in link.sources if source in left_calls and source not in pairs.right]
        if key not in right_calls and calls:
            inherited[key] = _innermost([left.stack(call) for call in dict.fromkeys(calls)])
    return inherited


def _innermost(stacks: Iterable[tuple[str, ...]]) -> str:
    return next(reversed(common_prefix(stacks)), ROOT)


def _spread_calls(side: DiffSide, calls: dict[str, str]) -> None:
    """What nobody knows belongs to what it works on; else to what reads it; else to the model.

    A Constant that nobody knows belongs to the innermost call around all that read it.
    """
    flow = side.flow
    for node in flow.order:
        if node.key not in calls:
            makers = (flow.producers.get(value) for value in node.inputs)
            known = [calls[maker[0].key] for maker in makers if maker is not None and maker[0].key in calls]
            if known:
                calls[node.key] = known[0]
    for node in reversed(flow.order):
        if node.key not in calls:
            readers = (use.reader.key for value in node.outputs for use in flow.uses.get(value, ()))
            calls[node.key] = next((calls[key] for key in readers if key in calls), ROOT)
    for node in side.graph.nodes:
        if node.key not in calls:
            reading = (reader.key for value in node.outputs for reader in side.graph.consumers.get(value, ()))
            calls[node.key] = _innermost([side.stack(calls[key]) for key in reading if key in calls])


def _align_calls(
    left: DiffSide, right: DiffSide, pairs: NodePairs, left_calls: Mapping[str, str], right_calls: Mapping[str, str]
) -> dict[str, str]:
    """By the nodes that they have in common, names and classes where that does not decide."""
    leaves = Counter((left_calls[node.key], right_calls[other.key]) for other, node in _list_pairs(pairs))
    sizes = (_count_nodes(left, left_calls), _count_nodes(right, right_calls))
    shared: Counter[tuple[str, str]] = Counter()
    for (call, other), count in leaves.items():
        for above in left.inner_stack(call):
            for upper in right.inner_stack(other):
                shared[above, upper] += count
    rated = sorted(
        ((_rate_pair(left, right, pair, count / (sizes[0][pair[0]] + sizes[1][pair[1]] - count)), pair))
        for pair, count in shared.items()
    )
    calls: dict[str, str] = {}
    aligned: set[str] = set()
    for _, (call, other) in reversed(rated):
        if call not in calls and other not in aligned:
            calls[call] = other
            aligned.add(other)
    return calls | _align_by_name(left, right, calls, aligned, sizes)


def _rate_pair(left: DiffSide, right: DiffSide, pair: tuple[str, str], share: float) -> float:
    same_name = left.relative(pair[0]) == right.relative(pair[1])
    return share + _SAME_NAME * same_name + _SAME_CLASS * (left.class_of(pair[0]) == right.class_of(pair[1]))


def _count_nodes(side: DiffSide, calls: Mapping[str, str]) -> Counter[str]:
    """How many nodes there are in a call and everything inside of it."""
    counts: Counter[str] = Counter()
    for call, count in Counter(calls[node.key] for node in side.flow.order).items():
        for above in side.stack(call):
            counts[above] += count
    return counts


def _align_by_name(
    left: DiffSide,
    right: DiffSide,
    aligned: Mapping[str, str],
    taken_calls: set[str],
    sizes: tuple[Counter[str], Counter[str]],
) -> dict[str, str]:
    """Modules that have no nodes in common, under the same name in what is aligned."""
    more: dict[str, str] = {}
    by_name = {right.relative(call): call for call in sizes[1] if call not in taken_calls}
    for call in sizes[0]:
        other = by_name.get(left.relative(call))
        if call not in aligned and other is not None:
            more[call] = other
    return more


def find_absent_modules(modules: ModuleAlignment, regions: Sequence[ChangedRegion]) -> list[ModuleChange]:
    """The outermost modules all of whose nodes are gone, without any others in their place; and those that are new."""
    plain = [region for region in regions if not (region.left and region.right)]
    gone = {node.key for region in plain for node in region.left}
    fresh = {node.key for region in plain for node in region.right}
    return [*_list_absent(modules, 0, gone), *_list_absent(modules, 1, fresh)]


def _list_absent(modules: ModuleAlignment, side: int, keys: set[str]) -> Iterator[ModuleChange]:
    inside = _nodes_by_call(modules, side)
    whole = {call for call, nodes in inside.items() if call != ROOT and _is_whole(modules, side, nodes, keys)}
    whole -= set(_find_rerouted(modules, side, whole))
    for call in inside:
        outer = modules.stack(side, call)[:-1]
        if call in whole and whole.isdisjoint(outer) and _is_gone(modules, side, call, inside[call]):
            yield _describe_absent(modules, side, call, inside[call])


def _is_whole(modules: ModuleAlignment, side: int, nodes: Sequence[Node], keys: set[str]) -> bool:
    """Whether all nodes are among some; or most, and all with weights: others may need what the rest makes."""
    rest = [node for node in nodes if node.key not in keys]
    if not rest:
        return True
    flow = modules.sides[side].flow
    return len(rest) < len(nodes) / 2 and bool(flow.list_weights(nodes)) and not flow.list_weights(rest)


def _find_rerouted(modules: ModuleAlignment, side: int, calls: Iterable[str]) -> Iterator[str]:
    """Calls whose partner in the other file has weights: these may reach its nodes by another way."""
    inside = _nodes_by_call(modules, 1 - side)
    partners = modules.aligned if side == 0 else modules.reversed
    for call in calls:
        nodes = inside.get(partners[call], ()) if call in partners else ()
        if modules.sides[1 - side].flow.list_weights(nodes):
            yield call


def _nodes_by_call(modules: ModuleAlignment, side: int) -> Mapping[str, list[Node]]:
    """By call: the nodes in it and in everything inside of it."""
    calls = modules.left if side == 0 else modules.right
    nodes_by_call: dict[str, list[Node]] = {}
    for node in modules.sides[side].flow.order:
        for call in modules.stack(side, calls[node.key]):
            nodes_by_call.setdefault(call, []).append(node)
    return nodes_by_call


def _is_gone(modules: ModuleAlignment, side: int, call: str, nodes: Iterable[Node]) -> bool:
    """A module without weights may be there still and have nothing to do."""
    if modules.sides[side].flow.list_weights(nodes):
        return True
    other = modules.sides[1 - side]
    return other.hierarchy is None or ModuleCall.parse(call).path not in other.hierarchy.modules


def _describe_absent(modules: ModuleAlignment, side: int, call: str, nodes: Sequence[Node]) -> ModuleChange:
    name = modules.class_of(side, call)
    count = modules.node_count(side, call)
    parameters = modules.parameter_count(side, call, nodes, recorded=True)
    if side == 0:
        return ModuleChange(Change.REMOVED, call, None, (name, ""), Amount(count, 0), parameters)
    return ModuleChange(Change.ADDED, None, call, ("", name), Amount(0, count), parameters)


_Costs = Mapping[str, NodeCost]


def add_costs(diff: Diff, modules: ModuleAlignment, costs: tuple[_Costs, _Costs]) -> Diff:
    """The diff with what differs in the cost of everything, and of each module in which something does."""
    calls = ((0, ROOT), (1, ROOT), *((0, module.left) for module in diff.modules))
    wanted = {*calls, *((1, module.right) for module in diff.modules)}
    inside = _nodes_by_place(modules, wanted)
    sums = {place: dict(_sum_costs(nodes, modules, place, costs[place[0]])) for place, nodes in inside.items()}
    total = _compare_costs(sums.get((0, ROOT), {}), sums.get((1, ROOT), {}))
    changes = tuple(_add_cost(module, sums) for module in diff.modules)
    return replace(diff, cost=total, modules=changes)


def _add_cost(module: ModuleChange, sums: Mapping[tuple[int, str | None], Mapping[str, Polynomial]]) -> ModuleChange:
    if module.change is not Change.CHANGED or not module.path:
        return module  # of a module that is gone its size says enough; that of the model is said of the whole
    return replace(module, cost=_compare_costs(sums.get((0, module.left), {}), sums.get((1, module.right), {})))


def _nodes_by_place(
    modules: ModuleAlignment, wanted: set[tuple[int, str | None]]
) -> dict[tuple[int, str | None], list[Node]]:
    nodes_by_side: dict[tuple[int, str | None], list[Node]] = {}
    for side, calls in enumerate((modules.left, modules.right)):
        for node in modules.sides[side].flow.order:
            for call in {*modules.stack(side, calls[node.key]), ROOT}:
                if (side, call) in wanted:
                    nodes_by_side.setdefault((side, call), []).append(node)
    return nodes_by_side


def _sum_costs(
    nodes: list[Node], modules: ModuleAlignment, place: tuple[int, str | None], costs: _Costs
) -> Iterator[tuple[str, Polynomial]]:
    """What is not known of a node is not known of the whole."""
    side, call = place
    known = [costs.get(node.key) for node in nodes]
    for measure in ("flops", "activation_bytes"):
        sizes: list[Polynomial | None] = [None if cost is None else getattr(cost, measure) for cost in known]
        if None not in sizes:
            yield measure, sizes_sum(size for size in sizes if size is not None)
    flow = modules.sides[side].flow
    read = flow.list_weights(nodes)
    # By one yardstick: a file without a record does not know buffers from parameters.
    recorded = all(side.record is not None for side in modules.sides)
    parameters = modules.parameter_count(side, call or ROOT, nodes, recorded=recorded)
    yield "parameters", Polynomial.of(parameters)
    yield "weight_bytes", Polynomial.of(sum(prod(item.shape) * _width(item.dtype) for item in read))


def _width(dtype: int) -> int:
    return onnx.helper.tensor_dtype_to_np_dtype(dtype).itemsize if dtype else 0


def _compare_costs(costs: Mapping[str, Polynomial], other_costs: Mapping[str, Polynomial]) -> CostChange | None:
    both = {
        what: (costs[what], other_costs[what])
        for what in costs
        if what in other_costs and costs[what] != other_costs[what]
    }
    # Axes of other names cannot be told from other sizes.
    same = {what: pair for what, pair in both.items() if pair[0].axes == pair[1].axes}
    return CostChange(same) if same else None
