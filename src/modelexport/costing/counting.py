"""From the work of nodes to the cost of a file: nodes first, then modules, and what nobody knows."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

import onnx

from modelexport.costing.charging import Charging
from modelexport.costing.piece import Piece
from modelexport.costing.propagation import Propagation
from modelexport.graph.index import Graph, Node, Tensor
from modelexport.graph.weights import storage_size
from modelexport.record.cost import MEASURES, ZERO, Amounts, Axis, Cost, Kind, ModuleCost, NodeCost
from modelexport.record.hierarchy import lineage_of
from modelexport.record.polynomial import Polynomial, sizes_sum
from modelexport.record.provenance import Provenance

_CALLED = "its function is counted node by node"
_UNCALLED = "nothing calls the function that it is in"


def count(file: str, proto: onnx.ModelProto, graph: Graph, record: Provenance | None, at: Mapping[str, int]) -> Cost:
    """What a graph costs. Without a record, everything belongs to no module."""
    spread = Propagation(proto, graph, at)
    pieces = spread.pieces()
    axes = tuple(
        [Axis(name, source) for name, source in spread.known.axes.given.items()]
        + [Axis(name, source, given=False) for name, source in spread.known.axes.found.items()]
    )
    return Counting(graph, record, pieces, at).cost(file, axes)


@dataclass
class _Sum:
    nodes: set[str] = field(default_factory=set)
    sizes: dict[str, list[Polynomial]] = field(default_factory=dict)
    unknown: dict[str, set[str]] = field(default_factory=dict)
    parameters: int = 0
    weight_bytes: int = 0

    def add(self, key: str, measure: str, size: Polynomial | None) -> None:
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
            parameters=self.parameters,
            weight_bytes=self.weight_bytes,
            activation_bytes=sums.get("activation_bytes", ZERO),
            unknown={measure: len(self.unknown[measure]) for measure in MEASURES if measure in self.unknown},
        )


class Counting:
    def __init__(self, graph: Graph, record: Provenance | None, pieces: Sequence[Piece], at: Mapping[str, int]) -> None:
        self._graph = graph
        self._record = record
        self._at = at
        self._charging = Charging(graph, record)
        self._pieces: dict[str, list[Piece]] = {}
        for piece in pieces:
            self._pieces.setdefault(piece.key, []).append(piece)

    def cost(self, file: str, axes: tuple[Axis, ...]) -> Cost:
        own: dict[str | None, _Sum] = {}
        total: dict[str | None, _Sum] = {}
        whole = _Sum()
        nodes = []
        for node in self._graph.nodes:
            found = self._node(node)
            nodes.append(found)
            for path, piece in self._charged(node):
                for one in (whole, own.setdefault(path, _Sum()), *(total.setdefault(up, _Sum()) for up in _up(path))):
                    self._add(one, node.key, piece)
        self._add_weights(own, total, whole)
        return Cost(
            file=file,
            axes=axes,
            at=dict(self._at),
            nodes=tuple(nodes),
            modules=tuple(self._modules(own, total)),
            total=whole.frozen(),
            notes=tuple(self._notes()),
        )

    def _charged(self, node: Node) -> Iterator[tuple[str | None, Piece | None]]:
        pieces = self._pieces.get(node.key)
        if not pieces:
            yield self._charging.place(node.key, (), ()), None
            return
        yield from ((self._charging.place(node.key, one.calls, one.weights), one) for one in pieces)

    def _add(self, one: _Sum, key: str, piece: Piece | None) -> None:
        one.nodes.add(key)
        if piece is not None:
            for measure, size in self._sizes(piece).items():
                one.add(key, measure, size)

    def _sizes(self, piece: Piece) -> dict[str, Polynomial | None]:
        sizes = {"flops": piece.work.flops, "other": piece.work.other, "activation_bytes": piece.makes}
        return {measure: None if size is None else (size * piece.times).at(self._at) for measure, size in sizes.items()}

    def _node(self, node: Node) -> NodeCost:
        pieces = self._pieces.get(node.key, [])
        sizes = [self._sizes(piece) for piece in pieces]
        read = {name for piece in pieces for name in piece.reads}
        places = {path for path, _ in self._charged(node)}
        reason = next((piece.work.reason for piece in pieces if piece.work.reason), "")
        called = f"{node.domain}::{node.op_type}" in self._graph.yields
        if not pieces:
            reason = _CALLED if called else _UNCALLED
        return NodeCost(
            key=node.key,
            name=node.name,
            op_type=node.op_type,
            kind=pieces[0].work.kind if pieces else Kind.CONTROL,
            owners=self._charging.owners(node.key),
            module=places.pop() if len(places) == 1 else self._charging.place(node.key, (), ()),
            flops=_total(one["flops"] for one in sizes),
            other=_total(one["other"] for one in sizes),
            parameters=sum(self._charging.parameters(name) for name in read),
            weight_bytes=sum(nbytes(self._graph.initializers[name]) for name in read) + _constant_bytes(node),
            activation_bytes=_total(one["activation_bytes"] for one in sizes),
            times=sizes_sum(piece.times for piece in pieces).at(self._at),
            reason=reason or next((_unknown_bytes(piece) for piece in pieces if piece.makes is None), ""),
        )

    def _add_weights(self, own: dict[str | None, _Sum], total: dict[str | None, _Sum], whole: _Sum) -> None:
        """A weight is of all modules that own it, and once of each module around."""
        for name, tensor in self._graph.initializers.items():
            paths = self._charging.holders(name)
            around = {up for path in paths for up in _up(path)}
            sums = [own.setdefault(path, _Sum()) for path in paths] + [total.setdefault(up, _Sum()) for up in around]
            for one in [*sums, whole]:
                one.parameters += self._charging.parameters(name)
                one.weight_bytes += nbytes(tensor)
        for node in self._graph.nodes:
            size = _constant_bytes(node)
            if size:
                path = self._charging.place(node.key, (), ())
                for one in (whole, own.setdefault(path, _Sum()), *(total.setdefault(up, _Sum()) for up in _up(path))):
                    one.weight_bytes += size

    def _modules(self, own: Mapping[str | None, _Sum], total: Mapping[str | None, _Sum]) -> Iterator[ModuleCost]:
        empty = _Sum()
        if self._record is not None:
            hierarchy = self._record.hierarchy
            for path, module in hierarchy.modules.items():
                yield ModuleCost(
                    path=path,
                    class_name=module.class_name,
                    calls=hierarchy.call_counts.get(path, 0),
                    own=own.get(path, empty).frozen(),
                    total=total.get(path, empty).frozen(),
                )
        if None in own:
            yield ModuleCost(None, "", 0, own[None].frozen(), own[None].frozen())

    def _notes(self) -> Iterator[str]:
        if self._record is None:
            yield "the file has no record of its modules: everything is counted, and belongs to none"


def _up(path: str | None) -> Iterable[str | None]:
    return [None] if path is None else list(lineage_of(path))


def _total(sizes: Iterable[Polynomial | None]) -> Polynomial | None:
    found = list(sizes)
    return None if None in found else sizes_sum(size for size in found if size is not None)


def _unknown_bytes(piece: Piece) -> str:
    return piece.work.reason or "the shape or the type of what it makes is not known"


def nbytes(tensor: Tensor) -> int:
    return storage_size(onnx.TensorProto(data_type=tensor.dtype, dims=tensor.shape))


def _constant_bytes(node: Node) -> int:
    """Of the numbers that a Constant holds; `constant` has a head before them, which says their type and shape."""
    if node.constant is None:
        return 0
    head = node.constant[: node.constant.index(b"))") + 2] if b"))" in node.constant else node.constant
    return len(node.constant) - len(head)
