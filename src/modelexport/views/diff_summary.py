"""A diff as text that reads well in a terminal and in a pull request."""

from __future__ import annotations

from collections.abc import Iterator

from modelexport.record.changes import Change, Diff, Side
from modelexport.views.amounts import counted, share_text
from modelexport.views.diff_groups import Group, cost_text, grouped, renamed_text
from modelexport.views.printable import printable

# Lines of one module; the rest is counted.
_MOST_LINES = 12
_HEADINGS = {Change.REMOVED: "Modules removed", Change.ADDED: "Modules added", Change.CHANGED: "Changed"}


def diff_summary(diff: Diff, *, verbose: bool = False) -> str:
    return "".join(f"{printable(line)}\n" for line in _lines(diff, verbose=verbose))


def _lines(diff: Diff, *, verbose: bool) -> Iterator[str]:
    yield f"{_side(diff.left)} → {_side(diff.right)}"
    if diff.identical:
        yield "No differences." if diff.weights_read else "No differences; the numbers of large weights were not read."
    else:
        yield headline(diff)
    if diff.cost is not None:
        yield f"Cost: {cost_text(diff.cost)}."
    if diff.model:
        yield from ("", "Model")
        yield from (f"- {one.what}: {one.left or 'none'} → {one.right or 'none'}" for one in diff.model)
    groups = grouped(diff.modules)
    for change, heading in _HEADINGS.items():
        chosen = [group for group in groups if group.change is change]
        if chosen:
            yield from ("", heading)
            for group in chosen:
                yield from _group_lines(group, verbose=verbose)
    if diff.renamed:
        yield from ("", "Renamed (no difference)")
        yield from (f"- {text}" for text in renamed_text(diff.renamed))
    for note in diff.notes:
        yield from ("", f"Note: {note}.")


def headline(diff: Diff) -> str:
    counts = dict(diff.counts)
    weights = counts.pop("weights", 0)
    parts = [f"{count} {what.replace(' ', ' ', 1)}" for what, count in counts.items() if what.startswith("modules")]
    nodes = [f"{what.removeprefix('nodes ')} {count}" for what, count in counts.items() if what.startswith("nodes")]
    parts += [f"node changes: {', '.join(nodes)}"] if nodes else []
    parts += [f"{counted(weights, 'weight')} changed"] if weights else []
    parts.append(f"{share_text(diff.alike)} of nodes are paired, {share_text(diff.same_weights)} of weights are equal")
    return "; ".join(parts) + "."


def _side(side: Side) -> str:
    details = ", ".join(filter(None, (side.exporter, counted(side.nodes, "node"))))
    module = f" {side.module}" if side.module else ""
    return f"{side.path}{module} ({details})"


def _group_lines(group: Group, *, verbose: bool) -> Iterator[str]:
    count = f" ({len(group.members)} modules)" if len(group.members) > 1 else ""
    yield f"- {group.title}{count}"
    most = len(group.lines) if verbose else _MOST_LINES
    yield from (f"    - {line}" for line in group.lines[:most])
    if len(group.lines) > most:
        yield f"    - … and {len(group.lines) - most} more (-v)"
