"""A diff as one HTML page that needs nothing else. Every string from a model is escaped."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from html import escape

from modelexport.errors import printable
from modelexport.record.results.diff import Change, Diff, FieldChange, ModuleChange, NodeChange, NodeRef, Side
from modelexport.show.text.console import counted
from modelexport.show.text.diff import Group, cost_text, grouped, headline, renamed_text

_STYLE = """
:root { color-scheme: light dark; --line: #8884; --dim: #888; --removed: #c33; --added: #293; --changed: #b70; }
body { font: 15px/1.5 system-ui, sans-serif; max-width: 72rem; margin: 2rem auto; padding: 0 1rem; }
h1 { font-size: 1.3rem; } h2 { font-size: 1.05rem; border-bottom: 1px solid var(--line); margin-top: 2rem; }
code, td { font-family: ui-monospace, monospace; font-size: 13px; overflow-wrap: anywhere; }
details { border-left: 3px solid var(--line); margin: .4rem 0; padding: .1rem .8rem; }
details.removed { border-color: var(--removed); } details.added { border-color: var(--added); }
details.changed { border-color: var(--changed); } summary { cursor: pointer; }
table { border-collapse: collapse; margin: .5rem 0; } td, th { border: 1px solid var(--line); padding: .15rem .5rem; }
th { text-align: left; font-weight: 600; } .dim { color: var(--dim); } ul { margin: .2rem 0; padding-left: 1.2rem; }
"""
_HEADINGS = {Change.REMOVED: "Modules removed", Change.ADDED: "Modules added", Change.CHANGED: "Changed"}
# Modules of one group whose nodes are listed, and nodes of one change.
_LISTED_MODULES, _LISTED_NODES = 24, 200


def diff_page(diff: Diff) -> str:
    title = f"{diff.left.path} → {diff.right.path}"
    body = "\n".join(_body(diff))
    return (
        '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        "<meta http-equiv=\"Content-Security-Policy\" content=\"default-src 'none'; style-src 'unsafe-inline'\">\n"
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        f"<title>{_safe(title)}</title>\n<style>{_STYLE}</style>\n</head>\n<body>\n{body}\n</body>\n</html>\n"
    )


def _body(diff: Diff) -> Iterator[str]:
    yield f"<h1>{_side(diff.left)} → {_side(diff.right)}</h1>"
    yield f"<p>{_safe('No differences.' if diff.identical else headline(diff))}</p>"
    if diff.cost is not None:
        yield f"<p>Cost: {_safe(cost_text(diff.cost))}</p>"
    if diff.model:
        yield f"<h2>Model</h2>{_fields(diff.model)}"
    groups = grouped(diff.modules)
    for change, heading in _HEADINGS.items():
        chosen = [group for group in groups if group.change is change]
        if chosen:
            yield f"<h2>{heading}</h2>"
            yield from map(_group, chosen)
    if diff.renamed:
        yield "<h2>Renamed (no difference)</h2>"
        yield _list(renamed_text(diff.renamed))
    yield from (f'<p class="dim">{_safe(note)}.</p>' for note in diff.notes)


def _side(side: Side) -> str:
    module = f" <code>{_safe(side.module)}</code>" if side.module else ""
    details = ", ".join(filter(None, (side.exporter, counted(side.nodes, "node"))))
    return f'{_safe(side.path)}{module} <span class="dim">({_safe(details)})</span>'


def _group(group: Group) -> str:
    count = f" ({len(group.members)} modules)" if len(group.members) > 1 else ""
    nodes = "".join(_nodes(module) for module in group.members[:_LISTED_MODULES])
    return (
        f'<details class="{group.change.value}" open><summary><code>{_safe(group.title)}</code>{count}</summary>'
        f"{_list(group.lines)}{nodes}</details>"
    )


def _nodes(module: ModuleChange) -> str:
    if not module.changes:
        return ""
    rows = "".join(map(_row, module.changes))
    return (
        f"<details><summary>nodes of <code>{_safe(module.path or '(model)')}</code></summary>"
        f"<table><tr><th>change</th><th>left</th><th>right</th><th>what</th></tr>{rows}</table></details>"
    )


def _row(change: NodeChange) -> str:
    fields = "<br>".join(f"{_safe(one.what)}: {_safe(one.left)} → {_safe(one.right)}" for one in change.fields)
    cells = (change.change.value, _refs(change.left), _refs(change.right), fields)
    return f"<tr>{''.join(f'<td>{one}</td>' for one in cells)}</tr>"


def _refs(nodes: tuple[NodeRef, ...]) -> str:
    shown = [f"{_safe(node.op_type)} {_safe(node.name or node.key)}" for node in nodes[:_LISTED_NODES]]
    more = len(nodes) - len(shown)
    return "<br>".join([*shown, f"… and {more} more"] if more > 0 else shown)


def _fields(changes: Iterable[FieldChange]) -> str:
    return _list(f"{one.what}: {one.left or 'none'} → {one.right or 'none'}" for one in changes)


def _list(lines: Iterable[str]) -> str:
    items = "".join(f"<li>{_safe(line)}</li>" for line in lines)
    return f"<ul>{items}</ul>" if items else ""


def _safe(text: str) -> str:
    return escape(printable(text))
