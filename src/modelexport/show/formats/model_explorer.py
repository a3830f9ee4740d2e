"""Model Explorer (https://github.com/google-ai-edge/model-explorer): graphs, and which nodes of two models go together.

One layer for each module call, and one graph for each body and function:

    {"id": "node_add", "label": "Add", "namespace": "encoder (BertEncoder)/layer.0 (BertLayer)", "attrs": […]}

The page takes some characters for its own: it drops double quotes from what it shows, reads `/` and `;` in a namespace,
and keeps layers under ids that end in `___group___`. Names that contain these are written another way.

`sync_navigation` says what is selected in one model when a node or a layer is selected in the other beside it.

    left                  right (optimized)                     entry
    MatMul, Add           Gemm (made from both)                 left: MatMul, Add    right: Gemm
    encoder/layer.0       encoder/layer.0                       left: that layer     right: that layer
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Mapping
from itertools import chain
from typing import Any

from modelexport.errors import RecordMismatch
from modelexport.graph.algorithms import UnionFind
from modelexport.graph.index import MAIN
from modelexport.record.hierarchy import ModuleCall
from modelexport.show.formats.drawing import Box, BoxKind, Drawing, Fact, Port, Sheet, Wire
from modelexport.show.formats.literals import fact_text

Json = dict[str, Any]

GROUP = "___group___"
# What Model Explorer does not draw unless it is asked to.
_HIDDEN = "Const"
# The layers that the page itself puts inputs and outputs into.
ENDS = {BoxKind.INPUT: "GraphInputs", BoxKind.OUTPUT: "GraphOutputs"}
_QUOTES = re.compile('(\\\\*)(["＂])')
_IN_NAMESPACE = re.compile(r"[%/\\;]|_(?=__)")


def model_explorer(drawing: Drawing) -> Iterator[str]:
    outside = _crossing(drawing)
    yield f'{{"label": {json.dumps(drawing.name)}, "graphs": [\n'
    for number, sheet in enumerate(drawing.sheets):
        yield ",\n" if number else ""
        yield from _graph(sheet, drawing, outside)
    yield "\n]}\n"


def graph_id(sheet: str, drawing: Drawing) -> str:
    """The main graph goes by the name of the model, which is what the page shows as its title."""
    return sheet if sheet != MAIN else drawing.name


def node_id(box_id: str) -> str:
    """The page keeps nodes by id in an object of JavaScript, together with its layers."""
    return box_id.replace("___", "%5F__") if GROUP in box_id or box_id == "__proto__" else box_id


def namespace(call: ModuleCall | None, drawing: Drawing) -> str:
    titles = (drawing.layers[above].title for above in drawing.stack(call))
    return "/".join(_IN_NAMESPACE.sub(lambda match: f"%{ord(match[0]):02X}", title) for title in titles)


def shown(text: str) -> str:
    """With quotes that the page does not drop. `＂` stands for a double quote, and `\\＂` for itself."""
    quoted = _QUOTES.sub(lambda match: match[1] * 2 + ("＂" if match[2] == '"' else "\\＂"), text)
    return f" {quoted}" if quoted.lstrip(" ").startswith("dense<") else quoted  # which it would read as a tensor


def _graph(sheet: Sheet, drawing: Drawing, outside: Mapping[str, list[Wire]]) -> Iterator[str]:
    """Part by part: a document of a large model would not fit into memory twice."""
    boxes = drawing.by_sheet[sheet.id]
    yield f'{{"id": {json.dumps(graph_id(sheet.id, drawing))}, "nodes": [\n'
    nodes = chain(_captures(sheet, outside, drawing), (_node(box, drawing, outside) for box in boxes))
    for number, node in enumerate(nodes):
        yield ",\n" * bool(number) + json.dumps(node)
    rest = {
        "groupNodeAttributes": _layers(sheet, boxes, drawing),
        # Or it would drop a module that holds one node, and its name.
        "layoutConfigs": {"keepLayersWithASingleChild": True},
    }
    yield f"\n], {json.dumps(rest)[1:]}"


def _node(box: Box, drawing: Drawing, outside: Mapping[str, list[Wire]]) -> Json:
    """Edges are listed at the node that they lead to, which is how the page wants them."""
    wires = [_edge(wire, box, drawing) for wire in drawing.incoming.get(box.id, ())]
    node: Json = {
        "id": node_id(box.id),
        "label": _HIDDEN if box.kind is BoxKind.CONSTANT else box.label,
        "namespace": ENDS.get(box.kind) or namespace(box.call, drawing),
        "attrs": _attributes({"kind": str(box.kind), **box.facts}),
        "incomingEdges": wires + _through(box, outside, drawing),
        "inputsMetadata": list(_ports(box.inputs, "__tensor_tag")),
        "outputsMetadata": list(_ports(box.outputs, "tensor_name")),
    }
    return node | ({"subgraphIds": list(box.bodies)} if box.bodies else {})


def _attributes(facts: Mapping[str, Fact]) -> list[Json]:
    return [{"key": name, "value": shown(fact_text(fact))} for name, fact in facts.items()]


def _edge(wire: Wire, box: Box, drawing: Drawing) -> Json:
    """An edge cannot lead into another graph: then it starts at the captured value; see `_captures`."""
    crosses = drawing.by_id[wire.source].sheet != box.sheet
    return {
        "sourceNodeId": node_id(_capture_id(wire.value, box.sheet) if crosses else wire.source),
        "sourceNodeOutputId": "0" if crosses else str(wire.output),
        "targetNodeInputId": str(wire.input),
    }


def _ports(ports: Iterable[Port], name_key: str) -> Iterator[Json]:
    """`name_key` is the attribute that the page takes for the name: another one for inputs than for outputs."""
    for index, port in enumerate(ports):
        facts = (("dtype", port.dtype), ("shape", port.shape))
        attributes = [{"key": name_key, "value": port.value}, *({"key": k, "value": text} for k, text in facts if text)]
        if port.value:  # an optional one that is left out keeps its number
            yield {"id": str(index), "attrs": attributes}


def _layers(sheet: Sheet, boxes: Iterable[Box], drawing: Drawing) -> Json:
    """Attributes of layers, which the page shows when one is selected; the empty name is the graph itself."""
    calls = dict.fromkeys(above for box in boxes for above in drawing.stack(box.call))
    layers = {namespace(call, drawing): _texts(drawing.layers[call].facts) for call in calls}
    model_facts = {"name": drawing.name, **drawing.facts} if sheet.id == MAIN else {"name": sheet.name, "id": sheet.id}
    return {"": _texts(model_facts), **layers}


def _texts(facts: Mapping[str, Fact]) -> dict[str, str]:
    return {name: fact_text(fact) for name, fact in facts.items()}


def _crossing(drawing: Drawing) -> dict[str, list[Wire]]:
    """By the sheet of the reader: wires that come from a graph around it, which no edge can show."""
    wires_by_sheet: dict[str, list[Wire]] = {}
    for wire in drawing.wires:
        sheet = drawing.by_id[wire.target].sheet
        if drawing.by_id[wire.source].sheet != sheet:
            wires_by_sheet.setdefault(sheet, []).append(wire)
    return wires_by_sheet


def _captures(sheet: Sheet, outside: Mapping[str, list[Wire]], drawing: Drawing) -> Iterator[Json]:
    """In their place: nodes for what a body reads from the graphs around it."""
    for wire in {wire.value: wire for wire in outside.get(sheet.id, ())}.values():
        source = drawing.by_id[wire.source]
        facts: dict[str, Fact] = {"kind": "captured", "source": wire.source, "output": wire.output}
        yield {
            "id": node_id(_capture_id(wire.value, sheet.id)),
            "label": wire.value,
            "namespace": ENDS[BoxKind.INPUT],
            "attrs": _attributes(facts),
            "incomingEdges": [],
            "inputsMetadata": [],
            "outputsMetadata": list(_ports([source.outputs[wire.output]], "tensor_name")),
        }


def _capture_id(value: str, sheet: str) -> str:
    """An id of its own for each body: the name of the value is already that of the box which makes it."""
    return f"{sheet} reads {value}"


def _through(box: Box, outside: Mapping[str, list[Wire]], drawing: Drawing) -> list[Json]:
    """Edges to a node for what its bodies read, so that it is not drawn before what they need."""
    # By where they come from: a value that two bodies read is one edge.
    edges: dict[tuple[str, int], Json] = {}
    waiting = _owned(box, drawing)
    while waiting:
        sheet = waiting.pop()
        for wire in outside.get(sheet, ()):
            if drawing.by_id[wire.source].sheet == box.sheet:
                edges[wire.source, wire.output] = {
                    "sourceNodeId": node_id(wire.source),
                    "sourceNodeOutputId": str(wire.output),
                    "targetNodeInputId": _capture_id(wire.value, sheet),
                }
        waiting += [body for inner in drawing.by_sheet[sheet] for body in _owned(inner, drawing)]
    return list(edges.values())


def _owned(box: Box, drawing: Drawing) -> list[str]:
    """Its bodies. A function is nobody's, and reads nothing but what it is given."""
    return [name for name in box.bodies if drawing.sheet_by_id[name].owner]


