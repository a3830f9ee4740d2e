"""Mermaid: a flowchart of modules, for Markdown.

Mermaid draws at most 500 edges and 50,000 characters unless the page that shows it says otherwise. Inside of quotes it
still reads entities, directives and Markdown, so that everything but letters, digits and a few signs is a number there.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from modelexport.converting.drawing import Box, Drawing, Kind
from modelexport.converting.nesting import Opened, nested
from modelexport.record.wording import printable

MOST_EDGES = 500
MOST_CHARACTERS = 50_000
_UNSAFE = re.compile(r"[^\w .,()]|\.(?= )", re.ASCII)


def mermaid(drawing: Drawing) -> Iterator[str]:
    yield "flowchart TB\n"
    numbers: dict[str, int] = {}
    for item in nested(drawing):
        if isinstance(item, Opened):
            yield f"subgraph g{item.number}[{_quoted(item.title)}]\n"
        elif isinstance(item, Box):
            numbers[item.id] = len(numbers)
            yield f"n{numbers[item.id]}{_shape(item)}\n"
        else:
            yield "end\n"
    for wire in drawing.wires:
        yield f"n{numbers[wire.source]} --> n{numbers[wire.target]}\n"


def fits_mermaid(drawing: Drawing) -> bool:
    if len(drawing.wires) > MOST_EDGES:
        return False
    length = 0
    for part in mermaid(drawing):
        length += len(part)
        if length > MOST_CHARACTERS:
            return False
    return True


def _shape(box: Box) -> str:
    nodes = box.facts.get("nodes")
    label = _escaped(box.label) + (f"<br/>{_escaped(str(nodes))}" if nodes else "")
    return f'["{label}"]' if box.kind is Kind.OPERATOR else f'(["{label}"])'


def _quoted(text: str) -> str:
    return f'"{_escaped(text)}"'


def _escaped(text: str) -> str:
    return _UNSAFE.sub(lambda found: f"#{ord(found[0])};", printable(text)) or "#32;"
