r"""Text formats of `convert`: Graphviz, Mermaid, GraphML and CSV.

    dot       subgraph cluster_0 { label="encoder (BertEncoder)"; n3 [label="MatMul"]; }
    mermaid   subgraph g0["encoder (BertEncoder)"] / n3["MatMul"] / end
    graphml   <node id="g0" yfiles.foldertype="group"><graph id="g0:"><node id="n3"/></graph></node>
    csv       one row for each node of every graph; edges are in it by the names of values

Mermaid (https://mermaid.js.org) draws at most 500 edges and 50,000 characters unless the page that shows it says
otherwise. Inside of quotes it still reads entities, directives and Markdown, so that everything but letters, digits and
a few signs is a number there.

Ids are numbers, because GraphML (http://graphml.graphdrawing.org) allows no other characters than those of names in
them; names are data. Characters that XML has no way to write (`\x01`, `\ufffe`, half of a surrogate pair), that readers
change (a carriage return) or that a terminal obeys (`\x9b`) are written `_x0001_`; text that looks like this has its
underscore written `_x005F_`.

Text is yielded part by part, so that that of a large model is never in memory as a whole.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping
from itertools import accumulate
from xml.sax.saxutils import escape, quoteattr

from modelexport.errors import cell, printable
from modelexport.show.data.fields import csv_lines
from modelexport.show.formats.draw import ATTRIBUTE
from modelexport.show.formats.drawing import Box, BoxKind, Drawing, Fact, Opened, Wire, nested
from modelexport.show.formats.literals import fact_text, strings_literal

# Operators and constants have the shape that the head of the file gives all nodes.
_SHAPES = {BoxKind.INPUT: "ellipse", BoxKind.OUTPUT: "ellipse", BoxKind.MISSING: "ellipse"}
# Rounds of improving the layout, per node. Without a limit, dot takes minutes for some graphs with hundreds of nodes.
_HASTE = 'nslimit="2", nslimit1="2"'
_ESCAPES = str.maketrans({"\\": "\\\\", '"': '\\"', "&": "&amp;"})


def dot(drawing: Drawing) -> Iterator[str]:
    """https://graphviz.org/doc/info/lang.html: clusters by the prefix of their name."""
    name = drawing.facts.get("class", "")
    title = f"{drawing.name} ({name})" if name else drawing.name
    yield f"digraph {_quoted(drawing.name)} {{\n"
    yield f"graph [{_HASTE}, label={_quoted(title)}];\n"
    yield 'node [shape="box", style="rounded"];\n'
    numbers: dict[str, int] = {}
    for item in nested(drawing):
        if isinstance(item, Opened):
            yield f"subgraph cluster_{item.number} {{\nlabel={_quoted(item.title)};\n"
        elif isinstance(item, Box):
            numbers[item.id] = len(numbers)
            yield f"n{numbers[item.id]} {_attributes(item)};\n"
        else:  # the innermost cluster ends
            yield "}\n"
    for wire in drawing.wires:
        yield f"n{numbers[wire.source]} -> n{numbers[wire.target]} [tooltip={_quoted(wire.value)}];\n"
    yield "}\n"


def _attributes(box: Box) -> str:
    nodes = box.facts.get("nodes")
    label = f'"{_escaped(box.label)}\\n{_escaped(str(nodes))}"' if nodes else _quoted(box.label)
    # What a person looks for first; an SVG shows it when the mouse is over the node.
    facts = (box.facts.get(name) for name in ("name", "module", "role", "confidence"))
    tooltip = " · ".join(str(fact) for fact in facts if fact) or box.label
    attributes = {"label": label, "tooltip": _quoted(tooltip)}
    if box.kind in _SHAPES:
        attributes["shape"] = f'"{_SHAPES[box.kind]}"'
    return f"[{', '.join(f'{name}={text}' for name, text in attributes.items())}]"


def _quoted(text: str) -> str:
    return f'"{_escaped(text)}"'


def _escaped(text: str) -> str:
    """Graphviz reads `\\N` and `\\l` as well as `&lt;` in a label."""
    return printable(text).translate(_ESCAPES)


MOST_EDGES = 500  # `maxEdges` of Mermaid's configuration
MOST_CHARACTERS = 50_000  # `maxTextSize`
_UNSAFE = re.compile(r"[^\w .,()]|\.(?= )", re.ASCII)