Pair = tuple[str, str]
Sides = tuple[set[str], set[str]]


def sync_navigation(left: Drawing, right: Drawing, sources: Mapping[str, Iterable[str]] | None) -> str:
    """`sources` has the ids of the boxes on the left that each box on the right was made from.

    Without it, nodes are matched that the same module call has the same number of. Layers are those of the same call;
    weights, inputs and outputs those of the same name. Model Explorer takes only the last entry that an id occurs in,
    so that whatever has one side in common is one entry.
    """
    entries: UnionFind[tuple[int, str]] = UnionFind()
    nodes = _by_module(left, right) if sources is None else _by_lineage(left, right, sources)
    for left_id, right_id in chain(_by_name(left, right), nodes):
        entries.join((0, node_id(left_id)), (1, node_id(right_id)))
    mapped = [*_sync_layers(left, right), *map(_sides, entries.groups())]
    if not mapped:
        raise RecordMismatch(
            f"{left.name} and {right.name} have no module, node or weight in common", "Give two files of one model."
        )
    document = {
        "type": "sync_navigation",
        "mappingEntries": [{"leftNodeIds": sorted(a), "rightNodeIds": sorted(b)} for a, b in mapped],
        "disableMappingFallback": True,  # or nodes with equal ids are matched, whatever they compute
        "showDiffHighlights": sources is not None,
    }
    return json.dumps(document, indent=1) + "\n"


