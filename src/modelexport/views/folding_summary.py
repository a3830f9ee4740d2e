"""What folding and flattening made of a file, for people and for programs.

The keys of the JSON are a promise: they keep to `record/schema/folding.schema.json`.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from modelexport.record.folding import Flattening, Folding
from modelexport.record.wording import some_of
from modelexport.views.amounts import bytes_text, counted

_OUTSIDE = "constants that are shared or differ, or what others need before it is done"

if TYPE_CHECKING:
    from rich.console import RenderableType


def folding_lines(files: Sequence[Path], folding: Folding, *, verbose: bool = False) -> Iterator[RenderableType]:
    from modelexport.views.console import plain, table

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
    from modelexport.views.console import plain

    for left in folding.unfolded:
        if verbose or not left.is_usual:
            told = f"{counted(left.calls, 'call')} of {left.class_name} not folded: {left.reason}"
            yield plain(told, "dim") if left.is_usual else plain(f"note: {told}", "yellow")
    usual = {left.class_name for left in folding.unfolded if left.is_usual}
    if usual and not verbose:
        several = f"{len(usual)} class{'es' * (len(usual) > 1)}"
        yield plain(f"{several} with a single call or a single node not folded; -v lists them", "dim")


def flattening_lines(files: Sequence[Path], flattening: Flattening) -> Iterator[RenderableType]:
    from modelexport.views.console import plain

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
    from modelexport.views.console import plain

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
