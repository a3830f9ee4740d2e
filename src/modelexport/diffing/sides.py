"""One of the two files that are compared, as far as it is looked at."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property

import onnx

from modelexport.diffing.ends import ValueType, value_type
from modelexport.diffing.flow import Flow
from modelexport.diffing.holdings import Holdings
from modelexport.graph.index import Graph
from modelexport.graph.opened import ModelFile
from modelexport.record.changes import Source
from modelexport.record.hierarchy import Hierarchy, ModuleCall, lineage_of


@dataclass(frozen=True, eq=False)
class Compared:
    """
    graph      what is compared: without functions, and only the part that was asked for
    told       by the key of a node: the call of the module that it belongs to, where that is known
    held       by the name of a weight: the call of the module that holds it, where that is known
    hierarchy  the modules, where they are known
    module     the part that was asked for; empty for all
    origins    by the key of a node that was put in the place of a call: the keys of the calls and of the node itself
    """

    path: str
    file: ModelFile
    graph: Graph
    holdings: Holdings
    told: Mapping[str, str] = field(default_factory=dict)
    held: Mapping[str, str] = field(default_factory=dict)
    hierarchy: Hierarchy | None = None
    source: Source = Source.NONE
    exporter: str = ""
    module: str = ""
    origins: Mapping[str, tuple[str, ...]] = field(default_factory=dict)

    @cached_property
    def flow(self) -> Flow:
        return Flow(self.graph, self.holdings.digest, self.told)

    @cached_property
    def types(self) -> Mapping[str, ValueType]:
        """What the file says of its values."""
        graph = self.file.proto.graph
        stated = ((one.name, value_type(one)) for one in (*graph.value_info, *graph.input, *graph.output))
        return {name: kind for name, kind in stated if kind is not None}

    @property
    def inputs(self) -> Mapping[str, ValueType | None]:
        """Without weights that old files list among them."""
        return {name: self.types.get(name) for name in self.graph.inputs if name not in self.graph.initializers}

    @property
    def outputs(self) -> Mapping[str, ValueType | None]:
        return {name: self.types.get(name) for name in self.graph.outputs}

    @property
    def proto(self) -> onnx.ModelProto:
        return self.file.proto

    def stack(self, call: str) -> tuple[str, ...]:
        """The calls around a call, the model first and itself last."""
        if self.hierarchy is None:
            path, _, number = call.partition("#")
            above = [*lineage_of(path)]
            return (*above[:-1], call) if number else tuple(above)
        return tuple(map(str, self.hierarchy.stack(ModuleCall.parse(call))))

    def inner_stack(self, call: str) -> tuple[str, ...]:
        """Without the calls around the part that was asked for."""
        stack = self.stack(call)
        first = next((place for place, one in enumerate(stack) if self._is_part(one)), 0)
        return stack[first:]

    def _is_part(self, call: str) -> bool:
        one = ModuleCall.parse(call)
        return self.module in (call, one.path, f"{one.path}#{one.index}")

    def class_of(self, call: str) -> str:
        path = ModuleCall.parse(call).path
        if self.hierarchy is None or path not in self.hierarchy.modules:
            return ""
        return self.hierarchy.modules[path].class_name

    def relative(self, call: str) -> str:
        """A call as it is written inside of the part that was asked for; the number of a first call is not written."""
        return call.removeprefix(self.module.removesuffix("#0")).removeprefix(".") if self.module else call