def mermaid(drawing: Drawing) -> Iterator[str]:
    """https://mermaid.js.org/syntax/flowchart.html: groups are subgraphs, and end with a word instead of a brace."""
    yield "flowchart TB\n"
    numbers: dict[str, int] = {}
    for item in nested(drawing):
        if isinstance(item, Opened):
            yield f'subgraph g{item.number}["{_mermaid_escaped(item.title)}"]\n'
        elif isinstance(item, Box):
            numbers[item.id] = len(numbers)
            yield f"n{numbers[item.id]}{_shape(item)}\n"
        else:
            yield "end\n"
    for wire in drawing.wires:
        yield f"n{numbers[wire.source]} --> n{numbers[wire.target]}\n"


def fits_mermaid(drawing: Drawing) -> bool:
    """Stops at the limit: a large model has millions of characters."""
    lengths = accumulate(map(len, mermaid(drawing)))
    return len(drawing.wires) <= MOST_EDGES and all(length <= MOST_CHARACTERS for length in lengths)


def _shape(box: Box) -> str:
    """Round ends for inputs and outputs, which `([…])` is in Mermaid."""
    nodes = box.facts.get("nodes")
    label = _mermaid_escaped(box.label) + (f"<br/>{_mermaid_escaped(str(nodes))}" if nodes else "")
    return f'["{label}"]' if box.kind is BoxKind.OPERATOR else f'(["{label}"])'


def _mermaid_escaped(text: str) -> str:
    """`#35;` is a character by its number. An empty label is a syntax error: a blank takes its place."""
    return _UNSAFE.sub(lambda match: f"#{ord(match[0])};", printable(text)) or "#32;"


_HEAD = """<?xml version="1.0" encoding="UTF-8"?>
<graphml xmlns="http://graphml.graphdrawing.org/xmlns">
"""
_UNWRITABLE = re.compile(
    "[^\\t\\n\\x20-\\x7e\\xa0-\\ud7ff\\ue000-\\ufffd\\U00010000-\\U0010ffff]|_(?=x[0-9A-Fa-f]{4}_)"
)
_LONGEST = 2**63  # a `long` of XML Schema has 64 bits


def graphml(drawing: Drawing) -> Iterator[str]:
    """Keys are declared before the graph, as the schema wants it, so that all facts are looked at twice."""
    facts = _Facts(drawing)
    yield _HEAD
    for (element, name, kind), key in facts.keys.items():
        yield f'<key id="{key}" for="{element}" attr.name={quoteattr(_writable(name))} attr.type="{kind}"/>\n'
    yield f"<graph id={quoteattr('G')} edgedefault={quoteattr('directed')}>\n"
    yield facts.data("graph", {"name": drawing.name, **drawing.facts})
    numbers: dict[str, int] = {}
    parents: list[str] = []
    for item in nested(drawing):
        if isinstance(item, Opened):
            yield _group(item, parents, facts)
            parents.append(f"g{item.number}")
        elif isinstance(item, Box):
            numbers[item.id] = len(numbers)
            yield f'<node id="n{numbers[item.id]}">{facts.data("node", _box_facts(item, parents))}</node>\n'
        else:
            parents.pop()
            yield "</graph></node>\n"
    for number, wire in enumerate(drawing.wires):
        ends = f'source="n{numbers[wire.source]}" target="n{numbers[wire.target]}"'
        yield f'<edge id="e{number}" {ends}>{facts.data("edge", _wire_facts(wire, drawing))}</edge>\n'
    yield "</graph>\n</graphml>\n"


def _writable(text: str) -> str:
    """The way that Office Open XML does it (`ST_Xstring`), so that it can be read back exactly."""
    return _UNWRITABLE.sub(lambda match: f"_x{ord(match[0]):04X}_", text)


def _group(item: Opened, parents: list[str], facts: _Facts) -> str:
    """A group has a graph inside; yEd knows it as a folder by `yfiles.foldertype`."""
    data = facts.data("node", {"label": item.title, **_parent(parents), **item.facts})
    inside = f'<graph id="g{item.number}:" edgedefault="directed">'
    return f'<node id="g{item.number}" yfiles.foldertype="group">{data}{inside}\n'


def _parent(parents: list[str]) -> dict[str, Fact]:
    return {"parent": parents[-1]} if parents else {}


