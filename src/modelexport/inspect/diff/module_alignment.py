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
from itertools import product
from math import prod

from onnx.helper import tensor_dtype_to_np_dtype as np_dtype

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
    calls    of both files, by the key of a node: the call that it belongs to
    aligned  calls of the first file, mapped to calls of the second
    """

    sides: tuple[DiffSide, DiffSide]
    calls: tuple[Mapping[str, str], Mapping[str, str]]
    aligned: Mapping[str, str]

    @cached_property
    def reversed(self) -> Mapping[str, str]:
        return {other: call for call, other in self.aligned.items()}

    @cached_property
    def homes(self) -> tuple[Mapping[str, str], Mapping[str, str]]:
        """By key: a word for where a node belongs, the same in both files for the same module."""
        left, right = self.calls
        return dict(left), {key: self.label(None, call) for key, call in right.items()}

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
        compared, calls = self.sides[side], self.calls[side]
        if call is None and not compared.module:
            return len(compared.graph.nodes)
        stacks = (self.stack(side, calls.get(node.key, ROOT)) for node in compared.graph.nodes)
        if call is None:
            return sum(any(map(compared.is_part, stack)) for stack in stacks)
        return sum(call in stack for stack in stacks)

    def parameter_count(self, side: int, call: str, nodes: Iterable[Node], *, recorded: bool) -> int:
        """Numbers of the parameters of a module; `recorded`: of those that its record knows, if it has one."""
        compared = self.sides[side]
        if recorded and compared.totals is not None and not compared.module:
            return compared.totals.total(ModuleCall.parse(call).path).parameters
        read = {name for node in nodes for name in node.inputs if name in compared.graph.initializers}
        return sum(map(compared.weight_sizes.size, read))

    def common_call(self, side: int, keys: Iterable[str]) -> str:
        """The innermost call around all of some nodes."""
        calls = dict.fromkeys(self.calls[side].get(key, ROOT) for key in keys)
        return _innermost(self.stack(side, call) for call in calls)

    def nodes_by_call(self, side: int) -> dict[str, list[Node]]:
        """By call: the nodes in it and in everything inside of it."""
        nodes_by_call: dict[str, list[Node]] = {}
        for node in self.sides[side].flow.order:
            for call in self.stack(side, self.calls[side][node.key]):
                nodes_by_call.setdefault(call, []).append(node)
        return nodes_by_call


def align_modules(left: DiffSide, right: DiffSide, pairs: NodePairs, links: Mapping[str, Link]) -> ModuleAlignment:
    left_calls, right_calls = dict(left.calls), dict(right.calls)
    if left.source is Source.OTHER:
        left_calls |= {key: right_calls[other.key] for key, other in pairs.right.items() if other.key in right_calls}
    if right.source is Source.OTHER:
        right_calls |= {other.key: left_calls[key] for key, other in pairs.right.items() if key in left_calls}
        right_calls |= _inherit_calls(links, left_calls, right_calls, left, pairs)
    _spread_calls(left, left_calls)
    _spread_calls(right, right_calls)
    # A borrowed call is the call that it was borrowed from: there is nothing to align.
    if Source.OTHER in (left.source, right.source):
        speaker = right if left.source is Source.OTHER else left
        calls = dict.fromkeys((*left_calls.values(), *right_calls.values()))
        aligned = {call: call for inner in calls for call in speaker.stack(inner)}
    else:
        aligned = _align_calls(left, right, pairs, left_calls, right_calls)
    return ModuleAlignment((left, right), (left_calls, right_calls), aligned)


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
    return ModuleAlignment((left, right), (calls, calls), aligned)


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
            inherited[key] = _innermost(map(left.stack, dict.fromkeys(calls)))
    return inherited


def _innermost(stacks: Iterable[tuple[str, ...]]) -> str:
    return next(reversed(common_prefix(stacks)), ROOT)


def _spread_calls(side: DiffSide, calls: dict[str, str]) -> None:
    """What nobody knows belongs to what it works on; else to what reads it; else to the model.

    A Constant that nobody knows belongs to the innermost call around all that read it.
    """
    flow = side.flow
    for node in flow.order:
        known = next((calls[maker.key] for maker in flow.makers(node) if maker.key in calls), None)
        if known is not None:
            calls.setdefault(node.key, known)
    # Against the order, so that a chain without a call passes on the call of what reads its end.
    for node in reversed(flow.order):
        if node.key not in calls:
            calls[node.key] = next((calls[reader.key] for reader in flow.readers(node) if reader.key in calls), ROOT)
    for node in side.graph.nodes:
        if node.key not in calls:
            reading = (reader.key for value in node.outputs for reader in side.graph.consumers.get(value, ()))
            calls[node.key] = _innermost(side.stack(calls[key]) for key in reading if key in calls)


def _align_calls(
    left: DiffSide, right: DiffSide, pairs: NodePairs, left_calls: Mapping[str, str], right_calls: Mapping[str, str]
) -> dict[str, str]:
    """By the nodes that they have in common, names and classes where that does not decide."""
    leaves = Counter((left_calls[key], right_calls[other.key]) for key, other in pairs.right.items())
    sizes = (_count_nodes(left, left_calls), _count_nodes(right, right_calls))
    shared: Counter[tuple[str, str]] = Counter()
    for (call, other), count in leaves.items():
        for pair in product(left.inner_stack(call), right.inner_stack(other)):
            shared[pair] += count

    def rate_pair(call: str, other: str) -> float:
        # The share of nodes in common (Jaccard), so that a module is not aligned with the one around it.
        share = shared[call, other] / (sizes[0][call] + sizes[1][other] - shared[call, other])
        same_name, same_class = (
            left.relative(call) == right.relative(other),
            left.class_of(call) == right.class_of(other),
        )
        return share + _SAME_NAME * same_name + _SAME_CLASS * same_class

    aligned: dict[str, str] = {}
    unaligned = set(sizes[1])
    for _, (call, other) in sorted(((rate_pair(*pair), pair) for pair in shared), reverse=True):
        if call not in aligned and other in unaligned:
            aligned[call] = other
            unaligned.remove(other)
    # Modules that have no nodes in common, under the same name in what is aligned.
    by_name = {right.relative(call): call for call in sizes[1] if call in unaligned}
    names = {call: left.relative(call) for call in sizes[0] if call not in aligned}
    return aligned | {call: by_name[name] for call, name in names.items() if name in by_name}


def _count_nodes(side: DiffSide, calls: Mapping[str, str]) -> Counter[str]:
    """How many nodes there are in a call and everything inside of it."""
    counts: Counter[str] = Counter()
    for call, count in Counter(calls[node.key] for node in side.flow.order).items():
        for above in side.stack(call):
            counts[above] += count
    return counts


def find_absent_modules(modules: ModuleAlignment, regions: Sequence[ChangedRegion]) -> list[ModuleChange]:
    """The outermost modules all of whose nodes are gone, without any others in their place; and those that are new."""
    plain = [region for region in regions if not (region.left and region.right)]
    gone = {node.key for region in plain for node in region.left}
    fresh = {node.key for region in plain for node in region.right}
    return [*_list_absent(modules, 0, gone), *_list_absent(modules, 1, fresh)]


def _list_absent(modules: ModuleAlignment, side: int, keys: set[str]) -> Iterator[ModuleChange]:
    inside, other_inside = modules.nodes_by_call(side), modules.nodes_by_call(1 - side)
    other, partners = modules.sides[1 - side], (modules.aligned, modules.reversed)[side]
    absent = {call for call, nodes in inside.items() if call != ROOT and _is_absent(modules, side, nodes, keys)}
    # A partner that has weights is still there: these may reach its nodes by another way.
    shared = {call: other_inside.get(partners[call], ()) for call in absent if call in partners}
    absent -= {call for call, nodes in shared.items() if other.flow.list_weights(nodes)}
    for call, nodes in inside.items():
        if call not in absent or not absent.isdisjoint(modules.stack(side, call)[:-1]):
            continue
        # A module without weights may be there still and have nothing to do.
        is_known = other.hierarchy is not None and ModuleCall.parse(call).path in other.hierarchy.modules
        if modules.sides[side].flow.list_weights(nodes) or not is_known:
            yield _describe_absent(modules, side, call, nodes)


def _is_absent(modules: ModuleAlignment, side: int, nodes: Sequence[Node], keys: set[str]) -> bool:
    """Whether all nodes are among some; or most, and all with weights: others may need what the rest makes."""
    rest = [node for node in nodes if node.key not in keys]
    flow = modules.sides[side].flow
    return not rest or (len(rest) < len(nodes) / 2 and bool(flow.list_weights(nodes)) and not flow.list_weights(rest))


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
    inside = [modules.nodes_by_call(side) | {ROOT: modules.sides[side].flow.order} for side in (0, 1)]

    def compare_costs(*calls: str | None) -> CostChange | None:
        left, right = (
            {} if call is None else dict(_sum_costs(inside[side].get(call, []), modules, side, call, costs[side]))
            for side, call in enumerate(calls)
        )
        both = {what: (left[what], right[what]) for what in left if what in right and left[what] != right[what]}
        # Axes of other names cannot be told from other sizes.
        same = {what: pair for what, pair in both.items() if pair[0].axes == pair[1].axes}
        return CostChange(same) if same else None

    # Of a module that is gone its size says enough; that of the model is said of the whole.
    changes = (
        replace(module, cost=compare_costs(module.left, module.right))
        if module.change is Change.CHANGED and module.path
        else module
        for module in diff.modules
    )
    return replace(diff, cost=compare_costs(ROOT, ROOT), modules=tuple(changes))


def _sum_costs(
    nodes: list[Node], modules: ModuleAlignment, side: int, call: str, costs: _Costs
) -> Iterator[tuple[str, Polynomial]]:
    """What is not known of a node is not known of the whole."""
    if not nodes:
        return
    known = [costs.get(node.key) for node in nodes]
    for measure in ("flops", "activation_bytes"):
        sizes: list[Polynomial | None] = [None if cost is None else getattr(cost, measure) for cost in known]
        if None not in sizes:
            yield measure, sizes_sum(size for size in sizes if size is not None)
    # By one yardstick: a file without a record does not know buffers from parameters.
    recorded = all(side.record is not None for side in modules.sides)
    yield "parameters", Polynomial.of(modules.parameter_count(side, call, nodes, recorded=recorded))
    read = [weight for weight in modules.sides[side].flow.list_weights(nodes) if weight.dtype]
    yield "weight_bytes", Polynomial.of(sum(prod(item.shape) * np_dtype(item.dtype).itemsize for item in read))
