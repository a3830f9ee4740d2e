"""Drawing a file: one box for every node, constant, input and output of every graph in it, with everything known of it.

    x ──► Add (node_add) ──► y       Box(x, INPUT) ── Wire ──► Box(node_add, OPERATOR) ── Wire ──► Box(y, OUTPUT)
    w ──┘                            Box(w, CONSTANT) ── Wire ──┘

Weights are not read: of a large one, type and shape are shown. Module calls become layers, each inside of the call that
made it. A fact that all formats are to show of a node is added in `_known_facts`.

The order of boxes is inputs and constants, then operators, then outputs, because a wire can be drawn only to a box that
exists. Values of a body may come from the graph around it (https://onnx.ai/onnx/repo-docs/IR.html#names-within-a-graph):
they have one id in the whole file, so that the wire simply crosses the border of the body.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from functools import cache

import onnx

from modelexport.graph.file.metadata import PREFIX
from modelexport.graph.file.reading import ModelFile
from modelexport.graph.file.weights import has_data
from modelexport.graph.index import KEY_SEPARATOR, Node, subgraphs_with_ids, value_id, walk_nodes
from modelexport.graph.protos import stated_attributes
from modelexport.record.hierarchy import ROOT, ModuleCall
from modelexport.record.lineage import descent_of
from modelexport.record.provenance import Attribution, Provenance
from modelexport.show.formats.drawing import Box, BoxKind, Drawing, Fact, Facts, Layer, Port, Sheet, Wire
from modelexport.show.formats.literals import (
    GraphPart,
    attribute_fact,
    graphs_of,
    strings_literal,
    tensor_text,
    typed_ports,
)

Stacks = Mapping[ModuleCall, tuple[ModuleCall, ...]]


def draw_layers(
    provenance: Provenance, inside: Iterable[tuple[ModuleCall, bool]]
) -> tuple[Mapping[ModuleCall, Layer], Stacks]:
    """Of every call that something is drawn inside of; `inside` says of what, and whether it is a node."""
    counts_by_call = Counter[ModuleCall]()
    for call, is_node in inside:
        counts_by_call[call] += is_node
    counts = Counter[ModuleCall]()
    stacks: dict[ModuleCall, tuple[ModuleCall, ...]] = {}
    for call in (call for call in counts_by_call if call.path != ROOT):
        # Without the model itself: a frame round everything says nothing.
        stack = tuple(above for above in provenance.hierarchy.stack(call) if above.path != ROOT)
        for depth, above in enumerate(stack):
            counts[above] += counts_by_call[call]
            stacks[above] = stack[: depth + 1]
    order = provenance.hierarchy.call_order
    calls = sorted(stacks, key=lambda call: (order.get(call, len(order)), call))
    return {call: _layer(provenance, call, stacks[call], counts[call]) for call in calls}, stacks


def _layer(provenance: Provenance, call: ModuleCall, stack: tuple[ModuleCall, ...], nodes: int) -> Layer:
    hierarchy = provenance.hierarchy
    module = hierarchy.modules.get(hierarchy.canonical.get(call.path, call.path))
    facts: dict[str, Fact] = {"module": str(call), "nodes": nodes}
    tag = provenance.tags.tag(call.path)
    if tag:
        facts["tag"] = tag
    if module is not None:
        facts |= {"class": module.class_name, "package": module.package}
        facts["parameters"] = sum(tensor.size for tensor in module.parameters)
    calls = hierarchy.call_counts.get(call.path, 0)
    if calls > 1:
        facts["calls"] = calls
    return Layer(call, _label(call, stack), "" if module is None else module.class_name, facts)


def _label(call: ModuleCall, stack: tuple[ModuleCall, ...]) -> str:
    """Its path below the call around it. A module that is held elsewhere has its whole path, behind a dot."""
    text, above = str(call), f"{stack[-2].path}." if len(stack) > 1 else ""
    return text.removeprefix(above) if text.startswith(above) else f".{text}"


# Attributes of the node itself, and what others wrote into its metadata, are told apart from what we know of it.
ATTRIBUTE = "onnx."
METADATA = "metadata."


def draw(file: ModelFile, provenance: Provenance | None, name: str) -> Drawing:
    """`provenance` is that of exactly the nodes of the file; without it, nothing is known of modules."""
    return _Artist(file, provenance).drawing(name)


class _Artist:
    """Collects boxes and wires part by part: a wire needs the box that its value comes from."""

    def __init__(self, file: ModelFile, provenance: Provenance | None) -> None:
        self._file, self._known = file, provenance
        self._parts = list(graphs_of(file.proto))
        self._ports = typed_ports(self._parts)
        self._sources: dict[str, tuple[str, int]] = {}
        self._ids: set[str] = set()
        self._boxes: list[Box] = []
        self._wires: list[Wire] = []
        self._class_of = cache(self._class_name)
        self._tag_of = cache(lambda path: "" if provenance is None else provenance.tags.tag(path))

    def drawing(self, name: str) -> Drawing:
        operators = list(self._operators())  # first: their ids are their keys
        for part in self._parts:
            self._boxes += (*self._inputs(part), *self._constants(part))
        self._boxes += operators
        for box in operators:
            self._connect(box)
        for part in self._parts:
            self._boxes += list(self._outputs(part))
        inside = [(box.call, box.kind is BoxKind.OPERATOR) for box in self._boxes if box.call is not None]
        layers, stacks = ({}, {}) if self._known is None else draw_layers(self._known, inside)
        return Drawing(
            name=name,
            boxes=tuple(self._boxes),
            wires=tuple(self._wires),
            sheets=tuple(Sheet(part.id, part.name, part.owner) for part in self._parts),
            layers=layers,
            stacks=stacks,
            facts=self._model_facts(),
        )

    def _operators(self) -> Iterator[Box]:
        """A node that calls a function shows its body, like one with subgraphs."""
        functions = {part.id for part in self._parts if isinstance(part.proto, onnx.FunctionProto)}
        protos: dict[str, list[onnx.NodeProto]] = {}
        for key, proto in walk_nodes(self._file.proto):
            protos.setdefault(key, []).append(proto)
        for node in self._file.graph.nodes:
            key, proto = node.key, protos[node.key].pop(0)  # a key is unique where the file is valid
            box_id = self._unused(key or node.name or node.op_type)
            called = node.function
            attribution = None if self._known is None else self._known.nodes[key].attribution
            for index, value in enumerate(node.outputs):
                self._sources.setdefault(value, (box_id, index))
            yield Box(
                id=box_id,
                kind=BoxKind.OPERATOR,
                label=node.op_type,
                sheet=node.graph,
                call=None if attribution is None else attribution.ancestor,
                facts=self._node_facts(node, proto, attribution),
                inputs=tuple(map(self._port, node.inputs)),
                outputs=tuple(map(self._port, node.outputs)),
                bodies=(
                    *(body for body, _ in subgraphs_with_ids(proto, key)),
                    *([called] if called in functions else []),
                ),
            )

    def _node_facts(self, node: Node, proto: onnx.NodeProto, attribution: Attribution | None) -> Facts:
        """In the order in which viewers list them: what it is, whose it is, its attributes, what others noted on it."""
        facts: dict[str, Fact] = {"name": node.name, "op_type": node.op_type}
        facts |= {name: text for name, text in (("domain", node.domain), ("overload", node.overload)) if text}
        if attribution is not None:
            facts |= self._known_facts(attribution)
        for name, item in stated_attributes(proto).items():
            facts[f"{ATTRIBUTE}{name}"] = _shown(item, node.key)
        # What we wrote ourselves is among what is known; without a record, it is what is left of it.
        foreign = (pair for pair in node.metadata.items() if self._known is None or not pair[0].startswith(PREFIX))
        facts |= {f"{METADATA}{key}": text for key, text in foreign}
        if proto.doc_string:
            facts["doc_string"] = proto.doc_string
        return facts

    def _known_facts(self, attribution: Attribution) -> dict[str, Fact]:
        descent = descent_of(attribution)
        facts: dict[str, Fact | None] = {
            "module": attribution.module,
            "modules": strings_literal(attribution.modules) if len(attribution.owners) > 1 else None,
            "class": None if attribution.ancestor is None else self._class_of(attribution.ancestor.path),
            "tag": "" if attribution.ancestor is None else self._tag_of(attribution.ancestor.path),
            "role": attribution.role,
            "layer": attribution.layer_id,
            "confidence": attribution.confidence.label,
            "evidence": "; ".join(map(str, attribution.evidence)),
            "relation": None if descent is None else str(descent),
            "reason": attribution.reason,
        }
        # The path of the model itself is empty, and is told apart from a path that is not known.
        return {name: fact for name, fact in facts.items() if fact is not None and (fact != "" or name == "module")}

    def _class_name(self, path: str) -> str:
        assert self._known is not None
        hierarchy = self._known.hierarchy
        module = hierarchy.modules.get(hierarchy.canonical.get(path, path))
        return "" if module is None else module.class_name

    def _inputs(self, part: GraphPart) -> Iterator[Box]:
        """An initializer that is listed as an input is a constant with a default, and no input."""
        if isinstance(part.proto, onnx.FunctionProto):
            names = list(part.proto.input)
        else:
            stored = {tensor.name for tensor in part.proto.initializer}
            stored |= {tensor.values.name for tensor in part.proto.sparse_initializer}
            names = [info.name for info in part.proto.input if info.name not in stored]
        for name in filter(None, names):
            value = value_id(part.id, name)
            if value not in self._sources:
                box_id = self._unused(value)
                self._sources[value] = box_id, 0
                yield Box(box_id, BoxKind.INPUT, name, part.id, None, {"name": name}, outputs=(self._port(value),))

    def _constants(self, part: GraphPart) -> Iterator[Box]:
        """The content only of those that are in the file itself and small."""
        if isinstance(part.proto, onnx.FunctionProto):
            return
        input_names = {info.name for info in part.proto.input}
        for tensor in part.proto.initializer:
            small = has_data(tensor) or 0 in tensor.dims
            yield self._constant(part, tensor.name, tensor_text(tensor) if small else "", tensor.name in input_names)
        for sparse in part.proto.sparse_initializer:
            yield self._constant(part, sparse.values.name, "", sparse.values.name in input_names)

    def _constant(self, part: GraphPart, name: str, content: str, is_input: bool) -> Box:
        """A weight is drawn inside of the module that it belongs to; one that several share, around them."""
        value = value_id(part.id, name)
        box_id = self._unused(value)
        self._sources.setdefault(value, (box_id, 0))
        attribution = None if self._known is None else self._known.initializers.get(value)
        facts: dict[str, Fact] = {"name": name}
        if attribution is not None:
            facts |= self._known_facts(attribution)
        if content:
            facts["value"] = content
        if is_input:  # a model may be given another value in its place
            facts["default"] = "of an input"
        call = None if attribution is None else attribution.ancestor
        return Box(box_id, BoxKind.CONSTANT, name, part.id, call, facts, outputs=(self._port(value),))

    def _outputs(self, part: GraphPart) -> Iterator[Box]:
        for index, value in enumerate(self._file.graph.body_outputs[part.id]):
            returned = part.proto.output[index]
            name = returned if isinstance(returned, str) else returned.name  # a function has names alone
            box_id = self._unused(f"{value_id(part.id, name)} (output)")
            box = Box(box_id, BoxKind.OUTPUT, name, part.id, None, {"name": name}, inputs=(self._port(value),))
            self._connect(box)
            yield box

    def _connect(self, box: Box) -> None:
        """An input that is left out keeps its position, which is its meaning to the operator."""
        for index, port in enumerate(box.inputs):
            if port.value:
                source, output = self._sources.get(port.value) or self._missing(port, box.sheet)
                self._wires.append(Wire(source, output, box.id, index, port.value))

    def _missing(self, port: Port, sheet: str) -> tuple[str, int]:
        """A value that nothing makes gets a box, so that the wire to its reader is drawn."""
        box_id = self._unused(port.value)
        self._sources[port.value] = box_id, 0
        self._boxes.append(Box(box_id, BoxKind.MISSING, port.value, sheet, None, {"name": port.value}, outputs=(port,)))
        return box_id, 0

    def _port(self, value: str) -> Port:
        return self._ports.get(value) or Port(value)

    def _unused(self, name: str) -> str:
        """Names of values and keys of nodes may be equal; ids may not."""
        candidate, number = name, 1
        while candidate in self._ids:
            number += 1
            candidate = f"{name} ({number})"
        self._ids.add(candidate)
        return candidate

    def _model_facts(self) -> Facts:
        """What tells two files of one model apart: who exported it, with which opsets, how it was attributed."""
        proto = self._file.proto
        producer = f"{proto.producer_name} {proto.producer_version}".strip()
        opsets = ", ".join(f"{entry.domain or 'ai.onnx'} {entry.version}" for entry in proto.opset_import)
        facts: dict[str, Fact] = {"opsets": opsets, "ir_version": proto.ir_version}
        if producer:
            facts["producer"] = producer
        if self._known is not None:
            root = self._known.hierarchy.modules.get("")
            facts |= {"strategy": self._known.origin.strategy, "exporter": self._known.origin.exporter}
            facts |= {} if root is None else {"class": root.class_name}
        props = {entry.key: entry.value for entry in proto.metadata_props if not entry.key.startswith(PREFIX)}
        return facts | {f"{METADATA}{key}": text for key, text in props.items()}


def _shown(item: onnx.AttributeProto, key: str) -> Fact:
    """Bodies are sheets of their own; the attribute says which."""
    body = f"{key}{KEY_SEPARATOR}{item.name}"
    if item.type == onnx.AttributeProto.GRAPH:
        return body
    if item.type == onnx.AttributeProto.GRAPHS:
        return ", ".join(f"{body}[{index}]" for index in range(len(item.graphs)))
    return attribute_fact(item)
