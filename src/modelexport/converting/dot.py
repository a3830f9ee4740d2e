"""Graphviz: a cluster for each module call."""

from __future__ import annotations

from collections.abc import Iterator

from modelexport.converting.drawing import Box, Drawing, Fact, Kind
from modelexport.converting.nesting import Opened, nested
from modelexport.record.wording import printable

_SHAPES = {Kind.INPUT: "ellipse", Kind.OUTPUT: "ellipse", Kind.MISSING: "ellipse"}
# Rounds of improving the layout, per node. Without a limit, dot takes minutes for some graphs with hundreds of nodes.
_HASTE = 'nslimit="2", nslimit1="2"'
_ESCAPES = str.maketrans({"\\": "\\\\", '"': '\\"', "&": "&amp;"})


def dot(drawing: Drawing) -> Iterator[str]:
    yield f"digraph {_quoted(drawing.name)} {{\n"
    yield f"graph [{_HASTE}, label={_quoted(_title(drawing))}];\n"
    yield 'node [shape="box", style="rounded"];\n'
    numbers: dict[str, int] = {}
    for item in nested(drawing):
        if isinstance(item, Opened):
            yield f"subgraph cluster_{item.number} {{\nlabel={_quoted(item.title)};\n"
        elif isinstance(item, Box):
            numbers[item.id] = len(numbers)
            yield f"n{numbers[item.id]} {_attributes(item)};\n"
        else:
            yield "}\n"
    for wire in drawing.wires:
        yield f"n{numbers[wire.source]} -> n{numbers[wire.target]} [tooltip={_quoted(wire.value)}];\n"
    yield "}\n"


def _title(drawing: Drawing) -> str:
    name = drawing.facts.get("class", "")
    return f"{drawing.name} ({name})" if name else drawing.name


def _attributes(box: Box) -> str:
    nodes = box.facts.get("nodes")
    label = f'"{_escaped(box.label)}\\n{_escaped(str(nodes))}"' if nodes else _quoted(box.label)
    told = {"label": label, "tooltip": _quoted(_tooltip(box))}
    if box.kind in _SHAPES:
        told["shape"] = f'"{_SHAPES[box.kind]}"'
    return f"[{', '.join(f'{name}={text}' for name, text in told.items())}]"


def _tooltip(box: Box) -> str:
    names = ("name", "module", "role", "confidence")
    found: list[Fact] = [box.facts[name] for name in names if box.facts.get(name)]
    return " · ".join(map(str, found)) or box.label


def _quoted(text: str) -> str:
    return f'"{_escaped(text)}"'


def _escaped(text: str) -> str:
    """Graphviz reads `\\N` and `\\l` as well as `&lt;` in a label."""
    return printable(text).translate(_ESCAPES)
