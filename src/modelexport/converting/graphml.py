"""GraphML, nested by module: a module call is a node with a graph inside, as yEd and networkx know it.

Ids are numbers, because GraphML allows no other characters than those of names in them; names are data. Characters
that XML has no way to write (`\\x01`, `\\ufffe`, half of a surrogate pair), that readers change (a carriage return) or
that a terminal obeys (`\\x9b`) are written `_x0001_`; text that looks like this has its underscore written `_x005F_`.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping
from xml.sax.saxutils import escape, quoteattr

from modelexport.converting.drawing import Box, Drawing, Fact, Wire
from modelexport.converting.literals import strings_literal
from modelexport.converting.nesting import Opened, nested

_HEAD = """<?xml version="1.0" encoding="UTF-8"?>
<graphml xmlns="http://graphml.graphdrawing.org/xmlns">
"""
_UNWRITABLE = re.compile(
    "[^\\t\\n\\x20-\\x7e\\xa0-\\ud7ff\\ue000-\\ufffd\\U00010000-\\U0010ffff]|_(?=x[0-9A-Fa-f]{4}_)"
)
_ESCAPED = re.compile("_x([0-9A-Fa-f]{4})_")
_LONGEST = 2**63


def graphml(drawing: Drawing) -> Iterator[str]:
    facts = _Facts(drawing)
    yield _HEAD
    yield from facts.declarations()
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


def unescaped(text: str) -> str:
    """A text as it was before it was made fit for XML."""
    return _ESCAPED.sub(lambda found: chr(int(found[1], 16)), text)


def _writable(text: str) -> str:
    return _UNWRITABLE.sub(lambda found: f"_x{ord(found[0]):04X}_", text)


def _group(item: Opened, parents: list[str], facts: _Facts) -> str:
    data = facts.data("node", {"label": item.title, **_parent(parents), **item.facts})
    inside = f'<graph id="g{item.number}:" edgedefault="directed">'
    return f'<node id="g{item.number}" yfiles.foldertype="group">{data}{inside}\n'


def _parent(parents: list[str]) -> dict[str, Fact]:
    return {"parent": parents[-1]} if parents else {}


def _box_facts(box: Box, parents: list[str]) -> dict[str, Fact]:
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
    facts: dict[str, Fact] = {"value": wire.value, "output": wire.output, "input": wire.input}
    port = drawing.by_id[wire.source].outputs[wire.output]
    return facts | {name: text for name, text in (("dtype", port.dtype), ("shape", port.shape)) if text}


class _Facts:
    """Facts as data elements, each under the key that was declared for its name and type."""

    def __init__(self, drawing: Drawing) -> None:
        self._keys: dict[tuple[str, str, str], str] = {}
        self._declare("graph", {"name": "", **drawing.facts})
        layers = [layer.facts for layer in drawing.layers.values()]
        of_groups: dict[str, Fact] = {"kind": "", "name": "", "label": "", "parent": "g"}
        of_boxes: dict[str, Fact] = {"key": "", "inputs": "", "outputs": "", "types": ""}
        for facts in (of_groups, of_boxes, *layers, *(box.facts for box in drawing.boxes)):
            self._declare("node", facts)
        self._declare("edge", {"value": "", "output": 0, "input": 0, "dtype": "", "shape": ""})

    def _declare(self, element: str, facts: Mapping[str, Fact]) -> None:
        for name, fact in facts.items():
            key = element, name, _type(fact)
            if key not in self._keys:
                self._keys[key] = f"d{len(self._keys)}"

    def declarations(self) -> Iterator[str]:
        for (element, name, kind), key in self._keys.items():
            yield f'<key id="{key}" for="{element}" attr.name={quoteattr(_writable(name))} attr.type="{kind}"/>\n'

    def data(self, element: str, facts: Mapping[str, Fact]) -> str:
        return "".join(
            f'<data key="{self._keys[element, name, _type(fact)]}">{escape(_text(fact))}</data>'
            for name, fact in facts.items()
        )


def _type(fact: Fact) -> str:
    if isinstance(fact, float):
        return "double"
    return "long" if isinstance(fact, int) and -_LONGEST <= fact < _LONGEST else "string"


def _text(fact: Fact) -> str:
    if not isinstance(fact, float):
        return _writable(str(fact))
    return repr(fact) if math.isfinite(fact) else {math.inf: "INF", -math.inf: "-INF"}.get(fact, "NaN")
