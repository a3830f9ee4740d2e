"""From the work of nodes to the cost of a file.

Sums by module: of what is charged to it itself, and of that with all modules inside of it.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

import onnx

from modelexport.graph.functions import Inlined
from modelexport.graph.index import Graph, Node
from modelexport.graph.protos import data_of
from modelexport.inspect.cost.parameters import Charging, Holdings
from modelexport.inspect.cost.propagation import Propagation
from modelexport.inspect.cost.rules import Piece
from modelexport.record.hierarchy import Hierarchy, lineage_of
from modelexport.record.polynomial import Polynomial, sizes_sum
from modelexport.record.provenance import Provenance
from modelexport.record.results.cost import MEASURES, ONCE, ZERO, Amounts, Axis, Cost, Kind, ModuleCost, NodeCost

Place = str | None


@dataclass
class _Sum:
    nodes: set[str] = field(default_factory=set)
    sizes: dict[str, list[Polynomial]] = field(default_factory=dict)
    unknown: dict[str, set[str]] = field(default_factory=dict)
    parameters: dict[str, int] = field(default_factory=dict)
    weight_bytes: int = 0

    def add(self, key: str, sizes: Mapping[str, Polynomial | None]) -> None:
        self.nodes.add(key)
        for measure, size in sizes.items():
            if size is None:
                self.unknown.setdefault(measure, set()).add(key)
            elif size:
                self.sizes.setdefault(measure, []).append(size)

    def frozen(self) -> Amounts:
        sums = {measure: sizes_sum(sizes) for measure, sizes in self.sizes.items()}
        return Amounts(
            nodes=len(self.nodes),
            flops=sums.get("flops", ZERO),
            other=sums.get("other", ZERO),
            parameters=sum(self.parameters.values()),
            weight_bytes=self.weight_bytes,
            activation_bytes=sums.get("activation_bytes", ZERO),
            unknown={measure: len(self.unknown[measure]) for measure in MEASURES if measure in self.unknown},
        )


class Sums:
    """By the path of a module; None for what belongs to none."""

    def __init__(self) -> None:
        self._own: dict[Place, _Sum] = {}
        self._total: dict[Place, _Sum] = {}
        self._whole = _Sum()

    def add(self, place: Place, key: str, sizes: Mapping[str, Polynomial | None]) -> None:
        """The cost of a node."""
        for one in self._concerned([place]):
            one.add(key, sizes)

    def add_weight(self, places: Iterable[Place], nbytes: int) -> None:
        """A weight is of all modules that own it, and counts once for each module around them."""
        for one in self._concerned(places):
            one.weight_bytes += nbytes

    def add_parameter(self, places: Iterable[Place], name: str, size: int) -> None:
        """As a weight; what the file holds twice is still one."""
        for one in self._concerned(places):
            one.parameters[name] = max(size, one.parameters.get(name, 0))

    def _concerned(self, places: Iterable[Place]) -> Iterator[_Sum]:
        paths = list(places)
        around = {above for path in paths for above in ([None] if path is None else lineage_of(path))}
        yield self._whole
        yield from (self._own.setdefault(path, _Sum()) for path in paths)
        yield from (self._total.setdefault(path, _Sum()) for path in around)

    @property
    def whole(self) -> Amounts:
        return self._whole.frozen()

    def modules(self, hierarchy: Hierarchy | None) -> Iterator[ModuleCost]:
        """In the order of the hierarchy; what belongs to no module comes last."""
        for path, module in hierarchy.modules.items() if hierarchy is not None else ():
            calls = 0 if hierarchy is None else hierarchy.call_counts.get(path, 0)
            yield ModuleCost(path, module.class_name, calls, *self._amounts(path))
        if None in self._own:
            yield ModuleCost(None, "", 0, *self._amounts(None))

    def _amounts(self, place: Place) -> tuple[Amounts, Amounts]:
        own, total = (sums.get(place, _Sum()).frozen() for sums in (self._own, self._total))
        return own, total


_CALLED = "its function is counted node by node"
_UNCALLED = "nothing calls the function that it is in"
_UNSHAPED = "the shape or the type of what it makes is not known"
_UNTAGGED = "the file has no record of its modules: everything is counted, and belongs to none"


def count(
    file: str,
    proto: onnx.ModelProto,
    graph: Graph,
    record: Provenance | None,
    at: Mapping[str, int],
    inlined: Inlined | None = None,
) -> Cost:
    """What a graph costs. Without a record, everything belongs to no module.

    inlined  the graph without functions, where that is known already
    """
    spread = Propagation(proto, graph, at, inlined)
    pieces = spread.pieces()
    charging = Charging(graph, record)
    counting = Counting(graph, charging, Holdings(spread.unfolded, record, charging), pieces)
    sums = Sums()
    nodes = tuple(counting.nodes(sums))
    counting.add_weights(sums)
    axes = spread.known.axes
    return Cost(
        file=file,
        axes=tuple(
            Axis(name, source, given=name in axes.given) for name, source in {**axes.given, **axes.found}.items()
        ),
        at=dict(at),
        nodes=nodes,
        modules=tuple(sums.modules(None if record is None else record.hierarchy)),
        total=sums.whole,
        notes=(_UNTAGGED,) if record is None else (),
    )


class Counting:
    def __init__(self, graph: Graph, charging: Charging, holdings: Holdings, pieces: Sequence[Piece]) -> None:
        self._graph = graph
        self._charging = charging
        self._holdings = holdings
        self._pieces: dict[str, list[Piece]] = {}
        for piece in pieces:
            self._pieces.setdefault(piece.key, []).append(piece)

    def nodes(self, sums: Sums) -> Iterator[NodeCost]:
        """The cost of each node, which is added to the sums of its modules."""
        for node in self._graph.nodes:
            pieces = self._pieces.get(node.key, [])
            sizes = [_sizes(piece) for piece in pieces]
            places = [self._charging.place(node.key, piece.calls, piece.weights) for piece in pieces]
            if not pieces:
                places, sizes = [self._charging.place(node.key)], [{}]
            for place, one in zip(places, sizes, strict=True):
                sums.add(place, node.key, one)
            module = places[0] if len(set(places)) == 1 else self._charging.place(node.key)
            yield self._node(node, pieces, sizes if pieces else [], module)

    def _node(
        self, node: Node, pieces: Sequence[Piece], sizes: Sequence[Mapping[str, Polynomial | None]], module: str | None
    ) -> NodeCost:
        read = {name for piece in pieces for name in piece.reads}
        return NodeCost(
            key=node.key,
            name=node.name,
            op_type=node.op_type,
            kind=pieces[0].work.kind if pieces else Kind.CONTROL,
            owners=self._charging.owners(node.key),
            module=module,
            flops=_total(one["flops"] for one in sizes),
            other=_total(one["other"] for one in sizes),
            parameters=sum(map(self._holdings.size, read)),
            weight_bytes=sum(self._graph.initializers[name].nbytes for name in read) + _constant_bytes(node),
            activation_bytes=_total(one["activation_bytes"] for one in sizes),
            times=sizes_sum(piece.times for piece in pieces),
            reason=self._reason(node, pieces),
        )

    def _reason(self, node: Node, pieces: Sequence[Piece]) -> str:
        if not pieces:
            return _CALLED if node.function in self._graph.yields else _UNCALLED
        said = next((piece.work.reason for piece in pieces if piece.work.reason), "")
        return said or (_UNSHAPED if any(piece.makes is None for piece in pieces) else "")

    def add_weights(self, sums: Sums) -> None:
        for name, tensor in self._graph.initializers.items():
            sums.add_weight(self._charging.holders(name), tensor.nbytes)
            for one in self._holdings[name]:
                sums.add_parameter(one.places, one.parameter, one.size)
        for node in self._graph.nodes:
            if node.constant is not None:
                sums.add_weight([self._charging.place(node.key)], _constant_bytes(node))


def _sizes(piece: Piece) -> dict[str, Polynomial | None]:
    sizes = {"flops": piece.work.flops, "other": piece.work.other, "activation_bytes": piece.makes}
    if piece.times == ONCE:
        return sizes
    return {measure: None if size is None else size * piece.times for measure, size in sizes.items()}


def _total(sizes: Iterable[Polynomial | None]) -> Polynomial | None:
    found = list(sizes)
    if len(found) == 1:
        return found[0]
    return None if None in found else sizes_sum(size for size in found if size is not None)


def _constant_bytes(node: Node) -> int:
    """Of the numbers that a Constant holds."""
    return 0 if node.constant is None else len(data_of(node.constant))
