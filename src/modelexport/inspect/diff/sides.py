"""Diff side: one of the two files that are compared, with its constants, its modules, and its inputs and outputs.

DiffSide       graph without functions, module calls of nodes, types of values
ConstantStore  a digest for every constant, its numbers only where two constants differ
cut_part       the graph of one module: `diff A B --left-module encoder.layer.3`
match_io       inputs and outputs under other names, matched by what is made of them and how they are made
"""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, field, replace
from functools import cache, cached_property

import numpy as np
import onnx
from onnx.numpy_helper import to_array

from modelexport.graph.algorithms import ValueNumbers
from modelexport.graph.file.external import external_data, is_external
from modelexport.graph.file.reading import ModelFile, has_numbers, initializer_array
from modelexport.graph.functions import InlinedModel
from modelexport.graph.index import MAIN, Graph, subgraphs_with_ids, value_id, walk_nodes
from modelexport.graph.module_totals import ModuleTotals
from modelexport.graph.parameters import ParameterMatching
from modelexport.graph.protos import data_of, described, type_of
from modelexport.inspect.diff.io_matching import ValueType, match_names, match_rest, read_value_type
from modelexport.inspect.diff.match_keys import DiffGraph, NodeSignatures, by_content, by_shape, is_literal
from modelexport.record.hierarchy import Hierarchy, ModuleCall, lineage_of
from modelexport.record.provenance import Provenance, is_within
from modelexport.record.results.diff import Source

_DIGEST_SIZE = 16
_CHUNK = 1 << 24


class ConstantStore:
    """The constants of a file by the names that its graph has for them; nodes that hold one go by their keys."""

    def __init__(self, file: ModelFile, graph: Graph, *, read_weights: bool = True) -> None:
        """graph  that of the file, without functions"""
        self._file, self._graph = file, graph
        self._read_weights = read_weights
        self._initializers = {tensor.name: tensor for tensor in file.proto.graph.initializer}
        self._literals = {node.key: node for node in graph.nodes if is_literal(node)}
        self.digest = cache(self._digest)

    def _digest(self, name: str) -> str | None:
        """Of type, shape and content; None for what is large and not to be read."""
        content = self._content(name)
        if content is not None:
            return hashlib.blake2b(content, digest_size=_DIGEST_SIZE).hexdigest()
        tensor = self._graph.initializers.get(name)
        raw = self._raw(name) if tensor is not None and self._read_weights else None
        if tensor is None or raw is None:
            return None
        digest = hashlib.blake2b(described(tensor.dtype, tensor.shape, b""), digest_size=_DIGEST_SIZE)
        for start in range(0, raw.nbytes, _CHUNK):
            digest.update(raw[start : start + _CHUNK])
        return digest.hexdigest()

    def _raw(self, name: str) -> memoryview | None:
        """What does not lie there; of a body, it can be in a file of its own."""
        if name in self._file.weights:
            return self._file.weights[name].raw()
        inner = self._inner.get(name)
        return None if inner is None else external_data(inner, self._file.directory).raw()

    @cached_property
    def _inner(self) -> Mapping[str, onnx.TensorProto]:
        """Tensors of bodies whose data is in another file."""
        inside = (body for key, node in walk_nodes(self._file.proto) for body in subgraphs_with_ids(node, key))
        return {
            value_id(body_id, tensor.name): tensor
            for body_id, body in inside
            for tensor in body.initializer
            if is_external(tensor)
        }

    def _content(self, name: str) -> bytes | None:
        """What lies in the structure of the file."""
        literal = self._literals.get(name)
        if literal is not None:
            return literal.attributes if literal.constant is None else literal.constant
        tensor = self._graph.initializers.get(name)
        return None if tensor is None else tensor.content

    def numbers(self, name: str) -> np.ndarray | None:
        """What a constant holds; None for what holds no numbers."""
        tensor = self._initializers.get(name)
        if tensor is not None:
            return initializer_array(self._file, tensor) if has_numbers(self._file, tensor) else None
        inner = self._inner.get(name)
        if inner is not None:
            data = bytes(external_data(inner, self._file.directory).raw())
            return to_array(onnx.TensorProto(data_type=inner.data_type, dims=inner.dims, raw_data=data))
        literal = self._literals.get(name)
        content = self._content(name)
        if content is None or (literal is not None and literal.constant is None):
            return None
        dtype, shape = type_of(content)
        if dtype == onnx.TensorProto.STRING:
            return None
        kind = onnx.helper.tensor_dtype_to_np_dtype(dtype)
        numbers: np.ndarray = np.frombuffer(data_of(content), kind).reshape(shape)
        return numbers


