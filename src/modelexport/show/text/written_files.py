"""What an export gave, for people and for programs.

What was cut out of a file, for people and for programs.

What folding and flattening made of a file, for people and for programs.

The keys of the JSON are a promise: they keep to `record/schema/folding.schema.json`.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from modelexport.errors import some_of
from modelexport.inspect.analyze import Tally
from modelexport.record.provenance import Confidence, Provenance
from modelexport.record.results.files import RETURNED, End, Extraction, ExtractionCheck, Feed, Flattening, Folding
from modelexport.record.signals import OutputCheck
from modelexport.show.text.console import bytes_text, counted, share_text

if TYPE_CHECKING:
    from rich.text import Text


@dataclass(frozen=True)
class ExportSummary:
    """The parts of an export's result that are shown."""

    files: tuple[Path, ...]
    provenance: Provenance
    check: OutputCheck | None
    notes: tuple[str, ...]
    seconds: Mapping[str, float]

    @property
    def tally(self) -> Tally:
        return Tally.of(entry.attribution for entry in self.provenance.nodes.values())


def export_lines(summary: ExportSummary, *, verbose: bool = False) -> Iterator[Text]:
    from modelexport.show.text.console import plain

    for path in summary.files:
        yield plain(f"wrote {path} ({bytes_text(path.stat().st_size)})")
    yield plain(f"{counted(summary.tally.total, 'node')}: {confidences_text(summary.tally)}")
    if summary.check is not None:
        yield plain(_check(summary.check), "green" if summary.check.ok else "red")
    for note in summary.notes:
        yield plain(f"note: {note}", "yellow")
    if verbose:
        yield plain(", ".join(f"{step} {seconds:.1f} s" for step, seconds in summary.seconds.items()), "dim")


def export_json(summary: ExportSummary) -> str:
    tally, check, origin = summary.tally, summary.check, summary.provenance.origin
    document = {
        "schema": 1,
        "files": [str(path) for path in summary.files],
        "exporter": origin.exporter,
        "strategy": origin.strategy,
        "nodes": tally.total,
        "by_confidence": {level.label: count for level, count in tally.by_confidence.items()},
        "check": None if check is None else _check_document(check),
        "notes": list(summary.notes),
        "seconds": {step: round(seconds, 3) for step, seconds in summary.seconds.items()},
    }
    return json.dumps(document, indent=1) + "\n"


def _check_document(check: OutputCheck) -> dict[str, object]:
    return {
        "ok": check.ok,
        "max_abs_diff": _finite(check.max_abs_diff),
        "max_rel_diff": _finite(check.max_rel_diff),
        "message": check.message,
    }


def _finite(number: float) -> float | None:
    """JSON has no NaN and no infinity."""
    return number if abs(number) < float("inf") else None


def confidences_text(tally: Tally) -> str:
    shown = [level for level in sorted(Confidence, reverse=True) if tally.by_confidence[level]]
    return ", ".join(
        f"{level.label} {tally.by_confidence[level]} ({share_text(tally.share(tally.by_confidence[level]))})"
        for level in shown
    )


def _check(check: OutputCheck) -> str:
    if check.ok:
        return f"outputs equal PyTorch's (largest difference {check.max_abs_diff:.1e})"
    return f"not as PyTorch: {check.message}"


if TYPE_CHECKING:
    from rich.text import Text

_FROM = {
    Feed.GIVEN: "what the module was given",
    Feed.RUN: "a tensor of the model's run that the module was not given",
    Feed.FILE: "a tensor of the whole file's: PyTorch has none like it",
}


def extraction_lines(found: Extraction, *, verbose: bool = False) -> Iterator[Text]:
    from modelexport.show.text.console import plain

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
    from modelexport.show.text.console import plain

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
        "check": None if found.check is None else _extraction_check_document(found.check),
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


def _extraction_check_document(check: ExtractionCheck) -> dict[str, object]:
    return {
        "ok": check.ok,
        "reference": check.reference,
        "tolerance": check.tolerance,
        "max_abs": _finite_difference(check.max_abs),
        "fed": {name: str(feed) for name, feed in check.fed.items()},
        "outputs": [
            {
                "name": one.name,
                "against": one.against,
                "ok": one.difference.agrees,
                "max_abs": _finite_difference(one.difference.max_abs),
                "max_rel": _finite_difference(one.difference.max_rel),
                "sqnr": _finite_difference(one.difference.sqnr),
            }
            for one in check.outputs
        ],
        "missing": check.missing,
        "lost": check.lost,
    }


