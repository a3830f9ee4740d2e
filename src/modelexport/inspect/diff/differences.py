"""Diff: everything that is different between two files, put into the module where it belongs.

match_io        which inputs and outputs are the same
pair_nodes      which nodes are the same; prefer_same_module where several would do
NodeComparison  what differs about paired nodes and their constants
align_modules   which modules are the same
RegionFinder    what unpaired nodes became: replaced, removed, added
Diff            all of it by module, in the order of the first file

    encoder.layer.3.attention   replaced: MatMul, Add, Softmax by com.microsoft.Attention
    encoder.layer.7             removed: 41 nodes, 7,087,872 parameters
    (model)                     changed: opset ai.onnx 17 → 20

A change stands in the innermost module call around all of its nodes. Where a whole module is gone, the module is told
of and its nodes are not.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cache

from modelexport.graph.index import Node
from modelexport.graph.protos import ONNX_DOMAINS
from modelexport.inspect.diff.changed_regions import ChangedRegion, RegionFinder, ReplacedWeights
from modelexport.inspect.diff.io_matching import compare_headers, compare_io, list_renamed_io
from modelexport.inspect.diff.module_alignment import (
    ModuleAlignment,
    add_costs,
    align_equal,
    align_modules,
    find_absent_modules,
)
from modelexport.inspect.diff.node_diff import NodeComparison, output_label
from modelexport.inspect.diff.pairing import Links, pair_nodes, prefer_same_module
from modelexport.inspect.diff.sides import DiffSide, match_io
from modelexport.inspect.diff.weight_diff import WeightDiff
from modelexport.record.results.cost import NodeCost
from modelexport.record.results.diff import (
    Change,
    Diff,
    FieldChange,
    ModuleChange,
    NodeChange,
    NodeRef,
    Renamed,
    Side,
    WeightChange,
    WeightForm,
)

_Costs = Callable[[], tuple[Mapping[str, NodeCost], Mapping[str, NodeCost]]]


@dataclass
class _ModuleFindings:
    """What was found in one module so far."""

    left: str | None
    right: str | None
    changes: list[NodeChange] = field(default_factory=list)
    weights: list[WeightChange] = field(default_factory=list)


def find_differences(left: DiffSide, right: DiffSide, links: Links, costs: _Costs | None = None) -> Diff:
    """
    links  what the nodes of the second graph come from; asked for only if it matters
    costs  of the nodes of both, by key; asked for only if there is any difference
    """
    finder = _DifferenceFinder(left, right, links)
    diff = finder.build_diff()
    return add_costs(diff, finder.modules, costs()) if costs is not None and _may_change_cost(diff) else diff


def diff_equal_files(left: DiffSide, right: DiffSide) -> Diff:
    """The diff of a file with itself or an exact copy: what `differences` finds, without looking for it.

    Every node is paired with itself and every module call is aligned with itself. No weight is read.
    """
    pairs = {node.key: node.key for node in left.flow.order}
    modules = align_equal(left, right)
    return Diff(*_summarize_sides(modules), aligned=modules.aligned, pairs=pairs)


def _may_change_cost(diff: Diff) -> bool:
    """Other numbers alone cost the same."""
    numbers = (WeightForm.VALUES, WeightForm.TRANSPOSED)
    nodes = any(module.changes or module.change is not Change.CHANGED for module in diff.modules)
    return nodes or bool(diff.model) or any(change.form not in numbers for _, change in diff.weight_changes())


class _DifferenceFinder:
    """The steps of one diff, each with what those before it found.

    modules  which module is which; `add_costs` needs it after the diff is there
    """

    def __init__(self, left: DiffSide, right: DiffSide, links: Links) -> None:
        self._left, self._right = left, right
        # One part of a model has no inputs, outputs and opsets of its own that could differ.
        self._compares_models = not (left.module or right.module)
        self._io = match_io(left, right)
        links = cache(links)
        self._pairs = pair_nodes(left.flow, right.flow, self._io, links)
        for index, side in enumerate((left, right)):
            if side.hierarchy is not None:
                prefer_same_module(self._pairs, index, side.calls, side.stack)
        self._nodes = NodeComparison(left, right, self._pairs)
        self._weights = WeightDiff(left.constants, right.constants)
        self._replaced = ReplacedWeights(self._pairs, self._nodes, self._weights)
        self._entries: dict[str, _ModuleFindings] = {}
        self._states: tuple[dict[str, Change], dict[str, Change]] = ({}, {})
        # Before regions are looked for: these need to know which paired nodes are altered.
        self._changed = list(self._nodes.compare_nodes())
        self._returned = tuple(self._nodes.compare_outputs()) if self._compares_models else ()
        one_sided = len(self._pairs.right) < max(len(left.flow.order), len(right.flow.order))
        known_links = links().nodes if one_sided else {}
        self.modules = align_modules(left, right, self._pairs, known_links)
        finder = RegionFinder(self._pairs, self.modules.homes, known_links, self._nodes.altered)
        self._regions = finder.find_regions()

    def build_diff(self) -> Diff:
        replaced = {node.key for region in self._regions for node in region.left}
        gone = find_absent_modules(self.modules, self._regions)
        self._add_regions(gone)
        for node, other, fields in self._changed:
            if node.key not in replaced:
                entry = self._entry(0, self.modules.calls[0][node.key])
                entry.changes.append(NodeChange(Change.CHANGED, (node_ref(node),), (node_ref(other),), fields))
                self._mark(node.key, other.key)
        self._add_constants(replaced)
        left, right = _summarize_sides(self.modules)
        nodes = len(self._left.flow.order) + len(self._right.flow.order)
        return Diff(
            left,
            right,
            model=tuple(self._model_changes()) if self._compares_models else (),
            modules=tuple(self._in_order(gone)),
            renamed=tuple(self._renamed()),
            alike=2 * len(self._pairs.right) / nodes if nodes else 1.0,
            same_weights=self._same_weights(),
            aligned=self.modules.aligned,
            pairs={key: node.key for key, node in self._pairs.right.items()},
            left_nodes=self._states[0],
            right_nodes=self._states[1],
        )

    def _add_regions(self, gone: Iterable[ModuleChange]) -> None:
        lost = {module.left for module in gone if module.left is not None}
        new = {module.right for module in gone if module.right is not None}
        for region in self._regions:
            kind = _kind_of_change(region)
            for nodes, states in zip((region.left, region.right), self._states, strict=True):
                states.update((node.key, kind) for node in nodes)
            # A node of a module that is gone, or new, is told of with that module.
            left = region.left if region.right else self._outside(region.left, 0, lost)
            right = region.right if region.left else self._outside(region.right, 1, new)
            if not left and not right:
                continue
            side, nodes = (0, left) if left else (1, right)
            entry = self._entry(side, self.modules.common_call(side, (node.key for node in nodes)))
            entry.changes.append(NodeChange(kind, tuple(map(node_ref, left)), tuple(map(node_ref, right))))
            entry.weights.extend(self._replaced.changes(ChangedRegion(left, right)))

    def _outside(self, nodes: tuple[Node, ...], side: int, calls: set[str]) -> tuple[Node, ...]:
        stacks = ((node, self.modules.stack(side, self.modules.calls[side][node.key])) for node in nodes)
        return tuple(node for node, stack in stacks if calls.isdisjoint(stack))

    def _mark(self, key: str, other: str) -> None:
        self._states[0].setdefault(key, Change.CHANGED)
        self._states[1].setdefault(other, Change.CHANGED)

    def _add_constants(self, replaced: set[str]) -> None:
        """Constants of nodes that are paired, once for each pair of constants."""
        for constant_pairs in self._nodes.constants.values():
            # No reader: the model returns the constant as it is.
            shown = [pair.reader for pair in constant_pairs if pair.reader not in replaced]
            readers = tuple(reader for reader in shown if reader is not None)
            left, right = constant_pairs[0].left, constant_pairs[0].right
            change = self._weights.compare(left, right, readers) if shown else None
            if change is not None:
                held = self._left.held.get(left.name)
                call = self.modules.common_call(0, readers) if held is None else held
                self._entry(0, call).weights.append(change)
                for reader in readers:
                    self._mark(reader, self._pairs.right[reader].key)

    def _entry(self, side: int, call: str) -> _ModuleFindings:
        modules = self.modules
        left, right = (modules.reversed.get(call), call) if side == 1 else (call, modules.aligned.get(call))
        return self._entries.setdefault(modules.label(left, right), _ModuleFindings(left, right))

    def _model_changes(self) -> Iterator[FieldChange]:
        left, right = self._left, self._right
        yield from compare_io("input", left.inputs, right.inputs, self._io.inputs)
        yield from compare_io("output", left.outputs, right.outputs, self._io.outputs)
        yield from self._returned
        used = [frozenset(node.domain for node in side.graph.nodes) for side in (left, right)]
        yield from compare_headers(left.proto, right.proto, used)

    def _renamed(self) -> Iterator[Renamed]:
        if self._compares_models:
            yield from list_renamed_io("input", self._io.inputs)
            others = {change.what for change in self._returned}
            same = {name: now for name, now in self._io.outputs.items() if output_label(name) not in others}
            yield from list_renamed_io("output", same)
        shown: set[tuple[str, str]] = set()
        for call, other in self.modules.aligned.items():
            if self._left.relative(call) == self._right.relative(other):
                continue
            # Modules inside of a renamed one keep their own names.
            (above, _, tail), (other_above, _, other_tail) = call.rpartition("."), other.rpartition(".")
            shown.add((call, other))
            if (above, other_above) not in shown or tail != other_tail:
                yield Renamed("module", call, other)

    def _in_order(self, gone: list[ModuleChange]) -> list[ModuleChange]:
        changes = {self.modules.label(module.left, module.right): module for module in gone}
        for label, entry in self._entries.items():
            changes.setdefault(label, self._module_change(entry))
        for call, other in self.modules.aligned.items():
            change = self._module_change(_ModuleFindings(call, other))
            if change.class_changed:
                changes.setdefault(self.modules.label(call, other), change)
        return _sort_modules(changes.values(), self.modules)

    def _module_change(self, entry: _ModuleFindings) -> ModuleChange:
        calls = entry.left, entry.right
        left, right = ("" if call is None else self.modules.class_of(side, call) for side, call in enumerate(calls))
        changes, weights = tuple(entry.changes), tuple(entry.weights)
        return ModuleChange(Change.CHANGED, *calls, (left, right), changes=changes, weights=weights)

    def _same_weights(self) -> float:
        flows = (self._left.flow, self._right.flow)
        left, right = ({weight.digest for weight in flow.list_weights(flow.order)} - {None} for flow in flows)
        return len(left & right) / len(left | right) if left | right else 1.0


def _sort_modules(changes: Iterable[ModuleChange], modules: ModuleAlignment) -> list[ModuleChange]:
    """In the order of the first file; what is new behind what comes before it in the second."""
    left, right = _first_positions(modules, 0), _first_positions(modules, 1)

    def position(change: ModuleChange) -> tuple[float, float]:
        if change.left is not None:
            return left.get(change.left, -1.0), 0.0
        own = right.get(change.right or "", -1.0)
        aligned = ((call, other) for call, other in modules.aligned.items() if call in left)
        before = [left[call] for call, other in aligned if right.get(other, own) < own]
        return max(before, default=-1.0), 1.0 + own

    return sorted(changes, key=position)


def _first_positions(modules: ModuleAlignment, side: int) -> dict[str, float]:
    """By call: the position of its first node; a call comes before those inside of it."""
    first_positions: dict[str, float] = {}
    for node in modules.sides[side].flow.order:
        stack = modules.stack(side, modules.calls[side][node.key])
        for depth, call in enumerate(stack):
            # Less than one for each depth: the node behind has the next whole number.
            first_positions.setdefault(call, node.position + depth / (1 + len(stack)))
    return first_positions


def _kind_of_change(region: ChangedRegion) -> Change:
    if region.left and region.right:
        return Change.REPLACED
    return Change.REMOVED if region.left else Change.ADDED


def node_ref(node: Node) -> NodeRef:
    own = node.domain in ONNX_DOMAINS
    return NodeRef(node.key, node.name, node.op_type if own else f"{node.domain}.{node.op_type}")


def _summarize_sides(modules: ModuleAlignment) -> tuple[Side, Side]:
    counts = modules.node_count(0), modules.node_count(1)
    left, right = (
        Side(side.path, nodes, len(side.graph.initializers), side.source, side.exporter, side.module)
        for side, nodes in zip(modules.sides, counts, strict=True)
    )
    return left, right
