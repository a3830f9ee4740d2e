"""Assembly of a part: the ONNX file of a cut, from the protos of the file that it is cut from.

Weights are not read: the new file refers to where they lie. Nodes keep their names. A Shape of a value that is not in
the part is rebuilt from axes of the inputs:

    before   h = … (outside);  s = Shape(h)          h is [batch, 12, 64], and the input x has an axis `batch`
    after    s = Concat(Gather(Shape(x), [0]), [12], [64])
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cache
from itertools import chain, count

import onnx

from modelexport.errors import CutImpossible
from modelexport.graph import index
from modelexport.graph.algorithms import backward_slice
from modelexport.graph.file.metadata import PREFIX
from modelexport.graph.file.reading import ModelFile
from modelexport.graph.protos import ONNX_DOMAINS, names_read, with_inner
from modelexport.graph.types import ValueTypes, is_shaped
from modelexport.record.hierarchy import ROOT
from modelexport.record.provenance import Attribution, NodeEntry, Provenance, unattributed
from modelexport.transform.extract.border import ShapeAxis
from modelexport.transform.extract.cut import Cut
from modelexport.transform.extract.record import PartRecord, attribute_added_node

_UNKNOWN = unattributed("not in the record of the file that it was cut from")


@dataclass(frozen=True)
class ExtractedPart:
    """A cut as a file.

    provenance  its record: the module that was cut out is the root
    origins     by name of an input or output: the value of the file that it was cut from
    added       how many nodes rebuild shapes in place of nodes that came along
    """

    file: ModelFile
    provenance: Provenance
    origins: Mapping[str, str]
    added: int


def assemble_part(file: ModelFile, provenance: Provenance, cut: Cut, types: ValueTypes) -> ExtractedPart:
    """The file of a cut with its record. Raises CutImpossible if the type of a value at the border is not known."""
    return _PartAssembly(file, provenance, cut, types).assemble()


# Before this version of the format every initializer had to be an input as well.
_IR_WITH_OPTIONAL_INPUTS = 4


class _PartAssembly:
    """The new file while it grows.

    _added         nodes that rebuild shapes; they read inputs alone, so they come first
    _attributions  by key in the new file: what the record of the old one says
    _names         values of the old file, under the names that they have in the new one
    """

    def __init__(self, file: ModelFile, provenance: Provenance, cut: Cut, types: ValueTypes) -> None:
        self._file = file
        self._provenance = provenance
        self._cut = cut
        self._types = types
        self._part = PartRecord(provenance, cut.selection)
        self._protos = dict(index.walk_nodes(file.proto))
        self._nodes: list[onnx.NodeProto] = []
        self._added: list[onnx.NodeProto] = []
        self._constants: list[onnx.TensorProto] = []
        self._attributions: dict[str, Attribution] = {}
        graph = file.graph
        outputs = (output for node in graph.nodes for output in node.outputs)
        self._names = {self._local(value) for value in (*graph.inputs, *graph.initializers, *outputs)}

    def assemble(self) -> ExtractedPart:
        self._copy_nodes()
        handed = self._add_identities()
        source = self._file.proto
        proto = onnx.ModelProto(
            ir_version=source.ir_version,
            producer_name=source.producer_name,
            producer_version=source.producer_version,
            domain=source.domain,
            model_version=source.model_version,
        )
        graph = proto.graph
        graph.name = self._part.hierarchy.modules[ROOT].class_name or "graph"
        graph.node.extend([*self._added, *self._nodes])
        weights, sparse = self._weights(graph.node)
        graph.initializer.extend([*weights, *self._constants])
        graph.sparse_initializer.extend(sparse)
        graph.input.extend(self._value(value) for value in self._cut.enters)
        if proto.ir_version < _IR_WITH_OPTIONAL_INPUTS:
            make = onnx.helper.make_tensor_value_info
            graph.input.extend(make(tensor.name, tensor.data_type, list(tensor.dims)) for tensor in graph.initializer)
        outputs = handed or {self._local(value): value for value in self._cut.leaves}
        graph.output.extend(self._value(value, name) for name, value in outputs.items())
        self._copy_descriptions(graph)
        proto.functions.extend(self._functions(graph.node))
        proto.opset_import.extend(self._opsets(proto))
        proto.metadata_props.extend(entry for entry in source.metadata_props if not entry.key.startswith(PREFIX))
        names = [weight.name for weight in weights if weight.name in self._file.weights]  # others are in the proto
        extracted = ModelFile(proto, {name: self._file.weights[name] for name in names}, self._file.directory)
        origins = {**{self._local(value): value for value in self._cut.enters}, **outputs}
        return ExtractedPart(extracted, self._record(extracted), origins, len(self._added))

    def _local(self, value: str) -> str:
        around = (
            graph_id for graph_id in self._cut.scope if graph_id and value.startswith(graph_id + index.KEY_SEPARATOR)
        )
        return value[len(graph_id) + 1 :] if (graph_id := next(around, "")) else value

    def _copy_nodes(self) -> None:
        for node in self._cut.nodes:
            if node.key in self._cut.shapes:
                self._added += self._build_shape(node.outputs[0], self._cut.shapes[node.key])
                continue
            proto = self._protos[node.key]
            self._nodes.append(proto)
            # A node that leaves a body gets a key of the main graph, and so do all in its own bodies.
            for (before, _), (after, _) in zip(
                index.walk_graph_nodes([proto], node.graph), index.walk_graph_nodes([proto], index.MAIN), strict=True
            ):
                self._attributions[after] = self._recorded(before)

    def _recorded(self, key: str) -> Attribution:
        entry = self._provenance.nodes.get(key)
        return _UNKNOWN if entry is None else entry.attribution

    def _build_shape(self, output: str, axes: tuple[ShapeAxis, ...]) -> Iterator[onnx.NodeProto]:
        parts: list[str] = []
        for axis in axes:
            if not axis.value:
                parts.append(self._constant([axis.size]))
                continue
            value = self._local(axis.value)
            shape, size = self._free_name(f"{value}_shape"), self._free_name(f"{value}_size")
            yield self._make_node("Shape", [value], shape)
            yield self._make_node("Gather", [shape, self._constant([axis.axis])], size, axis=0)
            parts.append(size)
        if parts:
            yield self._make_node("Concat", parts, self._local(output), axis=0)
        else:  # the shape of a scalar: Concat needs at least one input
            yield self._make_node("Identity", [self._constant([])], self._local(output))

    def _make_node(self, kind: str, inputs: list[str], output: str, axis: int | None = None) -> onnx.NodeProto:
        self._attributions[output] = attribute_added_node("shape of an input" if not self._cut.handed else "handed on")
        node = onnx.helper.make_node(kind, inputs, [output], name=self._free_name(f"{output}_{kind}"))
        if axis is not None:
            node.attribute.append(onnx.helper.make_attribute("axis", axis))
        return node

    def _constant(self, numbers: list[int]) -> str:
        """Store a list of sizes; INT64, because that is what Shape returns and Concat takes no mixture."""
        name = self._free_name("size")
        self._constants.append(onnx.helper.make_tensor(name, onnx.TensorProto.INT64, [len(numbers)], numbers))
        return name

    def _free_name(self, name: str) -> str:
        numbered = (f"{name}_{number}" for number in count(1))
        free = next(candidate for candidate in chain([name], numbered) if candidate not in self._names)
        self._names.add(free)
        return free

    def _add_identities(self) -> dict[str, str]:
        """Outputs of a module without nodes, by name; a graph cannot return what it is given under its name."""
        outputs: dict[str, str] = {}
        for value in () if self._cut.handed is None else self._cut.handed.types:
            name = self._free_name(f"{self._local(value)}_output")
            self._nodes.append(self._make_node("Identity", [self._local(value)], name))
            outputs[name] = value
        return outputs

    def _weights(self, nodes: Iterable[onnx.NodeProto]) -> tuple[list[onnx.TensorProto], list[onnx.SparseTensorProto]]:
        """What the nodes read and the file stores: in its main graph, or in a body that was around them."""
        read = {name for node in nodes for name in names_read(node)}
        present = {name for node in nodes for name in node.output} | {self._local(value) for value in self._cut.enters}
        wanted = read - present
        tensors: dict[str, onnx.TensorProto] = {}
        sparse: dict[str, onnx.SparseTensorProto] = {}
        for graph in self._graphs_around():
            tensors.update({tensor.name: tensor for tensor in graph.initializer if tensor.name in wanted})
            # ONNX has no name for a sparse tensor: it goes by that of its values.
            sparse |= {item.values.name: item for item in graph.sparse_initializer if item.values.name in wanted}
        return list(tensors.values()), list(sparse.values())

    def _graphs_around(self) -> list[onnx.GraphProto]:
        wanted = {node.graph for node in self._cut.nodes}
        graphs = [self._file.proto.graph]
        for key, node in self._protos.items():
            graphs += [body for body_id, body in index.subgraphs_with_ids(node, key) if body_id in wanted]
        return graphs

    def _value(self, value: str, name: str = "") -> onnx.ValueInfoProto:
        """An input or output of the new file. Inside a graph types may be missing; ONNX wants them at its ends."""
        stated = self._types.get(value) if self._cut.handed is None else self._cut.handed.types[value]
        name = name or self._local(value)
        if stated is None or not is_shaped(stated):
            raise CutImpossible(
                f"type and shape of {name!r} are not known, so that a file of its own cannot say what goes in and out",
                "Run shape inference on the file first, relink the result and extract from that.",
            )
        return onnx.ValueInfoProto(name=name, type=stated)

    def _copy_descriptions(self, graph: onnx.GraphProto) -> None:
        ends = {value.name for value in (*graph.input, *graph.output)}
        inner = {name for node in graph.node for name in node.output} - ends
        for around in self._graphs_around():
            graph.value_info.extend(value for value in around.value_info if value.name in inner)
            there = inner | ends | {tensor.name for tensor in graph.initializer}
            graph.quantization_annotation.extend(
                annotation for annotation in around.quantization_annotation if annotation.tensor_name in there
            )

    def _functions(self, nodes: Iterable[onnx.NodeProto]) -> list[onnx.FunctionProto]:
        """Functions that the nodes call, and those that these call in turn, in the order of the file."""
        known = {index.function_id(function): function for function in self._file.proto.functions}

        def called(callers: Iterable[onnx.NodeProto]) -> set[str]:
            return known.keys() & {index.called_id(node) for outer in callers for node in with_inner(outer)}

        reached = set(backward_slice(called(nodes), lambda name: called(known[name].node)))
        return [function for name, function in known.items() if name in reached]

    def _opsets(self, proto: onnx.ModelProto) -> Iterator[onnx.OperatorSetIdProto]:
        """Imports of what is used, and the standard ones: any other would say that the file needs it."""
        used = {node.domain for outer in proto.graph.node for node in with_inner(outer)}
        used |= {node.domain for function in proto.functions for outer in function.node for node in with_inner(outer)}
        used |= {function.domain for function in proto.functions} | ONNX_DOMAINS
        yield from (opset for opset in self._file.proto.opset_import if opset.domain in used)

    def _record(self, extracted: ModelFile) -> Provenance:
        graph = extracted.graph
        answer = cache(self._part.attribution)  # most nodes of a module share one attribution
        # Nodes that were added are attributed in terms of the part already.
        here = {node.output[0] for node in (*self._added, *(self._nodes if self._cut.handed else ()))}
        nodes: dict[str, NodeEntry] = {}
        for node in graph.nodes:
            known = self._attributions.get(node.key) or self._recorded(node.key)
            attribution = known if node.key in here else answer(known)
            nodes[node.key] = NodeEntry(node.key, node.name, node.op_type, attribution)
        before = {self._local(name): attribution for name, attribution in self._provenance.initializers.items()}
        weights = {name: answer(before.get(name, _UNKNOWN)) for name in graph.initializers}
        return replace(
            self._provenance,
            hierarchy=self._part.hierarchy,
            nodes=nodes,
            initializers=weights,
            origin=replace(self._provenance.origin, graph=graph.fingerprint),
            absent=self._part.absent,
            edges=None,  # those of the old graph; they are read from the new one when somebody asks
        )
