"""What was cut out of a file, for people and for programs."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import TYPE_CHECKING

from modelexport.record.extraction import RETURNED, End, Extraction, ExtractionCheck, Feed
from modelexport.record.wording import some_of
from modelexport.views.amounts import bytes_text, counted

if TYPE_CHECKING:
    from rich.text import Text

_FROM = {
    Feed.GIVEN: "what the module was given",
    Feed.RUN: "a tensor of the model's run that the module was not given",
    Feed.FILE: "a tensor of the whole file's: PyTorch has none like it",
}


def extraction_lines(found: Extraction, *, verbose: bool = False) -> Iterator[Text]:
    from modelexport.views.console import plain

    for path in found.files:
        yield plain(f"wrote {path} ({bytes_text(path.stat().st_size)})")
    nodes = len(found.provenance.nodes)
    along = f", {found.along} of them taken along" if found.along else ""
    yield plain(f"{found.class_name}: {counted(nodes, 'node')}{along}; {bytes_text(found.weights)} of weights")
    for word, ends in (("in", found.inputs), ("out", found.outputs)):
        for end in ends:
            yield plain(f"{word:<4}{end.name}  {end.dtype}{_shape(end)}")
    for note in found.notes:
        yield plain(f"note: {note}", "yellow")
    if found.check is not None:
        yield from _check_lines(found.check, verbose=verbose)
    if verbose:
        yield plain(", ".join(f"{step} {seconds:.1f} s" for step, seconds in found.seconds.items()), "dim")


def _shape(end: End) -> str:
    return "[" + ", ".join(str(dim) or "?" for dim in end.shape) + "]"


def _check_lines(check: ExtractionCheck, *, verbose: bool) -> Iterator[Text]:
    from modelexport.views.console import plain

    for one in check.outputs:
        apart = one.difference
        if verbose or not apart.agrees:
            figures = f"largest difference {apart.max_abs:.1e} (relative {apart.max_rel:.1e}), SQNR {apart.sqnr:.0f} dB"
            yield plain(f"{one.name}: {figures}, against {_against(one.against)}", "" if apart.agrees else "red")
        if apart.agrees and apart.sqnr < _TELLING:
            small = f"the numbers of {one.name} are so small that the tolerance tells little (SQNR {apart.sqnr:.0f} dB)"
            yield plain(f"note: {small}: try a smaller --tolerance", "yellow")
    for name, feed in check.fed.items():
        if verbose or feed is not Feed.GIVEN:
            yield plain(f"{name} was fed {_FROM[feed]}", "dim")
    yield plain(_verdict(check), "green" if check.ok else "red")


# Decibels that equal numbers have at least, whatever their size.
_TELLING = 40.0


def _against(word: str) -> str:
    return {RETURNED: "what the module returned", "run": "a value of the model's run"}.get(word, "the whole file")


def _verdict(check: ExtractionCheck) -> str:
    if check.ok and not check.whole:
        held = some_of(sorted({_against(one.against) for one in check.outputs}))
        return f"equals {held} (largest difference {check.max_abs:.1e}; {check.reference})"
    if check.ok:
        return f"equals the module of {check.reference} (largest difference {check.max_abs:.1e})"
    if not check.outputs:
        return f"not as the module of {check.reference}: what that was given does not fit what the file takes"
    if check.whole and not any(one.against == RETURNED for one in check.outputs):
        return f"not shown to equal the module of {check.reference}: nothing that the module returned is in the file"
    if check.lost and all(one.difference.agrees for one in check.outputs):
        lost = counted(check.lost, "tensor")
        return f"not as the module of {check.reference}: {lost} that it returned the whole file makes elsewhere"
    limit = f"allowed: {check.tolerance:g} + {check.tolerance:g} × (element + tensor's root mean square)"
    return f"not as the module of {check.reference}: largest difference {check.max_abs:.1e} ({limit})"


def extraction_json(found: Extraction) -> str:
    document = {
        "schema": 1,
        "source": found.source,
        "files": [str(path) for path in found.files],
        "asked": list(found.asked),
        "modules": list(found.modules),
        "class": found.class_name,
        "nodes": len(found.provenance.nodes),
        "taken_along": found.along,
        "weight_bytes": found.weights,
        "inputs": list(map(_end_document, found.inputs)),
        "outputs": list(map(_end_document, found.outputs)),
        "notes": list(found.notes),
        "check": None if found.check is None else _check_document(found.check),
        "seconds": {step: round(seconds, 3) for step, seconds in found.seconds.items()},
    }
    return json.dumps(document, indent=1) + "\n"


def _end_document(end: End) -> dict[str, object]:
    return {
        "name": end.name,
        "dtype": end.dtype,
        "shape": [dim if dim != "" else None for dim in end.shape],
        "value": end.value,
    }


def _check_document(check: ExtractionCheck) -> dict[str, object]:
    return {
        "ok": check.ok,
        "reference": check.reference,
        "tolerance": check.tolerance,
        "max_abs": _finite(check.max_abs),
        "fed": {name: str(feed) for name, feed in check.fed.items()},
        "outputs": [
            {
                "name": one.name,
                "against": one.against,
                "ok": one.difference.agrees,
                "max_abs": _finite(one.difference.max_abs),
                "max_rel": _finite(one.difference.max_rel),
                "sqnr": _finite(one.difference.sqnr),
            }
            for one in check.outputs
        ],
        "missing": check.missing,
        "lost": check.lost,
    }


def _finite(number: float) -> float | None:
    """JSON has no NaN and no infinity."""
    return number if abs(number) < float("inf") else None