def _box_facts(box: Box, parents: list[str]) -> dict[str, Fact]:
    """`parent` is there as well as the nesting: a reader without nested graphs still knows the group."""
    facts: dict[str, Fact] = {"key": box.id, "label": box.label, "kind": str(box.kind), **_parent(parents), **box.facts}
    if box.inputs:
        facts["inputs"] = strings_literal(port.value for port in box.inputs)
    if box.outputs:
        facts["outputs"] = strings_literal(port.value for port in box.outputs)
        types = [f"{port.dtype}{port.shape}" for port in box.outputs]
        if any(types):
            facts["types"] = "; ".join(types)
    return facts


def _wire_facts(wire: Wire, drawing: Drawing) -> dict[str, Fact]:
    """Which output leads to which input: a node may read the same value twice."""
    facts: dict[str, Fact] = {"value": wire.value, "output": wire.output, "input": wire.input}
    port = drawing.by_id[wire.source].outputs[wire.output]
    return facts | {name: text for name, text in (("dtype", port.dtype), ("shape", port.shape)) if text}


class _Facts:
    def __init__(self, drawing: Drawing) -> None:
        self.keys: dict[tuple[str, str, str], str] = {}
        self._declare("graph", {"name": "", **drawing.facts})
        layers = [layer.facts for layer in drawing.layers.values()]
        of_groups: dict[str, Fact] = {"kind": "", "name": "", "label": "", "parent": "g"}
        of_boxes: dict[str, Fact] = {"key": "", "inputs": "", "outputs": "", "types": ""}
        for facts in (of_groups, of_boxes, *layers, *(box.facts for box in drawing.boxes)):
            self._declare("node", facts)
        self._declare("edge", {"value": "", "output": 0, "input": 0, "dtype": "", "shape": ""})

    def _declare(self, element: str, facts: Mapping[str, Fact]) -> None:
        for name, fact in facts.items():
            self.keys.setdefault((element, name, _type(fact)), f"d{len(self.keys)}")

    def data(self, element: str, facts: Mapping[str, Fact]) -> str:
        return "".join(
            f'<data key="{self.keys[element, name, _type(fact)]}">{escape(_text(fact))}</data>'
            for name, fact in facts.items()
        )


def _type(fact: Fact) -> str:
    """A key has one type; an integer beyond 64 bits is no `long` of XML Schema."""
    if isinstance(fact, float):
        return "double"
    return "long" if isinstance(fact, int) and -_LONGEST <= fact < _LONGEST else "string"


def _text(fact: Fact) -> str:
    """XML Schema writes infinity `INF`, which Python does not."""
    if not isinstance(fact, float):
        return _writable(str(fact))
    return repr(fact) if math.isfinite(fact) else {math.inf: "INF", -math.inf: "-INF"}.get(fact, "NaN")


# New columns go behind the others: a reader may count them.
COLUMNS = (
    *("name", "key", "op_type", "domain", "graph", "module", "modules", "class", "tag", "role", "layer", "confidence"),
    *("evidence", "relation", "reason", "inputs", "outputs", "types", "attributes"),
)
# What a fact of the same name says.
_FACTS = frozenset(COLUMNS) - {"key", "graph", "inputs", "outputs", "types", "attributes"}


def table(drawing: Drawing) -> Iterator[str]:
    """Operators alone: constants, inputs and outputs are in the rows of the nodes that read or make them."""
    yield csv_lines([COLUMNS])
    for box in drawing.boxes:
        if box.kind is BoxKind.OPERATOR:
            yield csv_lines([map(cell, _row(box))])


def _row(box: Box) -> Iterator[str]:
    computed = {
        "key": box.id,
        "graph": box.sheet,
        "inputs": "; ".join(port.value for port in box.inputs),
        "outputs": "; ".join(port.value for port in box.outputs),
        "types": "; ".join(f"{port.dtype}{port.shape}" for port in box.outputs),
        "attributes": "; ".join(
            f"{name.removeprefix(ATTRIBUTE)}={fact_text(fact)}"
            for name, fact in box.facts.items()
            if name.startswith(ATTRIBUTE)
        ),
    }
    for column in COLUMNS:
        yield fact_text(box.facts.get(column, "")) if column in _FACTS else computed[column]