def cut_part(graph: Graph, keys: Collection[str]) -> Graph:
    """The nodes with these keys, bodies and constants included; it is given what they read, and returns what others
    read of what they make."""
    inside = set(keys)
    for node in graph.nodes:  # bodies come behind the node that owns them
        if graph.body_owner.get(node.graph) in inside:
            inside.add(node.key)
    nodes = tuple(node for node in graph.nodes if node.key in inside or is_literal(node))
    working = [node for node in nodes if not is_literal(node)]
    made = {value for node in nodes for value in node.outputs}
    within = {value for body in graph.body_owner for value in graph.body_inputs[body]}
    enters = dict.fromkeys(
        value
        for node in working
        for value in node.inputs
        if value and value not in made and value not in graph.initializers and value not in within
    )
    returned = {value for graph_id, values in graph.body_outputs.items() if graph_id == MAIN for value in values}
    read = {value for node in graph.nodes if node.key not in inside for value in node.inputs} | returned
    leaves = dict.fromkeys(value for node in working if not node.graph for value in node.outputs if value in read)
    used = {value for node in working for value in node.inputs} | {
        value for values in graph.body_outputs.values() for value in values
    }
    # Those of others are not even looked at.
    weights = {name: tensor for name, tensor in graph.initializers.items() if name in used}
    return replace(graph, nodes=nodes, inputs=tuple(enters), outputs=tuple(leaves), initializers=weights)


@dataclass(frozen=True, eq=False)
class DiffSide:
    """
    graph      what is compared: without functions, and only the part that was asked for
    calls      by the key of a node: the call of the module that it belongs to, where that is known
    held       by the name of a weight: the call of the module that holds it, where that is known
    hierarchy  the modules, where they are known
    module     the part that was asked for; empty for all
    model      the nodes of the whole file without functions
    record     what its own record says of this graph
    """

    path: str
    file: ModelFile
    graph: Graph
    model: InlinedModel
    constants: ConstantStore
    calls: Mapping[str, str] = field(default_factory=dict)
    held: Mapping[str, str] = field(default_factory=dict)
    hierarchy: Hierarchy | None = None
    source: Source = Source.NONE
    exporter: str = ""
    module: str = ""
    record: Provenance | None = None

    @cached_property
    def totals(self) -> ModuleTotals | None:
        """Nodes and parameters of modules, as all verbs count them; None without a record."""
        if self.record is None:
            return None
        matching = ParameterMatching(self.file.graph, self.record, self.model)
        return ModuleTotals.of(self.file.graph, self.record, matching)

    @cached_property
    def weight_sizes(self) -> ParameterMatching:
        """How many numbers weights have, without a record: two files can be compared by it of which one has none."""
        return ParameterMatching(self.file.graph, None, self.model)

    @cached_property
    def flow(self) -> DiffGraph:
        return DiffGraph(self.graph, self.constants.digest, self.calls)

    @cached_property
    def types(self) -> Mapping[str, ValueType]:
        """What the file says of its values."""
        graph = self.file.proto.graph
        stated = ((value.name, read_value_type(value)) for value in (*graph.value_info, *graph.input, *graph.output))
        return {name: kind for name, kind in stated if kind is not None}

    @property
    def inputs(self) -> Mapping[str, ValueType | None]:
        """Without weights that old files list among them."""
        return {name: self.types.get(name) for name in self.graph.fed_inputs}

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
        first = next((index for index, around in enumerate(stack) if self.is_part(around)), 0)
        return stack[first:]

    def is_part(self, call: str) -> bool:
        """Whether a call is that of the part, or inside of it: a container such as a ModuleList is never called."""
        parsed = ModuleCall.parse(call)
        return self.module in (call, f"{parsed.path}#{parsed.index}") or is_within(parsed.path, self.module)

    def class_of(self, call: str) -> str:
        path = ModuleCall.parse(call).path
        if self.hierarchy is None or path not in self.hierarchy.modules:
            return ""
        return self.hierarchy.modules[path].class_name

    def relative(self, call: str) -> str:
        """A call as it is written inside of the part that was asked for; the number of a first call is not written."""
        return call.removeprefix(self.module.removesuffix("#0")).removeprefix(".") if self.module else call


