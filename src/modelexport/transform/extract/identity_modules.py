"""Identity modules: modules without a node. They return what they are given, or their result is stored in the file.

    Dropout in eval mode        x ─► y       the file of the cut is one Identity
    a position table            folded into an initializer when the model was exported

Which value passed through is not in the graph. It is found from the calls before and after: a value that comes out of
the one and goes into the other can be nothing else.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

import onnx

from modelexport.graph.types import ValueTypes
from modelexport.record.hierarchy import ModuleCall
from modelexport.record.provenance import Provenance
from modelexport.transform.extract.selection import CutSelection, NestedGraph

# Classes whose forward is the identity in eval mode, in which models are exported.
_NO_OPERATION = ("torch.nn.modules.dropout.", "torch.nn.modules.linear.Identity")


@dataclass(frozen=True)
class IdentityResult:
    """What a module without nodes returns.

    types     by value of the file, as far as is known: what comes in and goes out again, or initializers; axes of
              which it is not certain have no size
    stored    these are initializers, and nothing comes in
    certain   the module is known to have returned what it was given
    """

    types: Mapping[str, onnx.TypeProto]
    stored: bool
    certain: bool


class IdentityModules:
    def __init__(self, nest: NestedGraph, provenance: Provenance, types: ValueTypes) -> None:
        self._graph = nest.graph
        self._nest = nest
        self._provenance = provenance
        self._types = types
        self._hierarchy = provenance.hierarchy

    def find_result(self, selection: CutSelection) -> IdentityResult | None:
        """What a call without nodes returns; None if that is not in the file."""
        call = selection.calls[0]
        stored = self._stored_results(selection)
        if stored:
            return IdentityResult(stored, stored=True, certain=True)
        axes = self._through.get(call)
        module = self._hierarchy.modules[call.path]
        certain = axes is not None or f"{module.package}.{module.class_name}".startswith(_NO_OPERATION)
        # Who has parameters, or is given several things, does something with them.
        if not certain and (any(tensor.size for tensor in module.parameters) or len(module.arguments) > 1):
            return None
        kinds = {value: kind for value in self._candidates(call, axes) if (kind := self._types.get(value)) is not None}
        if not kinds:
            return None
        value, *further = kinds
        kind = self._common(kinds[value], further)
        return IdentityResult({value: _with_axes(kind, axes)}, stored=False, certain=certain)

    @cached_property
    def _through(self) -> Mapping[ModuleCall, int]:
        return {site.call: site.through for site in self._hierarchy.calls if site.through is not None}

    def _stored_results(self, selection: CutSelection) -> dict[str, onnx.TypeProto]:
        """Constants that the module's results were folded into when the model was exported."""
        named = self._hierarchy.tensor_owners  # a parameter or buffer is what a module has, not what it returns
        stored_results: dict[str, onnx.TypeProto] = {}
        for name, attribution in self._provenance.initializers.items():
            kind = self._types.get(name)
            own = attribution.owners and all(map(selection.covers, attribution.owners)) and name not in named
            if own and kind is not None and self._graph.consumers.get(name) and self._types.is_float(name):
                stored_results[name] = kind
        return stored_results

    def _candidates(self, call: ModuleCall, axes: int | None) -> list[str]:
        """Values that may be what passes through a call, the likeliest first.

        A value that comes out of the call before and goes into the one after it can be nothing else. Else it is one
        of those that the call around makes in between, with as many axes as it has, if that is known, or as most have.
        """
        before, after = self._siblings(call)
        around = self._hierarchy.stack(call)[-2:-1]
        results = self._results(before[-1], around) if before else []
        wanted = self._arguments(after[0]) if after else []
        direct = [value for value in results if value in wanted and self._may_have(value, axes)]
        if direct:
            return direct[:1]
        between = self._between(results[:1], around)
        candidates = [*results[:1], *between, *wanted]
        for outer in () if candidates else around:
            candidates += [*self._arguments(outer), *self._results(outer, ())]
        if axes is None:
            return self._with_usual_axes(candidates, between)
        return [value for value in candidates if self._may_have(value, axes)] or candidates[:1]

    def _may_have(self, value: str, axes: int | None) -> bool:
        dims = self._types.dims(value)
        return axes is None or dims is None or len(dims) == axes

    def _between(self, start: Sequence[str], around: Sequence[ModuleCall]) -> list[str]:
        """Numbers that the call around makes from a value by itself, before other calls get them."""
        own = {key for outer in around for key in self._keys_of.get(outer, ())}
        called = [site.call for site in self._hierarchy.calls if site.parent in around]
        own -= {key for call in called for key in self._keys_of.get(call, ())}
        values: dict[str, None] = {}
        waiting = list(start)
        while waiting:  # breadth first: the value that was made next is the likeliest
            for reader in self._nest.readers(waiting.pop(0)):
                outputs = [value for value in reader.outputs if value and value not in values and self._is_data(value)]
                if reader.key in own:
                    values.update(dict.fromkeys(outputs))
                    waiting += outputs
        return list(values)

    def _with_usual_axes(self, values: Sequence[str], voters: Sequence[str]) -> list[str]:
        """Those of the values that have as many axes as most of the voters, in their order."""
        axes = {value: len(dims) for value in values if (dims := self._types.dims(value)) is not None}
        counts = Counter(axes[value] for value in voters if value in axes)
        if not counts:
            return list(values)
        usual = max(counts, key=lambda count: (counts[count], count))
        return [value for value in values if axes.get(value) == usual]

    def _siblings(self, call: ModuleCall) -> tuple[list[ModuleCall], list[ModuleCall]]:
        """Calls with nodes that the same call made before this one, and after it."""
        stack = self._hierarchy.stack(call)
        parent = stack[-2] if len(stack) > 1 else None
        calls = [site.call for site in self._hierarchy.calls if site.parent == parent]
        position = calls.index(call) if call in calls else 0
        before = [sibling for sibling in calls[:position] if sibling in self._keys_of]
        return before, [sibling for sibling in calls[position + 1 :] if sibling in self._keys_of]

    @cached_property
    def _keys_of(self) -> dict[ModuleCall, list[str]]:
        """By call: the keys of the nodes that ran inside of it, however deep."""
        keys: dict[ModuleCall, list[str]] = {}
        for key, entry in self._provenance.nodes.items():
            for call in {call for owner in entry.attribution.owners for call in self._hierarchy.stack(owner)}:
                keys.setdefault(call, []).append(key)
        return keys

    def _results(self, call: ModuleCall, readers: Sequence[ModuleCall]) -> list[str]:
        """Numbers that come out of a call, the last first; those that `readers` go on with before the others."""
        inside = set(self._keys_of.get(call, ()))
        near = {key for reader in readers for key in self._keys_of.get(reader, ())}
        results: list[tuple[bool, int, str]] = []
        for key in inside:
            node = self._graph.by_key[key]
            for value in filter(None, node.outputs):
                outside = [reader.key for reader in self._nest.readers(value) if reader.key not in inside]
                if (outside or value in self._graph.outputs) and self._is_data(value):
                    results.append((near.isdisjoint(outside), -node.position, value))
        return [value for _, _, value in sorted(results)]

    def _arguments(self, call: ModuleCall) -> list[str]:
        """Numbers that go into a call, the latest first."""
        inside = set(self._keys_of.get(call, ()))
        arguments: dict[str, int] = {}
        for key in inside:
            for value in self._graph.by_key[key].inputs:
                maker = self._graph.producers.get(value)
                if value and (maker is None or maker.key not in inside) and self._is_data(value):
                    arguments[value] = -1 if maker is None else maker.position
        return sorted(arguments, key=lambda value: (-arguments[value], value))

    def _is_data(self, value: str) -> bool:
        return value not in self._graph.initializers and self._types.is_float(value)

    def _common(self, type_proto: onnx.TypeProto, further: Sequence[str]) -> onnx.TypeProto:
        """The type without the sizes of axes that further candidates have another size of."""
        common = onnx.TypeProto()
        common.CopyFrom(type_proto)
        dims = common.tensor_type.shape.dim
        for sizes in map(self._types.dims, further):
            for dim, size in zip(dims, sizes, strict=True) if sizes is not None and len(sizes) == len(dims) else ():
                if (dim.dim_value if dim.HasField("dim_value") else dim.dim_param) != size:
                    dim.Clear()
        return common


def _with_axes(kind: onnx.TypeProto, axes: int | None) -> onnx.TypeProto:
    """The type with that many axes: of none a size is known if there are more or fewer."""
    if axes is None or len(kind.tensor_type.shape.dim) == axes:
        return kind
    shape = onnx.TensorShapeProto(dim=[onnx.TensorShapeProto.Dimension() for _ in range(axes)])
    return onnx.TypeProto(tensor_type=onnx.TypeProto.Tensor(elem_type=kind.tensor_type.elem_type, shape=shape))
