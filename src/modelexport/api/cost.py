"""What a file costs, module by module. Nothing here needs torch, runs a model or reads a weight."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from modelexport.api.opening import OpenedFile, open_file
from modelexport.costing.counting import count
from modelexport.errors import RecordMissing, UserError
from modelexport.record.cost import Cost
from modelexport.record.provenance import Provenance


def cost(source: str | Path, at: Mapping[str, int] | None = None) -> Cost:
    """FLOPs, parameters, and bytes of weights and activations of each node and module, from shapes.

    at  sizes of axes that the file leaves open, such as {"batch": 8}; amounts are polynomials of those that remain
    """
    sizes = dict(at or {})
    for name, size in sizes.items():
        if type(size) is not int or size < 0:
            raise UserError(
                f"the axis {name!r} is to have the size {size!r}", "Sizes are whole numbers that are not negative."
            )
    opened = open_file(Path(source))
    found = count(str(source), opened.file.proto, opened.graph, _record(opened), sizes)
    _ensure_known(found, sizes)
    return found


def _record(opened: OpenedFile) -> Provenance | None:
    """A file without a record costs as much as one with."""
    try:
        return opened.subject.provenance
    except RecordMissing:
        return None


def _ensure_known(found: Cost, sizes: Mapping[str, int]) -> None:
    names = [axis.name for axis in found.axes]
    for name in sizes:
        if name not in names:
            known = f"It has {', '.join(names)}." if names else "All of its axes have a size."
            raise UserError(f"{found.file} has no axis {name!r}", known)
