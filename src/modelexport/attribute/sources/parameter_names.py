"""Parameter names: an initializer that is called as in a `state_dict` says which module holds it.

    encoder.layer.0.fc.weight            -> encoder.layer.0.fc
    encoder.layer.0.fc.weight_quantized  -> encoder.layer.0.fc     (what quantizers append stays behind the last dot)
    model/dense_5/MatMul/ReadVariableOp  -> model.dense_5          (a variable of TensorFlow)
    val_45, onnx::MatMul_337, p2o.Add.3  -> nothing: numbered by an exporter

A node that reads a module's weight was, as a rule, issued by that module; so were the nodes that only rearrange the
weight for it (Transpose, DequantizeLinear). Exporters transpose weights in advance and name them anew, so a product may
be known by its bias alone:

    x ─► MatMul(val_45) ─► Add(encoder.layer.0.fc.bias)            both are encoder.layer.0.fc's

Exporters store equal tensors once. A weight with several readers may have got there that way, and proves less.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise

from modelexport.attribute.sources.coherence import is_refuted, measure_coherence
from modelexport.attribute.sources.inlining import InlinedNames
from modelexport.attribute.sources.reading import Reading, is_module_path
from modelexport.graph.index import KEY_SEPARATOR, Graph, Node
from modelexport.graph.operators import CARRIERS, is_passing, is_product
from modelexport.record.hierarchy import join, parent_path
from modelexport.record.provenance import Confidence, EvidenceKind

PARAMETERS = "parameter names"
# Dotted, and with a word at its end: attributes of modules have names, only lists are numbered.
_PARAMETER = re.compile(r"(\w+\.)+[A-Za-z_]\w*")
# How TensorFlow's graph reads a variable: scopes, the operator that uses it, the read.
_VARIABLE = re.compile(r"(.+)/[^/]+/ReadVariableOp(/resource)?(:\d+)?")
# What TensorFlow calls a function by; a scope of this name is no layer.
_FUNCTION_CALL = re.compile(r"(Stateful)?PartitionedCall(_\d+)?")
# What quantizers put between a weight and its reader, besides operators that only move data.
_WEIGHT_STEPS = CARRIERS | {"DequantizeLinear", "QuantizeLinear"}


def module_of_parameter(value: str) -> str | None:
    """The path of the module that holds a parameter of this name; None if it is no such name."""
    name = value.rpartition(KEY_SEPARATOR)[2]
    if variable := _VARIABLE.fullmatch(name):
        path = dotted_path(variable[1].split("/"))
    elif _PARAMETER.fullmatch(name):
        path = parent_path(name)
    else:
        return None
    return path if is_module_path(path) else None


def dotted_path(scopes: Iterable[str]) -> str:
    """A module path of slash-separated scopes; dots inside of a scope are no levels."""
    return ".".join(scope.replace(".", "_") for scope in scopes if scope and not _FUNCTION_CALL.fullmatch(scope))


@dataclass(frozen=True)
class ParameterUses:
    """Which values of a graph are parameters of a module, and which nodes read them."""

    graph: Graph

    @cached_property
    def modules(self) -> Mapping[str, str]:
        """By value: the module that it is a parameter of; none if names do not fit the order in which they are read."""
        return {} if is_refuted(self._coherence) else self._named

    @property
    def are_borne_out(self) -> bool:
        """Whether parameters of one module are read in a row; False also if there are too few to tell."""
        return self._coherence is not None and not is_refuted(self._coherence)

    @cached_property
    def _coherence(self) -> float | None:
        reading: dict[str, tuple[str, ...]] = {}
        for node in self.graph.nodes:
            paths = {self._named[value] for value in node.inputs if value in self._named}
            if node.key in self.graph.computed and len(paths) == 1:
                reading[node.key] = tuple(paths.pop().split("."))
        return measure_coherence(pairwise(reading), reading)

    @cached_property
    def _named(self) -> Mapping[str, str]:
        """By value: the module that it is a parameter of. A copy of a de-duplicated weight bears the name of its own.

        Identity(encoder.layer.0.norm.weight) ─► encoder.layer.1.norm.weight      TorchScript stores equal weights once
        """
        modules = {name: path for name in self._stored if (path := self._module_of(name)) is not None}
        for node in self.graph.nodes:
            if self._is_weight_step(node, modules):
                own = self._module_of(node.outputs[0]) if node.operator == "Identity" else None
                source = next(modules[value] for value in node.inputs if value in modules)
                modules[node.outputs[0]] = own or source
        return modules

    def _module_of(self, value: str) -> str | None:
        network, name = self._inlined.split(value.rpartition(KEY_SEPARATOR)[2])
        path = module_of_parameter(name)
        if path is None or not is_module_path(join(network, path)):
            return None
        return join(network, path)

    @cached_property
    def _inlined(self) -> InlinedNames:
        return InlinedNames(self.graph)

    @cached_property
    def _stored(self) -> frozenset[str]:
        """Initializers, and results of Constant nodes, which some exporters write in their place."""
        constants = (node.outputs[0] for node in self.graph.nodes if node.operator == "Constant" and node.outputs)
        return frozenset((*self.graph.initializers, *constants))

    @cached_property
    def known_paths(self) -> frozenset[str]:
        return frozenset(self.modules.values())

    def _is_weight_step(self, node: Node, modules: Mapping[str, str]) -> bool:
        named = [value for value in node.inputs if value in modules]
        stored = (value in modules or value in self._stored for value in node.inputs if value)
        return bool(named) and node.operator in _WEIGHT_STEPS and all(stored)

    @cached_property
    def readers(self) -> Mapping[str, tuple[str, ...]]:
        """By node key: the modules whose parameters it reads, or passes on."""
        readers: dict[str, tuple[str, ...]] = {}
        for node in self.graph.nodes:
            passed_on = self.modules.get(node.outputs[0]) if node.outputs else None
            read = (self.modules[value] for value in node.inputs if value in self.modules)
            paths = (passed_on,) if passed_on is not None else tuple(dict.fromkeys(read))
            if paths:
                readers[node.key] = paths
        return readers

    @cached_property
    def shared(self) -> frozenset[str]:
        """Parameters that several nodes read."""
        return frozenset(value for value in self.modules if len(self.graph.consumers.get(value, ())) > 1)

    def _is_certain(self, node: Node) -> bool:
        """Whether a node reads parameters of one module, and one of them alone does.

        Whoever picks from a parameter or rearranges it may be another module; and a table that is looked up is often
        tied to another module's weight, with one name in the file, of either.
        """
        if node.operator in CARRIERS or node.operator == "Gather":
            return False
        own = [value for value in node.inputs if value in self.modules]
        return len(self.readers[node.key]) == 1 and not all(value in self.shared for value in own)

    @cached_property
    def certain(self) -> frozenset[str]:
        """Keys of nodes that belong to the module whose parameters they read."""
        return frozenset(node.key for node in self.graph.nodes if node.key in self.readers and self._is_certain(node))


def read_parameter_names(graph: Graph) -> Iterator[Reading]:
    """Three readings: parameters with one reader; with several readers; products that are known by their bias."""
    uses = ParameterUses(graph)
    certain = uses.certain
    holders = {name: (uses.modules[name],) for name in graph.initializers if name in uses.modules}
    if not uses.modules:
        return
    nodes = {key: paths for key, paths in uses.readers.items() if key in certain}
    shared = {key: paths for key, paths in uses.readers.items() if key not in certain}
    products = dict(_products_of_biases(uses, certain))
    kind = EvidenceKind.PARAMETER
    yield Reading(PARAMETERS, Confidence.STRONG, nodes, holders, kind=kind)
    yield Reading(PARAMETERS, Confidence.INFERRED, shared, kind=kind, detail="shared")
    yield Reading(PARAMETERS, Confidence.INFERRED, products, kind=kind, detail="of its bias")


def _products_of_biases(uses: ParameterUses, certain: AbstractSet[str]) -> Iterator[tuple[str, tuple[str, ...]]]:
    """Products with a weight of no name, whose result goes to an addition of a named vector alone, and steps between.

    MatMul ─► QuantizeLinear ─► DequantizeLinear ─► Add(encoder.fc.bias)
    """
    graph = uses.graph
    for node in graph.nodes:
        weighed = is_product(node) and any(value and value not in graph.computed for value in node.inputs)
        steps = [node]
        while weighed and len(readers := graph.consumers.get(steps[-1].outputs[0], ())) == 1:
            if readers[0].key in certain and readers[0].operator == "Add":
                yield from ((step.key, uses.readers[readers[0].key]) for step in steps if step.key not in uses.readers)
                break
            if not is_passing(readers[0]):
                break
            steps.append(readers[0])
