"""Parameter matching: which parameters of the model each initializer of a file holds, and how many numbers of them.

Exporters and tools rename weights, transpose and merge them, store one twice that modules share, and store those once
that happen to be equal. So an initializer is one of these, in this order:

    name of a parameter (or of one that it is tied to)     that parameter                     fc.weight
    as large as an absent parameter of a reading module    that parameter                     onnx::MatMul_12
    as large as one that is there already                  one more copy of it                fc.weight_transposed
    anything else of a module that lacks parameters        parts of those, merged or cut      qkv_weight
    scales, zero points, whole numbers, single numbers     none: a constant                   x_scale

All verbs that count parameters ask here. `verify` does not: it looks at the numbers themselves (decision 0009).
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache, cached_property
from operator import attrgetter
from typing import TYPE_CHECKING

import onnx

from modelexport.graph.algorithms import group_by_key
from modelexport.graph.index import Graph, Node, Tensor
from modelexport.record.hierarchy import Hierarchy, ModuleCall, TensorInfo, join, lineage_of
from modelexport.record.provenance import Provenance

if TYPE_CHECKING:
    from modelexport.graph.functions import Inlined, InlinedModel

ModulePath = str | None
Use = tuple[Node, int]

# Exporters make constants of these types for shapes, indices and masks; trained weights never have them.
_NEVER_WEIGHTS = frozenset(map(onnx.TensorProto.DataType.Value, ["INT64", "INT32", "BOOL", "STRING"]))
# Inputs that are scales, zero points, or the order of columns.
_QUANTIZATION_INPUTS: Mapping[str, tuple[int, ...]] = {
    **dict.fromkeys(("QuantizeLinear", "DequantizeLinear"), (1, 2)),
    **dict.fromkeys(("QLinearConv", "QLinearMatMul", "QLinearAdd", "QLinearMul"), (1, 2, 4, 5, 6, 7)),
    **dict.fromkeys(("ConvInteger", "MatMulInteger", "DynamicQuantizeMatMul", "GatherBlockQuantized"), (2, 3)),
    "MatMulIntegerToFloat": (2, 3, 4, 5),
    "QGemm": (1, 2, 4, 5, 7, 8),
    "QAttention": (3, 4, 6, 7),
    "DynamicQuantizeLSTM": (8, 9, 10, 11),
    "MatMulNBits": (2, 3, 4),
    "MatMulBnb4": (2,),
    "QMoE": (3, 6, 9, 11, 12, 13),
}
# Inputs that are biases of 32-bit integers, a type that other weights never have.
_INTEGER_BIAS = {"QLinearConv": 8, "QGemm": 6, "DequantizeLinear": 0}
# Inputs that are weights packed into bytes, and the attribute that says how many bits each has.
_PACKED_INPUTS = {"GatherBlockQuantized": (0,), "QMoE": (2, 5, 8)}
_BITS = {"GatherBlockQuantized": "bits", "QMoE": "expert_weight_bits"}
_BITS_OF_A_BYTE = 8


@dataclass(frozen=True)
class HeldParameter:
    """A parameter that an initializer holds, or parts of several.

    parameter  its name; the initializer's own if it is none of the model's, or parts of several
    modules    paths of the modules that it belongs to; None for no module
    """

    parameter: str
    modules: tuple[ModulePath, ...]
    size: int


def initializer_modules(record: Provenance | None, name: str) -> tuple[ModulePath, ...]:
    if record is None or name not in record.initializers:
        return (None,)
    return tuple(dict.fromkeys(owner.path for owner in record.initializers[name].owners)) or (None,)


class CallOwners:
    """Of the owners of a node, those that the calls of functions around it are made for.

    A function that stands for `a.conv` and `b.conv` does the work of `a.conv` where the node of `a` calls it.

    Memoized: a small file has 200,000 calls, a hundred deep, with hundreds of modules each, and few sets of modules.

    around  of an owner: what it lies in, itself included. A call is for an owner that lies in one of its own
    """

    def __init__(
        self,
        owners_of: Callable[[str], tuple[ModuleCall, ...]],
        around: Callable[[ModuleCall], Collection[object]],
        own: Callable[[ModuleCall], object],
    ) -> None:
        self._owners_of, self._around, self._own = owners_of, around, own
        # Sets of owners by number, and what is left of one in a call that belongs to another.
        self._sets: list[tuple[ModuleCall, ...]] = []
        self._numbers: dict[tuple[ModuleCall, ...], int] = {}
        self._number_of = cache(self._number_key)
        self._narrow = cache(self._narrow_owners)

    def find(self, key: str, calls: Sequence[str] = ()) -> tuple[ModuleCall, ...]:
        """
        key    of the node in its function
        calls  keys of the calls around it, from the outside in
        """
        return self.numbered(self.find_number(key, calls))

    def find_number(self, key: str, calls: Sequence[str] = ()) -> int:
        """The number of the set of owners, which is quicker to look up by than hundreds of owners."""
        owners = self._number_of(key)
        for call in calls:
            owners = self._narrow(owners, self._number_of(call))
        return owners

    def numbered(self, number: int) -> tuple[ModuleCall, ...]:
        return self._sets[number]

    def _number_key(self, key: str) -> int:
        return self._number(self._owners_of(key))

    def _number(self, owners: tuple[ModuleCall, ...]) -> int:
        if owners not in self._numbers:
            self._numbers[owners] = len(self._sets)
            self._sets.append(owners)
        return self._numbers[owners]

    def _narrow_owners(self, owners: int, call: int) -> int:
        of_call = set(map(self._own, self._sets[call]))
        fitting = tuple(owner for owner in self._sets[owners] if not of_call.isdisjoint(self._around(owner)))
        return self._number(fitting) if fitting else owners


def owners_by_path(record: Provenance | None) -> CallOwners:
    """A call is for the modules inside of its own."""
    return CallOwners(
        lambda key: _recorded_owners(record, key), lambda owner: tuple(lineage_of(owner.path)), attrgetter("path")
    )


def _recorded_owners(record: Provenance | None, key: str) -> tuple[ModuleCall, ...]:
    return () if record is None or key not in record.nodes else record.nodes[key].attribution.owners


def _may_be_weight(tensor: Tensor, uses: Sequence[Use]) -> bool:
    """By its type, its size and its readers; exporters make constants of whole numbers and single numbers."""
    # Quantization puts scales and zero points beside the weights: their place among the inputs of a reader tells.
    if uses and all(index in _QUANTIZATION_INPUTS.get(node.operator, ()) for node, index in uses):
        return False
    is_bias = any(_INTEGER_BIAS.get(node.operator) == index for node, index in uses)
    if tensor.dtype == onnx.TensorProto.INT32 and is_bias:
        return True
    return tensor.dtype not in _NEVER_WEIGHTS and math.prod(tensor.shape) > 1


def _unpacked_size(tensor: Tensor, use: Use) -> int:
    """How many numbers it holds for its reader: weights of four bits may be packed into bytes."""
    node, index = use
    size = math.prod(tensor.shape)
    if index == 1 and node.operator in ("MatMulNBits", "MatMulBnb4"):
        from modelexport.graph.constants import integer

        return integer(node, "K") * integer(node, "N") or size
    if index in _PACKED_INPUTS.get(node.operator, ()) and tensor.dtype == onnx.TensorProto.UINT8:
        from modelexport.graph.constants import integer

        bits = integer(node, _BITS[node.operator], 4)
        return size * (_BITS_OF_A_BYTE // bits) if bits in (1, 2, 4, 8) else size
    return size


def _inline(graph: Graph) -> Inlined:
    from modelexport.graph.functions import inline_graph

    return inline_graph(graph)


class ParameterMatching:
    """What each initializer of a graph holds. Where no model was asked, every weight is a parameter of its own."""

    def __init__(self, graph: Graph, record: Provenance | None, model: InlinedModel | None = None) -> None:
        """`model` is the same without functions, and knows the attributes that their calls give to their nodes."""
        self._inlined = _inline(graph) if model is None else model.inlined
        self._call_owners = owners_by_path(record)
        self._record = record
        self._tensors = graph.initializers
        self._uses = (self._inlined.graph if model is None else model.graph).uses
        # What was read from the file itself knows of no parameter that the file does not hold.
        self._hierarchy = Hierarchy.of(()) if record is None or record.origin.is_file else record.hierarchy
        self._modules = self._hierarchy.modules
        self._order = {path: index for index, path in enumerate(self._modules)}
        # Numbers of absent parameters that no initializer was found to hold so far.
        self._left = self._absent_parameters()
        self._held = dict(self._match_all())

    def __getitem__(self, name: str) -> tuple[HeldParameter, ...]:
        return self._held.get(name, ())

    def size(self, name: str) -> int:
        return max((held.size for held in self[name]), default=0)

    def _match_all(self) -> Iterator[tuple[str, tuple[HeldParameter, ...]]]:
        tensors = self._tensors.items()
        # A buffer has the name of one, and is no parameter, whatever it looks like.
        buffers = self._hierarchy.tensor_owners
        weights = [
            name
            for name, tensor in tensors
            if name in self._names or (name not in buffers and _may_be_weight(tensor, self._uses.get(name, ())))
        ]
        sizes: dict[str, int] = {}
        for name in weights:
            read = [_unpacked_size(self._tensors[name], use) for use in self._uses.get(name, ())]
            sizes[name] = max(read, default=math.prod(self._tensors[name].shape))
        # Large ones first: two weights that were put together must not lose one of them to a constant of its size.
        for name in sorted(weights, key=lambda weight: (weight not in self._names, -sizes[weight])):
            yield name, tuple(self._match(name, sizes[name]))

    def _match(self, name: str, size: int) -> Iterator[HeldParameter]:
        if self._record is None or self._record.origin.is_file:
            yield HeldParameter(name, initializer_modules(self._record, name), size)
            return
        # A weight with a name of its own may stand for others too: exporters store equal tensors once.
        absent = list(self._match_absent(name, size))
        yield from absent
        if name in self._names:
            yield HeldParameter(self._names[name], self._owners[self._names[name]], size)
        elif not absent:
            yield from self._match_copy_or_parts(name, initializer_modules(self._record, name), size)

    def _match_absent(self, name: str, size: int) -> Iterator[HeldParameter]:
        """Absent parameters of this size, one for each module that reads the initializer for itself."""
        if not self._left:  # as in every file that no tool has changed
            return
        readers = list(self._reading_modules(name))
        everybody = {path for reader, _ in readers for path in reader}
        supplied = {*self._owners.get(self._names.get(name, ""), ())}
        for reader, times in readers:
            missing = reader - supplied
            # SkipLayerNormalization may read one tensor of zeros twice: as bias of the linear layer and of the norm.
            for _ in range(times - len(supplied & reader)):
                parameter = self._take_absent(missing, size, name)
                if parameter:
                    tied = [path for path in self._owners[parameter] if path in everybody]
                    missing -= {*tied}
                    supplied |= {*reader, *tied}
                    yield HeldParameter(parameter, tuple(tied), size)

    def _reading_modules(self, name: str) -> Iterator[tuple[set[str], int]]:
        """The modules of each node that reads it, with those inside of them that it belongs to, and how many times."""
        holders = {path for path in initializer_modules(self._record, name) if path is not None}
        inside = group_by_key((above, holder) for holder in holders for above in lineage_of(holder))
        for node, times in Counter(node.key for node, _ in self._uses.get(name, ())).items():
            calls, key = self._inlined.origin(node)
            paths = {owner.path for owner in self._call_owners.find(key, calls)}
            around = paths.union(*(inside.get(path, ()) for path in paths))
            holders -= around
            yield around, times
        yield holders, 1

    def _take_absent(self, reader: Iterable[str], size: int, name: str) -> str:
        """An absent parameter of just this size, of the innermost module that has one; of equals, the first.

        A weight that is there under its name stands for others of that name alone.
        """
        local_name = name.rpartition(".")[2] if name in self._names else ""
        for path in sorted(reader, key=lambda module: (-module.count("."), self._order.get(module, 0))):
            for parameter in self._parameters_of(path):
                full_name = self._full_name(path, parameter)
                if self._left.get(full_name) == size and local_name in ("", parameter.name):
                    del self._left[full_name]
                    return full_name
        return ""

    def _match_copy_or_parts(self, name: str, modules: tuple[ModulePath, ...], size: int) -> Iterator[HeldParameter]:
        paths = {path for path in modules if path is not None}.union(
            *(reader for reader, _ in self._reading_modules(name))
        )
        parameters = ((path, parameter) for path in sorted(paths) for parameter in self._parameters_of(path))
        sizes = {self._full_name(path, parameter): parameter.size for path, parameter in parameters}
        copied = [parameter for parameter, count in sizes.items() if count == size and parameter not in self._left]
        if len(copied) == 1:
            yield HeldParameter(copied[0], modules, size)
            return
        # Of what belongs to nobody, all that is known is that it may be any parameter which is not there.
        parts = self._take_parts(sizes if paths else list(self._left), size)
        if parts:
            yield HeldParameter(name, modules, parts)

    def _take_parts(self, parameters: Iterable[str], size: int) -> int:
        """How much of a size is there of these parameters; what is taken from them is gone."""
        missing = size
        for parameter in parameters:
            part = min(missing, self._left.get(parameter, 0))
            missing -= part
            if part:
                self._left[parameter] -= part
        return size - missing

    def _parameters_of(self, path: str) -> tuple[TensorInfo, ...]:
        return self._modules[path].parameters if path in self._modules else ()

    def _full_name(self, path: str, parameter: TensorInfo) -> str:
        return self._names[join(path, parameter.name)]

    @cached_property
    def _names(self) -> Mapping[str, str]:
        """Every name of every parameter, mapped to the first of its names."""
        first_names: dict[str, str] = {}
        for module in self._modules.values():
            for parameter in module.parameters:
                names = {join(path, parameter.name) for path in (module.path, *module.aliases)} | {*parameter.tied}
                first = min(first_names.get(name, name) for name in names)
                first_names.update(dict.fromkeys(names, first))
        return first_names

    @cached_property
    def _owners(self) -> Mapping[str, tuple[str, ...]]:
        return group_by_key((name, path) for name, path, _ in self._all_parameters())

    def _absent_parameters(self) -> dict[str, int]:
        """Parameters that the file does not hold under one of their names, with their sizes."""
        present = {self._names[name] for name in self._tensors if name in self._names}
        return {name: size for name, _, size in self._all_parameters() if name not in present}

    def _all_parameters(self) -> Iterator[tuple[str, str, int]]:
        """Name, module and size of every parameter of every module; a tied one comes once for each module."""
        for path, module in self._modules.items():
            yield from ((self._full_name(path, parameter), path, parameter.size) for parameter in module.parameters)