_Ends = Mapping[str, ValueType | None]


@dataclass(frozen=True, slots=True)
class MatchedIO:
    """Inputs and outputs of the first graph, mapped to what they are in the second."""

    inputs: Mapping[str, str]
    outputs: Mapping[str, str]


def match_io(left: DiffSide, right: DiffSide) -> MatchedIO:
    """By name; then by what they are for; the rest by type and order."""
    inputs, outputs = match_names(left.inputs, right.inputs), match_names(left.outputs, right.outputs)
    several = _is_ambiguous(left.inputs, right.inputs, inputs) or _is_ambiguous(left.outputs, right.outputs, outputs)
    for seen in (by_content, by_shape) if several else ():
        numbers = ValueNumbers()
        signatures = [
            NodeSignatures(side.flow, numbers, seen, _label_io(side, index, inputs, outputs))
            for index, side in enumerate((left, right))
        ]
        inputs |= _match_unique(
            left.inputs, right.inputs, inputs, [_number_uses(signature) for signature in signatures]
        )
        outputs |= _match_unique(left.outputs, right.outputs, outputs, [signature.down.get for signature in signatures])
    return MatchedIO(match_rest(left.inputs, right.inputs, inputs), match_rest(left.outputs, right.outputs, outputs))


def _is_ambiguous(left: _Ends, right: _Ends, known: Mapping[str, str]) -> bool:
    """Whether it is open which is which."""
    rest = len(left) - len(known), len(right) - len(known)
    return min(rest) > 0 and max(rest) > 1


def _label_io(side: DiffSide, index: int, inputs: Mapping[str, str], outputs: Mapping[str, str]) -> dict[str, object]:
    """What is known to be the same has one label in both files; of the rest the type is all that can be said."""
    io: dict[str, object] = {}
    for kind, ends, known in (("i", side.inputs, inputs), ("o", side.outputs, outputs)):
        same = {pair[index]: pair[0] for pair in known.items()}
        for name, stated in ends.items():
            rank = None if stated is None or stated.dims is None else len(stated.dims)
            io[f"{kind}:{name}"] = same.get(name, (stated and stated.dtype, rank))
    return io


def _match_unique(
    left_ends: _Ends, right_ends: _Ends, known: Mapping[str, str], words: Iterable[Callable[[str], object]]
) -> dict[str, str]:
    """Those of which there is one in each file."""
    left_of, right_of = words
    matched = set(known.values())
    left = {name: left_of(name) for name in left_ends if name not in known}
    right = {name: right_of(name) for name in right_ends if name not in matched}
    counts = Counter(left.values()), Counter(right.values())
    single = {word: name for name, word in right.items() if counts[1][word] == 1}
    return {name: single[word] for name, word in left.items() if counts[0][word] == 1 and word in single}


def _number_uses(signatures: NodeSignatures) -> Callable[[str], object]:
    def number_value(value: str) -> object:
        uses = signatures.flow.uses.get(value, ())
        return tuple(
            sorted((use.operand, signatures.own[key], signatures.up[key]) for use in uses for key in [use.reader.key])
        )

    return number_value
