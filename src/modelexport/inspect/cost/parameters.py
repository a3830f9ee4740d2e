"""Which parameters of the model each initializer holds.

Exporters and tools rename weights, transpose and merge them, store one twice that modules share, and store those once
that happen to be equal. Parameters that the file does not hold under their names are looked for among the initializers
that their modules read: those of the same size first, and what is left of them in what is left.

How many trained numbers each initializer has.

Weights of four bits may be packed into bytes, and quantization puts scales and zero points beside the weights: what an
initializer is, its place among the inputs of what reads it says.

Which module a node's cost is charged to, and which a weight belongs to.

Every node is charged to exactly one module, so that the parts add up to the whole. A node that does the work of several
is charged to the one whose weight it multiplies by: a convolution that a normalization was folded into remains the
convolution's. If that is none or several of them, to the one around them all, as in a profile.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

import onnx

from modelexport.graph.constants import NEVER_WEIGHTS
from modelexport.graph.index import Graph, Node, Tensor
from modelexport.inspect.cost.propagation import Unfolded
from modelexport.record.hierarchy import ModuleCall, TensorInfo, join, lineage_of
from modelexport.record.provenance import Provenance, is_within

Use = tuple[Node, int]

# Places of scales, zero points and the order of columns.
_BESIDE: Mapping[str, frozenset[int]] = {
    "QuantizeLinear": frozenset((1, 2)),
    "DequantizeLinear": frozenset((1, 2)),
    "QLinearConv": frozenset((1, 2, 4, 5, 6, 7)),
    "QLinearMatMul": frozenset((1, 2, 4, 5, 6, 7)),
    "QLinearAdd": frozenset((1, 2, 4, 5, 6, 7)),
    "QLinearMul": frozenset((1, 2, 4, 5, 6, 7)),
    "ConvInteger": frozenset((2, 3)),
    "MatMulInteger": frozenset((2, 3)),
    "DynamicQuantizeMatMul": frozenset((2, 3)),
    "MatMulIntegerToFloat": frozenset((2, 3, 4, 5)),
    "QGemm": frozenset((1, 2, 4, 5, 7, 8)),
    "QAttention": frozenset((3, 4, 6, 7)),
    "DynamicQuantizeLSTM": frozenset((8, 9, 10, 11)),
    "MatMulNBits": frozenset((2, 3, 4)),
    "MatMulBnb4": frozenset((2,)),
    "GatherBlockQuantized": frozenset((2, 3)),
    "QMoE": frozenset((3, 6, 9, 11, 12, 13)),
}
# Places of biases that are whole numbers of 32 bits, a type that other weights never have.
_WIDE = {"QLinearConv": 8, "QGemm": 6, "DequantizeLinear": 0}
# Places of weights that are packed into bytes.
_PACKED = {"GatherBlockQuantized": (0,), "QMoE": (2, 5, 8)}
_BITS = {"GatherBlockQuantized": "bits", "QMoE": "expert_weight_bits"}
_BYTE = 8


class Parameters:
    def __init__(self, unfolded: Unfolded) -> None:
        self._unfolded = unfolded
        self._uses: dict[str, list[Use]] = {}
        initializers = unfolded.graph.initializers
        for node in unfolded.graph.nodes:
            for place, name in enumerate(node.inputs):
                if name in initializers:
                    self._uses.setdefault(name, []).append((node, place))

    def uses(self, name: str) -> Sequence[Use]:
        """The nodes that read it, functions put in the place of their calls, and where they do."""
        return self._uses.get(name, ())

    def is_beside(self, name: str) -> bool:
        """Whether it is stored beside weights, and is no weight itself."""
        uses = self.uses(name)
        return bool(uses) and all(place in _BESIDE.get(node.op_type, ()) for node, place in uses)

    def may_be_weight(self, name: str, tensor: Tensor) -> bool:
        """By its type and size; exporters make constants of whole numbers and single numbers."""
        if self.is_beside(name):
            return False
        wide = tensor.dtype == onnx.TensorProto.INT32 and self._is_bias(name)
        return wide or (tensor.dtype not in NEVER_WEIGHTS and math.prod(tensor.shape) > 1)

    def numbers(self, name: str, tensor: Tensor) -> int:
        """How many numbers it holds, for what reads them."""
        return max((self._unpacked(tensor, use) for use in self.uses(name)), default=math.prod(tensor.shape))

    def _unpacked(self, tensor: Tensor, use: Use) -> int:
        node, place = use
        size = math.prod(tensor.shape)
        if place == 1 and node.op_type in ("MatMulNBits", "MatMulBnb4"):
            attributes = self._unfolded.attributes(node)
            return int(attributes.get("K", 0) * attributes.get("N", 0)) or size
        if place in _PACKED.get(node.op_type, ()) and tensor.dtype == onnx.TensorProto.UINT8:
            bits = self._unfolded.attributes(node).get(_BITS[node.op_type], 4)
            return size * (_BYTE // bits) if bits in (1, 2, 4, 8) else size
        return size

    def _is_bias(self, name: str) -> bool:
        return any(_WIDE.get(node.op_type) == place for node, place in self.uses(name))


class Charging:
    def __init__(self, graph: Graph, record: Provenance | None) -> None:
        self._graph = graph
        self._record = record

    def owners(self, key: str) -> tuple[ModuleCall, ...]:
        if self._record is None or key not in self._record.nodes:
            return ()
        return self._record.nodes[key].attribution.owners

    def place(self, key: str, calls: Sequence[str] = (), weights: Sequence[str] = ()) -> str | None:
        """The path of the module that a node is charged to; `calls` are those of functions that it runs for."""
        owners = self.owners_within(key, calls)
        if self._record is None or not owners:
            return self.place(calls[-1], calls[:-1]) if calls else None
        paths = list(dict.fromkeys(owner.path for owner in owners))
        if len(paths) > 1 and weights:
            paths = self._holding(paths, weights) or paths
        return paths[0] if len(paths) == 1 else self._record.hierarchy.common_module(owners)

    def owners_within(self, key: str, calls: Sequence[str]) -> tuple[ModuleCall, ...]:
        """Of the owners of a function's node, those that the calls around it are made for."""
        owners = self.owners(key)
        for call in calls:
            around = {owner.path for owner in self.owners(call)}
            inside = tuple(owner for owner in owners if any(is_within(owner.path, path) for path in around))
            owners = inside or owners
        return owners

    def _holding(self, paths: Sequence[str], weights: Sequence[str]) -> list[str]:
        """The one that has a parameter as large as the largest weight that is multiplied by."""
        if self._record is None:
            return []
        tensors = [self._graph.initializers[name] for name in weights if name in self._graph.initializers]
        size = max((math.prod(tensor.shape) for tensor in tensors), default=0)
        modules = self._record.hierarchy.modules
        found = [
            path for path in paths if path in modules and any(one.size == size for one in modules[path].parameters)
        ]
        return found if len(found) == 1 else []

    def holders(self, name: str) -> tuple[str | None, ...]:
        """The modules that a weight belongs to."""
        if self._record is None or name not in self._record.initializers:
            return (None,)
        owners = self._record.initializers[name].owners
        return tuple(dict.fromkeys(owner.path for owner in owners)) or (None,)