def _finite_difference(number: float) -> float | None:
    """JSON has no NaN and no infinity."""
    return number if abs(number) < float("inf") else None


_OUTSIDE = "constants that are shared or differ, or what others need before it is done"

if TYPE_CHECKING:
    from rich.console import RenderableType


def folding_lines(files: Sequence[Path], folding: Folding, *, verbose: bool = False) -> Iterator[RenderableType]:
    from modelexport.show.text.console import plain, table

    yield from _files(files)
    if not folding.functions:
        yield plain("no class of modules is called twice with more than one node: the file is as it was", "yellow")
    else:
        counts = f"{counted(folding.before, 'node')} before, {folding.after} after ({folding.share:.1%})"
        yield plain(f"{counts}, in the main graph and {counted(len(folding.functions), 'function')}")
        shown = table("", "function", "class", "calls", "nodes", "modules", right=("calls", "nodes"))
        shown.title = None
        for one in folding.functions:
            modules = some_of(one.modules, len(one.modules) if verbose else 2)
            shown.add_row(
                plain(one.name, "cyan"), plain(one.class_name), str(one.calls), str(one.nodes), plain(modules)
            )
        yield shown
    for name, count in folding.outside.items():
        yield plain(f"note: {counted(count, 'node')} of {name} stayed outside of its function: {_OUTSIDE}", "yellow")
    yield from _unfolded(folding, verbose=verbose)
    if folding.note:
        yield plain(f"note: {folding.note}", "yellow")


def _unfolded(folding: Folding, *, verbose: bool) -> Iterator[RenderableType]:
    from modelexport.show.text.console import plain

    for left in folding.unfolded:
        if verbose or not left.is_usual:
            told = f"{counted(left.calls, 'call')} of {left.class_name} not folded: {left.reason}"
            yield plain(told, "dim") if left.is_usual else plain(f"note: {told}", "yellow")
    usual = {left.class_name for left in folding.unfolded if left.is_usual}
    if usual and not verbose:
        several = f"{len(usual)} class{'es' * (len(usual) > 1)}"
        yield plain(f"{several} with a single call or a single node not folded; -v lists them", "dim")


def flattening_lines(files: Sequence[Path], flattening: Flattening) -> Iterator[RenderableType]:
    from modelexport.show.text.console import plain

    yield from _files(files)
    counts = f"{counted(flattening.before, 'node')} before, {flattening.after} after"
    if flattening.note:
        yield plain(f"note: {flattening.note}; nodes and values have names that are made up", "yellow")
    if not flattening.inlined and not flattening.kept:
        yield plain("there are no functions in it: the file is as it was", "yellow")
    elif flattening.exact:
        yield plain(f"{counts}: exactly the graph that was folded")
    else:
        yield plain(f"{counts}: {counted(len(flattening.inlined), 'function')} put in the place of calls")
    for name, reason in flattening.kept.items():
        yield plain(f"note: {name} is still a function: {reason}", "yellow")


def _files(files: Sequence[Path]) -> Iterator[RenderableType]:
    from modelexport.show.text.console import plain

    for path in files:
        yield plain(f"wrote {path} ({bytes_text(path.stat().st_size)})")


def folding_json(files: Sequence[Path], folding: Folding) -> str:
    document = {
        "schema": 1,
        "verb": "fold",
        "files": [str(path) for path in files],
        "nodes": {"before": folding.before, "after": folding.after},
        "functions": [
            {
                "name": one.name,
                "class": one.class_name,
                "calls": one.calls,
                "nodes": one.nodes,
                "modules": list(one.modules),
            }
            for one in folding.functions
        ],
        "unfolded": [{"class": one.class_name, "calls": one.calls, "reason": one.reason} for one in folding.unfolded],
        "outside": dict(folding.outside),
        "note": folding.note,
    }
    return json.dumps(document, indent=1) + "\n"


def flattening_json(files: Sequence[Path], flattening: Flattening) -> str:
    document = {
        "schema": 1,
        "verb": "flatten",
        "files": [str(path) for path in files],
        "nodes": {"before": flattening.before, "after": flattening.after},
        "exact": flattening.exact,
        "inlined": list(flattening.inlined),
        "kept": dict(flattening.kept),
        "note": flattening.note,
    }
    return json.dumps(document, indent=1) + "\n"
