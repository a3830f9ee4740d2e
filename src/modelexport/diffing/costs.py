"""What the modules that differ cost in both files."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from math import prod

import onnx

from modelexport.diffing.modules import Modules
from modelexport.graph.index import Node
from modelexport.record.changes import Change, CostChange, Diff, ModuleChange
from modelexport.record.cost import NodeCost
from modelexport.record.hierarchy import ROOT
from modelexport.record.polynomial import Polynomial, sizes_sum

_Costs = Mapping[str, NodeCost]


def with_costs(diff: Diff, modules: Modules, costs: tuple[_Costs, _Costs]) -> Diff:
    """The diff with what differs in the cost of everything, and of each module in which something does."""
    wanted = {(0, one.left) for one in diff.modules} | {(1, one.right) for one in diff.modules} | {(0, ROOT), (1, ROOT)}
    inside = _inside(modules, wanted)
    sums = {place: dict(_sums(nodes, modules, place[0], costs[place[0]])) for place, nodes in inside.items()}
    total = _change(sums.get((0, ROOT), {}), sums.get((1, ROOT), {}))
    found = tuple(_with_cost(one, sums) for one in diff.modules)
    return replace(diff, cost=total, modules=found)


def _with_cost(module: ModuleChange, sums: Mapping[tuple[int, str | None], Mapping[str, Polynomial]]) -> ModuleChange:
    if module.change is not Change.CHANGED or not module.path:
        return module  # of a module that is gone its size says enough; that of the model is said of the whole
    return replace(module, cost=_change(sums.get((0, module.left), {}), sums.get((1, module.right), {})))


def _inside(modules: Modules, wanted: set[tuple[int, str | None]]) -> dict[tuple[int, str | None], list[Node]]:
    found: dict[tuple[int, str | None], list[Node]] = {}
    for side, calls in enumerate((modules.left, modules.right)):
        for node in modules.sides[side].flow.order:
            for call in {*modules.stack(side, calls[node.key]), ROOT}:
                if (side, call) in wanted:
                    found.setdefault((side, call), []).append(node)
    return found


def _sums(nodes: list[Node], modules: Modules, side: int, costs: _Costs) -> Iterator[tuple[str, Polynomial]]:
    """What is not known of a node is not known of the whole."""
    known = [costs.get(node.key) for node in nodes]
    for measure in ("flops", "activation_bytes"):
        sizes = [None if one is None else _size(one, measure) for one in known]
        if None not in sizes:
            yield measure, sizes_sum(size for size in sizes if size is not None)
    flow = modules.sides[side].flow
    read = {one.name: one for node in nodes for _, one in flow.read_constants(node) if not one.small}
    yield "parameters", Polynomial.of(sum(prod(one.shape) for one in read.values()))
    yield "weight_bytes", Polynomial.of(sum(prod(one.shape) * _width(one.dtype) for one in read.values()))


def _size(cost: NodeCost, measure: str) -> Polynomial | None:
    size = cost.flops if measure == "flops" else cost.activation_bytes
    return None if size is None else size


def _width(dtype: int) -> int:
    return onnx.helper.tensor_dtype_to_np_dtype(dtype).itemsize if dtype else 0


def _change(one: Mapping[str, Polynomial], other: Mapping[str, Polynomial]) -> CostChange | None:
    both = {what: (one[what], other[what]) for what in one if what in other and one[what] != other[what]}
    # Axes of other names cannot be told from other sizes.
    same = {what: pair for what, pair in both.items() if pair[0].axes == pair[1].axes}
    return CostChange(same) if same else None
