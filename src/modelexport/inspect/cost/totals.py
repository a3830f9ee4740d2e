"""Totals: from the work of nodes to the cost of every node, every module and the file.

Nodes, parameters and bytes of weights are counted as all verbs count them (`graph/module_totals.py`). What a node
*does* is charged to exactly one module, its paying module, so that the parts add up to the whole:

    Conv, owned by conv1 and bn1      FLOPs go to conv1: the Conv multiplies by its weight
    Add, owned by layer1 and layer2   operations go to the module around both
    node of a function                what it does for each call goes to a module of that call
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from modelexport.graph.file.reading import ModelFile, with_small_external_data
from modelexport.graph.functions import InlinedModel
from modelexport.graph.index import Graph, Node
from modelexport.graph.module_totals import ModuleAmounts, ModuleTotals
from modelexport.graph.parameters import CallOwners, ModulePath, ParameterMatching, owners_by_path
from modelexport.graph.protos import data_of
from modelexport.inspect.cost.propagation import Propagation
from modelexport.inspect.cost.rules import NodeWork
from modelexport.record.hierarchy import ModuleCall, lineage_of
from modelexport.record.polynomial import Polynomial, sizes_sum
from modelexport.record.provenance import Provenance
from modelexport.record.results.cost import MEASURES, ONCE, ZERO, Amounts, Cost, Kind, ModuleCost, NodeCost, OpenAxis

_CALLED = "its function is counted node by node"
_UNCALLED = "nothing calls the function that it is in"
_UNSHAPED = "the shape or the type of what it makes is not known"
_UNTAGGED = "the file has no record of its modules: everything is counted, and belongs to none"
_Sizes = Mapping[str, Polynomial | None]


def count(path: str, file: ModelFile, record: Provenance | None, at: Mapping[str, int]) -> Cost:
    """What the graph of a file costs. Without a record, everything belongs to no module."""
    graph, proto = file.graph, with_small_external_data(file)
    model = file.inlined if proto is file.proto else InlinedModel(proto, file.inlined.inlined)
    propagation = Propagation(proto, graph, at, model)
    works: dict[str, list[NodeWork]] = {}
    for work in propagation.node_works():
        works.setdefault(work.key, []).append(work)
    matching = ParameterMatching(graph, record, model)
    counting = _Counting(graph, record, matching, works, owners_by_path(record))
    charges = _Charges()
    nodes = tuple(counting.charge_nodes(charges))
    charges.sum_up()
    totals = ModuleTotals.of(graph, record, matching)
    axes = propagation.values.axes
    sources = {**axes.given, **axes.dependent}
    return Cost(
        file=path,
        axes=tuple(OpenAxis(name, source, given=name in axes.given) for name, source in sources.items()),
        at=dict(at),
        nodes=nodes,
        modules=tuple(_module_costs(record, totals, charges)),
        total=charges.whole.amounts(totals.whole),
        notes=(_UNTAGGED,) if record is None else (),
    )


@dataclass
class _Charge:
    """What is charged to a module: sizes by measure, and the nodes of which they are not known."""

    sizes: dict[str, list[Polynomial]] = field(default_factory=dict)
    unknown: dict[str, set[str]] = field(default_factory=dict)
    constant_bytes: int = 0

    def add(self, key: str, sizes: _Sizes) -> None:
        """A node that runs for several calls is unknown once, however often it runs."""
        for measure, size in sizes.items():
            if size is None:
                self.unknown.setdefault(measure, set()).add(key)
            elif size:
                self.sizes.setdefault(measure, []).append(size)

    def add_up(self) -> None:
        self.sizes = {measure: [sizes_sum(sizes)] for measure, sizes in self.sizes.items()}

    def include(self, other: _Charge) -> None:
        for measure, sizes in other.sizes.items():
            self.sizes.setdefault(measure, []).extend(sizes)
        for measure, keys in other.unknown.items():
            self.unknown.setdefault(measure, set()).update(keys)
        self.constant_bytes += other.constant_bytes

    def amounts(self, counted: ModuleAmounts) -> Amounts:
        """With nodes, parameters and weights as all verbs count them."""
        # Added up at the end: polynomials of thousands of nodes in one go, instead of a longer one for each node.
        sums = {measure: sizes_sum(sizes) for measure, sizes in self.sizes.items()}
        return Amounts(
            nodes=counted.nodes,
            flops=sums.get("flops", ZERO),
            other=sums.get("other", ZERO),
            parameters=counted.parameters,
            weight_bytes=counted.bytes + self.constant_bytes,
            activation_bytes=sums.get("activation_bytes", ZERO),
            unknown={measure: len(self.unknown[measure]) for measure in MEASURES if measure in self.unknown},
        )


class _Charges:
    """By the path of a module, of itself and with all inside of it; None for what belongs to no module."""

    def __init__(self) -> None:
        self.own: dict[ModulePath, _Charge] = {}
        self.total: dict[ModulePath, _Charge] = {}
        self.whole = _Charge()

    def to(self, path: ModulePath) -> _Charge:
        """Where what a node of this module takes is charged."""
        charge = self.own.get(path)
        if charge is None:
            charge = self.own[path] = _Charge()
        return charge

    def sum_up(self) -> None:
        """Charge the file and each module around with what every module takes itself: once, and not node by node."""
        for path, charge in self.own.items():
            charge.add_up()
            self.whole.include(charge)
            for above in [None] if path is None else lineage_of(path):
                self.total.setdefault(above, _Charge()).include(charge)


def _module_costs(record: Provenance | None, totals: ModuleTotals, charges: _Charges) -> Iterator[ModuleCost]:
    """In the order of the hierarchy; what belongs to no module comes last."""

    def amounts(path: ModulePath) -> tuple[Amounts, Amounts]:
        own, total = charges.own.get(path, _Charge()), charges.total.get(path, _Charge())
        return own.amounts(totals.own(path)), total.amounts(totals.total(path))

    if record is not None:
        calls = record.hierarchy.call_counts
        for path, module in record.hierarchy.modules.items():
            yield ModuleCost(path, module.class_name, calls.get(path, 0), *amounts(path))
    # What belongs to no module has a row of its own, if there is any, so that the rows add up.
    stray = totals.own(None)
    if None in charges.own or stray.nodes or stray.bytes:
        yield ModuleCost(None, "", 0, *amounts(None))


@dataclass(frozen=True)
class _Counting:
    """Charges nodes of `graph`. `works` is by the key of the node: nothing for a function that nothing calls."""

    graph: Graph
    record: Provenance | None
    matching: ParameterMatching
    works: Mapping[str, Sequence[NodeWork]]
    owners: CallOwners
    payers: dict[tuple[int, tuple[str, ...]], ModulePath] = field(default_factory=dict)

    def charge_nodes(self, charges: _Charges) -> Iterator[NodeCost]:
        """The cost of each node, which is charged to its modules."""
        for node in self.graph.nodes:
            works = self.works.get(node.key, [])
            sizes = [_sizes(work) for work in works]
            modules = [self._paying(node.key, work.calls, work.weights) for work in works]
            # A node of a function is charged for each of its calls, to a module of that call.
            for module, size in zip(modules, sizes, strict=True):
                charges.to(module).add(node.key, size)
            if node.constant is not None:
                charges.to(self._paying(node.key)).constant_bytes += _constant_bytes(node)
            yield self._cost_of(node, sizes, modules[0] if len(set(modules)) == 1 else self._paying(node.key))

    def _paying(self, key: str, calls: Sequence[str] = (), weights: Sequence[str] = ()) -> ModulePath:
        """The path of the module that what a node does is charged to.

        calls    keys of the calls of functions that it runs for, from the outside in
        weights  initializers that it multiplies by
        """
        number = self.owners.find_number(key, calls)
        owners = self.owners.numbered(number)
        if not owners:
            return self._paying(calls[-1], calls[:-1]) if calls else None
        # Of 200,000 calls most are of the same few sets of modules.
        asked = number, tuple(weights)
        if asked not in self.payers:
            self.payers[asked] = self._choose_payer(owners, weights)
        return self.payers[asked]

    def _choose_payer(self, owners: Sequence[ModuleCall], weights: Sequence[str]) -> ModulePath:
        assert self.record is not None
        paths = list(dict.fromkeys(owner.path for owner in owners))
        if len(paths) > 1 and weights:
            initializers, modules = self.graph.initializers, self.record.hierarchy.modules
            sizes = (math.prod(initializers[name].shape) for name in weights if name in initializers)
            # A tool that folds a BatchNorm into a Conv scales its weight: the size is still that of the convolution's.
            size = max(sizes, default=0)
            by_path = {path: modules[path].parameters for path in paths if path in modules}
            holders = [path for path, held in by_path.items() if any(tensor.size == size for tensor in held)]
            paths = holders if len(holders) == 1 else paths
        return paths[0] if len(paths) == 1 else self.record.hierarchy.common_module(owners)

    def _cost_of(self, node: Node, sizes: Sequence[_Sizes], module: ModulePath) -> NodeCost:
        """One row for each node of the file: what all calls of its function take is added up."""
        works = self.works.get(node.key, ())
        read = {name for work in works for name in work.reads}
        reason = next((work.work.reason for work in works if work.work.reason), "")
        if not works:
            reason = _CALLED if node.function in self.graph.body_outputs else _UNCALLED
        elif not reason and any(work.makes is None for work in works):
            reason = _UNSHAPED
        return NodeCost(
            key=node.key,
            name=node.name,
            op_type=node.op_type,
            kind=works[0].work.kind if works else Kind.CONTROL,
            owners=self.owners.find(node.key),
            module=module,
            flops=_total(size["flops"] for size in sizes),
            other=_total(size["other"] for size in sizes),
            parameters=sum(map(self.matching.size, read)),
            weight_bytes=sum(self.graph.initializers[name].nbytes for name in read) + _constant_bytes(node),
            activation_bytes=_total(size["activation_bytes"] for size in sizes),
            times=sizes_sum(work.times for work in works),
            reason=reason,
        )


def _sizes(work: NodeWork) -> dict[str, Polynomial | None]:
    """What a node takes in all of its runs, by measure."""
    sizes = {"flops": work.work.flops, "other": work.work.other, "activation_bytes": work.makes}
    if work.times == ONCE:
        return sizes
    return {measure: None if size is None else size * work.times for measure, size in sizes.items()}


def _total(sizes: Iterable[Polynomial | None]) -> Polynomial | None:
    """Unknown if a part is unknown: a sum of the rest would look like an answer."""
    parts = list(sizes)
    if len(parts) == 1:
        return parts[0]
    return None if None in parts else sizes_sum(size for size in parts if size is not None)


def _constant_bytes(node: Node) -> int:
    """Of the numbers that a Constant holds."""
    return 0 if node.constant is None else len(data_of(node.constant))
