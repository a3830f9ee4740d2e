"""Formats of `convert`: the table of writers, and what each can show.

A new viewer format is a function from a `Drawing` to parts of text, in a file beside this one, and its name in
`WRITERS`. One that cannot draw thousands of nodes gets an `overview` of modules instead:

    model-explorer, graphml, csv   every node
    dot                            every node up to 2,000, then modules
    mermaid                        modules: its own limits are 500 edges and 50,000 characters
    netron                         a copy of the model itself, written by the api

What was left out to make a picture readable is said in a note, never silently:

    $ modelexport convert model.onnx --to mermaid
    modules are drawn, 2 levels deep
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass

from modelexport.errors import RecordMissing, UnknownName, UserError
from modelexport.show.formats import dot_mermaid_graphml_csv as text_formats
from modelexport.show.formats.dot_mermaid_graphml_csv import dot, fits_mermaid, graphml, mermaid
from modelexport.show.formats.drawing import BoxKind, Drawing, depth_of, overview, without_constants
from modelexport.show.formats.model_explorer import model_explorer

# More than these are no longer readable, and dot takes minutes to lay them out.
_MOST_DOT_NODES = 2_000
_MOST_DOT_MODULES = 500  # of an overview, which has clusters round all of them
_MOST_MERMAID_MODULES = 40  # a picture in a README is one screen
_LIMITS = f"mermaid draws at most {text_formats.MOST_EDGES} edges and {text_formats.MOST_CHARACTERS} characters"
_ATTACH = "Find the modules first: modelexport attach FILE -m MODEL -o TAGGED."

Writer = Callable[[Drawing], Iterator[str]]


@dataclass(frozen=True)
class Picture:
    """A drawing as text, part by part, and what there is to say about it."""

    parts: Iterator[str]
    notes: tuple[str, ...] = ()


# A name for each format; those that show modules instead of nodes come with the limits of what they can show.
WRITERS: Mapping[str, Writer] = {
    "model-explorer": model_explorer,
    "graphml": graphml,
    "dot": dot,
    "mermaid": mermaid,
    "csv": text_formats.table,
}
WITH_DEPTH = ("dot", "mermaid")
# A copy of the model itself; written by whoever can write models.
NETRON = "netron"
FORMATS = (*WRITERS, NETRON)


def ensure_format(name: str) -> None:
    """Before the file is read, which may take longer than the answer that the format is misspelt."""
    if name not in FORMATS:
        raise UnknownName("format", name, FORMATS)


def picture(drawing: Drawing, to: str, depth: int | None = None) -> Picture:
    """`depth` is how many levels of modules are shown, in a format that can show modules instead of nodes."""
    ensure_format(to)
    if depth is not None and to not in WITH_DEPTH:
        instead = " or ".join(f"--to {name}" for name in WITH_DEPTH)
        raise UserError(f"{to} shows every node, not modules to a depth", f"Leave --depth out, or use {instead}.")
    if to == "dot":
        return _dot(drawing, depth)
    if to == "mermaid":
        return _mermaid(drawing, depth)
    return Picture(WRITERS[to](drawing))


def _dot(drawing: Drawing, depth: int | None) -> Picture:
    nodes = _operators(drawing)
    if depth is not None:
        return Picture(dot(overview(drawing, depth)))
    if nodes <= _MOST_DOT_NODES:
        return Picture(dot(without_constants(drawing)))
    if not drawing.layers:
        return Picture(dot(without_constants(drawing)), (f"{nodes} nodes take graphviz very long to draw",))
    # Not less than one level: a single box is no picture.
    chosen = max(1, _deepest(drawing, lambda modules: _operators(modules) <= _MOST_DOT_MODULES))
    note = f"{nodes} nodes are more than graphviz can lay out; modules are drawn instead, {_levels(chosen)}"
    return Picture(dot(overview(drawing, chosen)), (note,))


def _mermaid(drawing: Drawing, depth: int | None) -> Picture:
    """Modules as deep as Mermaid's limits allow; nodes only where nothing is known of modules."""
    if not drawing.layers:
        flat = without_constants(drawing)
        if fits_mermaid(flat):
            return Picture(mermaid(flat))
        raise RecordMissing(f"{_LIMITS}, and nothing is known of modules", _ATTACH)
    if depth is None:
        few = _deepest(drawing, lambda modules: _operators(modules) <= _MOST_MERMAID_MODULES and fits_mermaid(modules))
        # A single box is no picture: rather more modules than can be read at a glance.
        chosen = few or _deepest(drawing, fits_mermaid, 1)
        return Picture(mermaid(overview(drawing, chosen)), (f"modules are drawn, {_levels(chosen)}",))
    chosen = _deepest(drawing, fits_mermaid, depth)
    too_much = f"{_LIMITS}: modules are drawn {_levels(chosen)} instead"
    # Fewer levels than asked for are news only if the model has more.
    deepest = min(depth, depth_of(drawing))
    return Picture(mermaid(overview(drawing, chosen)), (too_much,) if chosen < deepest else ())


def _deepest(drawing: Drawing, fits: Callable[[Drawing], bool], start: int | None = None) -> int:
    """The most levels of modules that fit; the least that there is if none do."""
    deepest = depth_of(drawing) if start is None else min(start, depth_of(drawing))
    return next((depth for depth in range(deepest, 0, -1) if fits(overview(drawing, depth))), 0)


def _levels(depth: int) -> str:
    return "as one box" if not depth else f"{depth} level{'s' * (depth != 1)} deep"


def _operators(drawing: Drawing) -> int:
    return sum(box.kind is BoxKind.OPERATOR for box in drawing.boxes)
