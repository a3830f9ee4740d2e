"""Diff: everything that is different between two files, put into the module where it belongs.

match_io        which inputs and outputs are the same
pair_nodes      which nodes are the same; prefer_same_module where several would do
NodeComparison  what differs about paired nodes and their constants
align_modules   which modules are the same
RegionFinder    what unpaired nodes became: replaced, removed, added
Diff            all of it by module, in the order of the first file
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
    links  by the key of a node of the second graph: what it comes from; asked for only if it matters
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
    summary, other_summary = _summarize_side(left, modules.node_count(0)), _summarize_side(right, modules.node_count(1))
    return Diff(summary, other_summary, aligned=modules.aligned, pairs=pairs)


def _may_change_cost(diff: Diff) -> bool:
    """Other numbers alone cost the same."""
    numbers = (WeightForm.VALUES, WeightForm.TRANSPOSED)
    nodes = any(True for _ in diff.node_changes()) or any(
        module.change is not Change.CHANGED for module in diff.modules
    )
    return nodes or bool(diff.model) or any(change.form not in numbers for _, change in diff.weight_changes())


class _DifferenceFinder:
    def __init__(self, left: DiffSide, right: DiffSide, links: Links) -> None:
        self._left, self._right = left, right
        found_ends = match_io(left, right)
        self._inputs, self._outputs = found_ends.inputs, found_ends.outputs
        ends = {f"i:{name}": now for name, now in self._inputs.items()}
        ends.update({f"o:{name}": now for name, now in self._outputs.items()})
        links = cache(links)
        self._pairs = pair_nodes(left.flow, right.flow, ends, links)
        for index, side in enumerate((left, right)):
            if side.hierarchy is not None:
                prefer_same_module(self._pairs, index, side.calls, side.stack)
        self._nodes = NodeComparison(left, right, self._pairs)
        self._weights = WeightDiff(left.holdings, right.holdings)
        self._replaced = ReplacedWeights(self._pairs, self._nodes, self._weights)
        self._entries: dict[str, _ModuleFindings] = {}
        self._states: tuple[dict[str, Change], dict[str, Change]] = ({}, {})
        changed = list(self._nodes.compare_nodes())
        self._returned = () if left.module or right.module else tuple(self._nodes.compare_outputs())
        one_sided = len(self._pairs.right) < max(len(left.flow.order), len(right.flow.order))
        found_links = links() if one_sided else {}
        self.modules = align_modules(left, right, self._pairs, found_links)
        self._regions = RegionFinder(
            self._pairs, self.modules.homes, found_links, self._nodes.is_altered
        ).find_regions()
        self._changed = changed

    def build_diff(self) -> Diff:
        replaced = {node.key for region in self._regions for node in region.left}
        gone = find_absent_modules(self.modules, self._regions)
        self._add_regions(gone)
        for node, other, fields in self._changed:
            if node.key not in replaced:
                self._add_changed(node, other, fields)
        self._add_constants(replaced)
        model = () if self._left.module or self._right.module else tuple(self._model_changes())
        return Diff(
            left=_summarize_side(self._left, self.modules.node_count(0)),
            right=_summarize_side(self._right, self.modules.node_count(1)),
            model=model,
            modules=tuple(self._in_order(gone)),
            renamed=tuple(self._renamed()),
            alike=self._alike(),
            same_weights=self._same_weights(),
            aligned=self.modules.aligned,
            pairs={key: node.key for key, node in self._pairs.right.items()},
            left_nodes=self._states[0],
            right_nodes=self._states[1],
        )

    # nodes

    def _add_regions(self, gone: Iterable[ModuleChange]) -> None:
        lost = {(0, module.left) for module in gone if module.change is Change.REMOVED}
        lost |= {(1, module.right) for module in gone if module.change is Change.ADDED}
        for region in self._regions:
            for nodes, states in zip((region.left, region.right), self._states, strict=True):
                states.update((node.key, _kind_of_change(region)) for node in nodes)
            left = self._outside(region.left, 0, lost) if not region.right else region.left
            right = self._outside(region.right, 1, lost) if not region.left else region.right
            if left or right:
                self._add_region(ChangedRegion(left, right))

    def _outside(self, nodes: tuple[Node, ...], side: int, lost: set[tuple[int, str | None]]) -> tuple[Node, ...]:
        """Nodes that are in no module that is said to be gone, or new."""
        calls = self.modules.left if side == 0 else self.modules.right
        return tuple(
            node
            for node in nodes
            if not any((side, call) in lost for call in self.modules.stack(side, calls[node.key]))
        )

    def _add_region(self, region: ChangedRegion) -> None:
        side, nodes = (0, region.left) if region.left else (1, region.right)
        entry = self._entry(side, self.modules.common_call(side, (node.key for node in nodes)))
        entry.changes.append(
            NodeChange(_kind_of_change(region), tuple(map(node_ref, region.left)), tuple(map(node_ref, region.right)))
        )
        entry.weights.extend(self._replaced.changes(region))

    def _add_changed(self, node: Node, other: Node, fields: tuple[FieldChange, ...]) -> None:
        entry = self._entry(0, self.modules.left[node.key])
        entry.changes.append(NodeChange(Change.CHANGED, (node_ref(node),), (node_ref(other),), fields))
        self._mark(node.key, other.key)

    def _mark(self, key: str, other: str) -> None:
        self._states[0].setdefault(key, Change.CHANGED)
        self._states[1].setdefault(other, Change.CHANGED)

    def _add_constants(self, replaced: set[str]) -> None:
        """Constants of nodes that are paired, once for each pair of constants."""
        for constant_pairs in self._nodes.constants.values():
            readers = tuple(
                pair.reader for pair in constant_pairs if pair.reader is not None and pair.reader not in replaced
            )
            is_shown = bool(readers) or any(pair.reader is None for pair in constant_pairs)
            change = (
                self._weights.compare(constant_pairs[0].left, constant_pairs[0].right, readers) if is_shown else None
            )
            if change is not None:
                held = self._left.held.get(constant_pairs[0].left.name)
                call = self.modules.common_call(0, readers) if held is None else held
                self._entry(0, call).weights.append(change)
                for reader in readers:
                    self._mark(reader, self._pairs.right[reader].key)

    def _entry(self, side: int, call: str) -> _ModuleFindings:
        modules = self.modules
        left, right = (modules.reversed.get(call), call) if side == 1 else (call, modules.aligned.get(call))
        word = self.modules.label(left, right)
        return self._entries.setdefault(word, _ModuleFindings(left, right))

    # the model

    def _model_changes(self) -> Iterator[FieldChange]:
        left, right = self._left, self._right
        yield from compare_io("input", left.inputs, right.inputs, self._inputs)
        yield from compare_io("output", left.outputs, right.outputs, self._outputs)
        yield from self._returned
        used = [frozenset(node.domain for node in side.graph.nodes) for side in (left, right)]
        yield from compare_headers(left.proto, right.proto, used)

    def _renamed(self) -> Iterator[Renamed]:
        if not (self._left.module or self._right.module):
            yield from list_renamed_io("input", self._inputs)
            others = {change.what for change in self._returned}
            same = {name: now for name, now in self._outputs.items() if output_label(name) not in others}
            yield from list_renamed_io("output", same)
        shown: set[tuple[str, str]] = set()
        for call, other in self.modules.aligned.items():
            if self._left.relative(call) == self._right.relative(other):
                continue
            # Modules inside of a renamed one keep their own names.
            tail = call.rpartition(".")[2]
            above = call.rpartition(".")[0], other.rpartition(".")[0]
            shown.add((call, other))
            if above not in shown or tail != other.rpartition(".")[2]:
                yield Renamed("module", call, other)

    # modules

    def _in_order(self, gone: list[ModuleChange]) -> Iterator[ModuleChange]:
        changes = {self.modules.label(module.left, module.right): module for module in gone}
        for word, entry in self._entries.items():
            changes.setdefault(word, self._module_change(entry.left, entry.right, entry))
        for call, other in self.modules.aligned.items():
            classes = self.modules.class_of(0, call), self.modules.class_of(1, other)
            if all(classes) and classes[0] != classes[1]:
                changes.setdefault(
                    self.modules.label(call, other), self._module_change(call, other, _ModuleFindings(call, other))
                )
        places = _ModuleOrder(self.modules)
        yield from sorted(changes.values(), key=places.of)

    def _module_change(self, left: str | None, right: str | None, entry: _ModuleFindings) -> ModuleChange:
        classes = tuple(
            "" if call is None else self.modules.class_of(side, call) for side, call in enumerate((left, right))
        )
        return ModuleChange(
            Change.CHANGED,
            left,
            right,
            (classes[0], classes[1]),
            changes=tuple(entry.changes),
            weights=tuple(entry.weights),
        )

    # how much there is in common

    def _alike(self) -> float:
        nodes = len(self._left.flow.order) + len(self._right.flow.order)
        return 2 * len(self._pairs.right) / nodes if nodes else 1.0

    def _same_weights(self) -> float:
        flows = (self._left.flow, self._right.flow)
        left, right = ({weight.digest for weight in flow.list_weights(flow.order)} - {None} for flow in flows)
        whole = len(left | right)
        return len(left & right) / whole if whole else 1.0


class _ModuleOrder:
    """The order of modules: that of the first file; what is new behind what comes before it in the second."""

    def __init__(self, modules: ModuleAlignment) -> None:
        self.modules = modules
        self._left = _first_positions(modules, 0)
        self._right = _first_positions(modules, 1)

    def of(self, change: ModuleChange) -> tuple[float, float]:
        if change.left is not None:
            return self._left.get(change.left, -1.0), 0.0
        own = self._right.get(change.right or "", -1.0)
        before = [
            self._left[call] for call, other in self.modules.aligned.items()
            if call in self._left and self._right.get(other, own) < own
        ]  # fmt: skip
        return max(before, default=-1.0), 1.0 + own


def _first_positions(modules: ModuleAlignment, side: int) -> dict[str, float]:
    """By call: the place of its first node; a call comes before those inside of it."""
    calls = modules.left if side == 0 else modules.right
    first_positions: dict[str, float] = {}
    for node in modules.sides[side].flow.order:
        stack = modules.stack(side, calls[node.key])
        for depth, call in enumerate(stack):
            first_positions.setdefault(call, node.position + depth / (1 + len(stack)))
    return first_positions


def _kind_of_change(region: ChangedRegion) -> Change:
    if region.left and region.right:
        return Change.REPLACED
    return Change.REMOVED if region.left else Change.ADDED


def node_ref(node: Node) -> NodeRef:
    own = node.domain in ONNX_DOMAINS
    return NodeRef(node.key, node.name, node.op_type if own else f"{node.domain}.{node.op_type}")


def _summarize_side(side: DiffSide, nodes: int) -> Side:
    return Side(side.path, nodes, len(side.graph.initializers), side.source, side.exporter, side.module)