Place = str | None


@dataclass(frozen=True)
class Holding:
    """A parameter, or parts of several.

    parameter  its name; the initializer's own if it is none of the model's, or parts of several
    places     the modules that it belongs to
    """

    parameter: str
    places: tuple[Place, ...]
    size: int


class Holdings:
    def __init__(self, unfolded: Unfolded, record: Provenance | None, charging: Charging) -> None:
        self._unfolded = unfolded
        self._record = record
        self._charging = charging
        self._parameters = Parameters(unfolded)
        self._tensors = unfolded.graph.initializers
        self._left = {} if record is None else dict(self._absent())
        self._found = dict(self._all())

    def __getitem__(self, name: str) -> tuple[Holding, ...]:
        return self._found.get(name, ())

    def size(self, name: str) -> int:
        """How many trained numbers an initializer has, whatever they are called."""
        return max((one.size for one in self[name]), default=0)

    def _all(self) -> Iterator[tuple[str, tuple[Holding, ...]]]:
        weights = [name for name, tensor in self._tensors.items() if self._is_weight(name, tensor)]
        sizes = {name: self._parameters.numbers(name, self._tensors[name]) for name in weights}
        # Large ones first: two weights that were put together must not lose one of them to a constant of its size.
        for name in sorted(weights, key=lambda one: (one not in self._names, -sizes[one])):
            yield name, tuple(self._held(name, sizes[name]))

    def _is_weight(self, name: str, tensor: Tensor) -> bool:
        if self._record is None or name in self._names:
            return name in self._names or self._parameters.may_be_weight(name, tensor)
        is_buffer = name in self._record.hierarchy.tensor_owners
        return not is_buffer and self._parameters.may_be_weight(name, tensor)

    def _held(self, name: str, size: int) -> Iterator[Holding]:
        if self._record is None:
            yield Holding(name, (None,), size)
            return
        same = list(self._same(name, size))
        yield from same
        if name in self._names:
            yield Holding(self._names[name], self._owners[self._names[name]], size)
        elif not same:
            yield from self._again_or_parts(name, self._charging.holders(name), size)

    def _same(self, name: str, size: int) -> Iterator[Holding]:
        """Absent parameters of this size, one for each module that reads the initializer for itself."""
        readers = list(self._readers(name))
        everybody = set().union(*readers)
        served = {*self._owners.get(self._names.get(name, ""), ())}
        for reader in readers:
            found = "" if served & reader else self._take(reader, size, name)
            if found:
                tied = [path for path in self._owners[found] if path in everybody]
                served |= {*reader, *tied}
                yield Holding(found, tuple(tied), size)

    def _readers(self, name: str) -> Iterator[set[str]]:
        """The modules of each node that reads it, and those that it belongs to and that are inside of these."""
        holders = {place for place in self._charging.holders(name) if place is not None}
        inside: dict[str, set[str]] = {}
        for holder in holders:
            for above in lineage_of(holder):
                inside.setdefault(above, set()).add(holder)
        for node, _ in self._parameters.uses(name):
            calls, key = self._unfolded.origin(node)
            paths = {owner.path for owner in self._charging.owners_within(key, calls)}
            found = paths.union(*(inside.get(path, ()) for path in paths))
            holders -= found
            yield found
        yield holders

    def _take(self, reader: Iterable[str], size: int, name: str) -> str:
        """An absent parameter of just this size, of the innermost module that has one. A weight that is there under its
        name stands for others of that name alone."""
        called = name.rpartition(".")[2] if name in self._names else ""
        for path in sorted(reader, key=lambda one: (-one.count("."), one)):
            for one in self._of_module(path):
                full = self._full(path, one)
                if self._left.get(full) == size and called in ("", one.name):
                    del self._left[full]
                    return full
        return ""

    def _again_or_parts(self, name: str, places: tuple[Place, ...], size: int) -> Iterator[Holding]:
        """One more copy of a parameter, or parts of several that are put together, cut or folded."""
        paths = {path for path in places if path is not None}.union(*self._readers(name))
        full = {self._full(path, one): one.size for path in sorted(paths) for one in self._of_module(path)}
        again = [parameter for parameter, count in full.items() if count == size and parameter not in self._left]
        if len(again) == 1:
            yield Holding(again[0], places, size)
            return
        # Of what belongs to nobody, all that is known is that it may be any parameter which is not there.
        parts = self._drawn(full if paths else list(self._left), size)
        if parts:
            yield Holding(name, places, parts)

    def _drawn(self, parameters: Iterable[str], size: int) -> int:
        """How much of a size is there of these parameters; what is drawn from them is gone."""
        drawn = 0
        for parameter in parameters:
            part = min(size - drawn, self._left.get(parameter, 0))
            drawn += part
            if part:
                self._left[parameter] -= part
            if drawn == size:
                break
        return drawn

    def _of_module(self, path: str) -> tuple[TensorInfo, ...]:
        modules = {} if self._record is None else self._record.hierarchy.modules
        return modules[path].parameters if path in modules else ()

    def _full(self, path: str, parameter: TensorInfo) -> str:
        return self._names[join(path, parameter.name)]

    @cached_property
    def _names(self) -> Mapping[str, str]:
        """Every name of every parameter, mapped to the first of its names."""
        found: dict[str, str] = {}
        for module in () if self._record is None else self._record.hierarchy.modules.values():
            for parameter in module.parameters:
                names = {join(path, parameter.name) for path in (module.path, *module.aliases)} | {*parameter.tied}
                first = min(found.get(name, name) for name in names)
                found.update(dict.fromkeys(names, first))
        return found

    @cached_property
    def _owners(self) -> Mapping[str, tuple[str, ...]]:
        """The modules that have each parameter."""
        found: dict[str, tuple[str, ...]] = {}
        for path in () if self._record is None else self._record.hierarchy.modules:
            for parameter in self._of_module(path):
                name = self._full(path, parameter)
                found[name] = (*found.get(name, ()), path)
        return found

    def _absent(self) -> Iterator[tuple[str, int]]:
        """Parameters that the file does not hold under one of their names, with their sizes."""
        present = {self._names[name] for name in self._tensors if name in self._names}
        modules = {} if self._record is None else self._record.hierarchy.modules
        for path in modules:
            for parameter in self._of_module(path):
                if self._full(path, parameter) not in present:
                    yield self._full(path, parameter), parameter.size