def _sides(group: Iterable[tuple[int, str]]) -> Sides:
    """Ids of both sides that belong together, directly or by others."""
    left, right = ({name for side, name in group if side == wanted} for wanted in (0, 1))
    return left, right


def _sync_layers(left: Drawing, right: Drawing) -> Iterator[Sides]:
    common = [(namespace(call, left), namespace(call, right)) for call in left.layers if call in right.layers]
    if common:  # in models that have nothing else in common, that both have inputs says nothing
        common += [(name, name) for name in ENDS.values()]
    return (({f"{left_name}{GROUP}"}, {f"{right_name}{GROUP}"}) for left_name, right_name in common)


def _by_lineage(left: Drawing, right: Drawing, sources: Mapping[str, Iterable[str]]) -> Iterator[Pair]:
    """A source that constant folding or a copy of the file has removed is on neither side."""
    for right_id, before in sources.items():
        if right_id in right.by_id:
            yield from ((left_id, right_id) for left_id in before if left_id in left.by_id)


def _by_name(left: Drawing, right: Drawing) -> Iterator[Pair]:
    """Weights, inputs and outputs. A weight whose name says nothing may belong to another module there."""
    right_boxes = {_place(box): box for box in right.boxes if box.kind is not BoxKind.OPERATOR}
    for box in left.boxes:
        partner = right_boxes.get(_place(box))
        if partner is not None and (box.call == partner.call or None in (box.call, partner.call)):
            yield box.id, partner.id


def _place(box: Box) -> tuple[BoxKind, str, str]:
    return box.kind, box.sheet, box.label


def _by_module(left: Drawing, right: Drawing) -> Iterator[Pair]:
    """The n-th Add of a call there is the n-th Add of it here, if both have as many."""
    right_groups = _groups(right)
    for group, nodes in _groups(left).items():
        if len(right_groups.get(group, ())) == len(nodes):
            pairs = zip(nodes, right_groups[group], strict=True)
            yield from ((left_box.id, right_box.id) for left_box, right_box in pairs)


def _groups(drawing: Drawing) -> dict[tuple[ModuleCall, str], list[Box]]:
    groups: dict[tuple[ModuleCall, str], list[Box]] = {}
    for box in drawing.boxes:
        if box.kind is BoxKind.OPERATOR and box.call is not None:
            groups.setdefault((box.call, box.label), []).append(box)
    return groups
