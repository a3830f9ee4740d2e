"""What a file costs, module by module. Nothing here needs torch, runs a model or reads a weight."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

from modelexport.api.opening import OpenedFile, open_file
from modelexport.costing.counting import count
from modelexport.errors import RecordMissing, UserError
from modelexport.graph.small_inside import small_inside
from modelexport.record.cost import Cost
from modelexport.record.provenance import Provenance

# Names of axes that an error lists.
_SHOWN = 12
# More than this is no size of a tensor in ONNX.
_LARGEST = 2**63 - 1
_CHANGED = (
    "the graph was changed after its record was made, and nodes may be charged to other modules than those they belong "
    "to: `modelexport relink` says what became of them"
)


def cost(source: str | Path, at: Mapping[str, int] | None = None) -> Cost:
    """FLOPs, parameters, and bytes of weights and activations of each node and module, from shapes.

    at  sizes of axes that the file leaves open, such as {"batch": 8}; amounts are polynomials of those that remain
    """
    sizes = dict(at or {})
    ensure_sizes(sizes)
    opened = open_file(Path(source))
    record = _record(opened)
    found = count(str(source), small_inside(opened.file), opened.graph, record, sizes)
    ensure_axes(found, sizes)
    changed = record is not None and not opened.is_up_to_date
    return replace(found, notes=(*found.notes, _CHANGED)) if changed else found


def ensure_sizes(sizes: Mapping[str, object], least: int = 0) -> None:
    """Raise UserError for what is no size of an axis."""
    for name, size in sizes.items():
        if type(size) is not int or not least <= size <= _LARGEST:
            shown = repr(size) if type(size) is not int or abs(size) <= _LARGEST else "that large"
            raise UserError(
                f"the axis {name!r} cannot have the size {shown}",
                f"Sizes are whole numbers from {least} to {_LARGEST}.",
            )


def ensure_axes(found: Cost, sizes: Mapping[str, int]) -> None:
    """Raise UserError for axes that a file does not have."""
    names = [axis.name for axis in found.axes]
    missing = next((name for name in sizes if name not in names), None)
    if missing is None:
        return
    import difflib  # only needed when something is wrong, and not quick to import

    near = difflib.get_close_matches(missing, names, n=1, cutoff=0.5)
    shown = ", ".join(names[:_SHOWN]) + (", …" if len(names) > _SHOWN else ".")
    guess = f"Did you mean {near[0]!r}? " if near else ""
    raise UserError(
        f"{found.file} has no axis {missing!r}", f"{guess}It has {shown}" if names else "All of its axes have a size."
    )


def _record(opened: OpenedFile) -> Provenance | None:
    """A file without a record costs as much as one with."""
    try:
        return opened.subject.provenance
    except RecordMissing:
        return None
