"""Differences on the page: what `diff` found, as columns of the viewer, and as a page of its own.

    view NEW --against OLD       `difference_columns`: modules are coloured, and say in lines what changed in them
    diff OLD NEW --format html   `diff_html`: the sections of the text (`show/text/diff.py`) with the nodes below them

Both pages have one head, one style and one policy; see `html.py`. Every text from a model is escaped.

States of modules, from the least to the most that happened:

    same      nothing
    inside    something changed in a module inside of it
    changed   its own nodes, weights or class
    added     it is in the new file alone; one that is in the old file alone is told of the model as a whole
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from html import escape
from pathlib import PurePath

from modelexport.errors import printable
from modelexport.record.hierarchy import ModuleCall
from modelexport.record.results import diff as results
from modelexport.show.page.html import static_page
from modelexport.show.page.nodes import Json, ModuleTree, Texts
from modelexport.show.text.console import counted
from modelexport.show.text.diff import Group, diff_sections, verdict_lines

# States that the page has colours for, beside those of `Change`.
_SAME, _INSIDE = "same", "inside"
_MOST_LINES = 60  # of one module
_MOST_NAMES = 4  # of nodes in one line
_MOST_OPERATORS = 8  # on each side of an arrow


def difference_columns(diff: results.Diff, tree: ModuleTree, texts: Texts, charged: Mapping[str, int]) -> Json:
    """`diff` is from the other file to the one that is shown; `charged` has the module number of each node by key.

    What replaced nodes of several modules at once is told of the module around them. It changed those modules too.
    """
    states = [_SAME] * (tree.no_module + 1)
    lines: dict[int, list[str]] = {}
    for module in diff.modules:
        here = None if module.right is None else ModuleCall.parse(module.right).path
        number = tree.by_path.get(here) if here is not None else None
        if number is None:
            # It is in the other file alone, so that only the model as a whole can tell.
            name = module.left if module.left is not None else module.right
            about = f"{name or '(model)'} {module.classes[0]}, {int(module.nodes.left)} nodes"
            lines.setdefault(0, []).append(f"not in this file: {about}")
            continue
        states[number] = "added" if module.change is results.Change.ADDED else "changed"
        lines.setdefault(number, []).extend(_module_lines(module))
        for inside, line in _lines_inside(module, number, charged):
            states[inside] = "changed" if states[inside] == _SAME else states[inside]
            lines.setdefault(inside, []).append(line)
    lines.setdefault(0, []).extend(map(_field_line, diff.model))
    _mark_around(states, tree, changed_root=bool(lines[0]))
    shown = {
        number: texts.numbers_of(_shortened(module_lines, _MOST_LINES, "and {} more differences"))
        for number, module_lines in lines.items()
        if module_lines
    }
    name = PurePath(diff.left.path).name
    return {"against": name, "identical": diff.identical, "state": states, "lines": shown}


def _lines_inside(module: results.ModuleChange, number: int, charged: Mapping[str, int]) -> Iterator[tuple[int, str]]:
    """Nodes of other modules that a change of this one replaced, by the number of their module."""
    for change in module.changes:
        numbers = dict.fromkeys(charged.get(node.key, number) for node in change.right)
        yield from ((inside, _node_line(change)) for inside in numbers if inside != number)


def _mark_around(states: list[str], tree: ModuleTree, *, changed_root: bool) -> None:
    for number in range(len(tree.rows) - 1, 0, -1):  # from the leaves: a row stands after the one around it
        parent = tree.rows[number].parent
        if parent is not None and states[number] != _SAME and states[parent] == _SAME:
            states[parent] = _INSIDE
    if changed_root and states[0] in (_SAME, _INSIDE):
        states[0] = "changed"


def _module_lines(module: results.ModuleChange) -> Iterator[str]:
    """In the order in which a reader asks: is it new, is it another class, which nodes, which weights, what cost."""
    if module.change is results.Change.ADDED:
        yield f"in this file alone: {int(module.nodes.right)} nodes, {module.parameters} parameters"
    if module.class_changed:
        yield f"class {module.classes[0]} → {module.classes[1]}"
    yield from map(_node_line, module.changes)
    yield from map(_weight_line, module.weights)
    if module.cost is not None:
        yield from (f"{name} {left.short} → {right.short}" for name, (left, right) in module.cost.amounts.items())


def _node_line(change: results.NodeChange) -> str:
    """`MatMul + Add → Gemm: Gemm node_3`; nodes go by name, because a reader looks for them in the graph."""
    if change.change is results.Change.ADDED:
        return f"added {_nodes(change.right)}"
    if change.change is results.Change.REMOVED:
        return f"removed {_nodes(change.left)}"
    if change.change is results.Change.REPLACED:
        return f"{_operators(change.left)} → {_operators(change.right)}: {_nodes(change.right)}"
    return f"{_nodes(change.right)}: {'; '.join(map(_field_line, change.fields))}"


def _nodes(nodes: tuple[results.NodeRef, ...]) -> str:
    names = [f"{node.op_type} {node.name or node.key}" for node in nodes]
    return ", ".join(_shortened(names, _MOST_NAMES, "and {} more"))


def _operators(nodes: tuple[results.NodeRef, ...]) -> str:
    counts = Counter(node.op_type for node in nodes)
    shown = [name if count == 1 else f"{name} ×{count}" for name, count in counts.items()]
    return " + ".join(_shortened(shown, _MOST_OPERATORS, "{} others")) or "nothing"


def _field_line(field: results.FieldChange) -> str:
    return f"{field.what} {field.left or '(none)'} → {field.right or '(none)'}"


def _weight_line(weight: results.WeightChange) -> str:
    """How far the numbers are apart, or the numbers themselves where there are few."""
    far = "" if weight.largest is None else f", largest difference {weight.largest:.2g}"
    values = "" if weight.values is None else f", {weight.values.left} → {weight.values.right}"
    return f"weight {weight.name}: {weight.form}{far}{values}"


def _shortened(texts: list[str], most: int, rest: str) -> list[str]:
    more = len(texts) - most
    return [*texts[:most], rest.format(more)] if more > 0 else texts


# Modules of one group whose nodes are listed, and nodes of one change.
_LISTED_MODULES, _LISTED_NODES = 24, 200


def diff_html(diff: results.Diff) -> str:
    """One file that needs nothing else, and runs no script."""
    return static_page(printable(f"{diff.left.path} → {diff.right.path}"), "\n".join(_diff_body(diff)))


def package_diff_html(left: str, right: str, components: Mapping[str, results.Diff], joints: Iterable[str]) -> str:
    """The same of two packages: one part for each component, and what differs beside the files."""
    body = [f"<h1>{_safe(left)} → {_safe(right)}</h1>", _list(joints)]
    for name, diff in components.items():
        body += [f"<h1>{_safe(name)}</h1>", *_diff_body(diff)]
    return static_page(printable(f"{left} → {right}"), "\n".join(body))


def _diff_body(diff: results.Diff) -> list[str]:
    body = [f"<h1>{_side(diff.left)} → {_side(diff.right)}</h1>"]
    body += [f"<p>{_safe(line)}</p>" for line in verdict_lines(diff)]
    for section in diff_sections(diff):
        body += [f"<h2>{section.heading}</h2>{_list(section.lines)}", *map(_group, section.groups)]
    body += [f'<p class="muted">{_safe(note)}.</p>' for note in diff.notes]
    return body


def _side(side: results.Side) -> str:
    """Which file, which module of it, and who made it: two exports of one model often have the same name."""
    module = f" <code>{_safe(side.module)}</code>" if side.module else ""
    details = ", ".join(filter(None, (side.exporter, counted(side.nodes, "node"))))
    return f'{_safe(side.path)}{module} <span class="muted">({_safe(details)})</span>'


def _group(group: Group) -> str:
    """Open from the start: a page that is printed or searched must show everything."""
    count = f" ({len(group.members)} modules)" if len(group.members) > 1 else ""
    nodes = "".join(map(_node_table, group.members[:_LISTED_MODULES]))
    return (
        f'<details class="{group.change.value}" open><summary><code>{_safe(group.title)}</code>{count}</summary>'
        f"{_list(group.lines)}{nodes}</details>"
    )


def _node_table(module: results.ModuleChange) -> str:
    """Closed from the start, because a layer may have hundreds of rows."""
    if not module.changes:
        return ""
    rows = ""
    for change in module.changes:
        fields = "<br>".join(
            f"{_safe(field.what)}: {_safe(field.left)} → {_safe(field.right)}" for field in change.fields
        )
        cells = (change.change.value, _refs(change.left), _refs(change.right), fields)
        rows += f"<tr>{''.join(f'<td>{cell}</td>' for cell in cells)}</tr>"
    return (
        f"<details><summary>nodes of <code>{_safe(module.path or '(model)')}</code></summary>"
        f"<table><tr><th>change</th><th>left</th><th>right</th><th>what</th></tr>{rows}</table></details>"
    )


def _refs(nodes: tuple[results.NodeRef, ...]) -> str:
    names = [f"{_safe(node.op_type)} {_safe(node.name or node.key)}" for node in nodes]
    return "<br>".join(_shortened(names, _LISTED_NODES, "… and {} more"))


def _list(lines: Iterable[str]) -> str:
    """No list at all where there is nothing: an empty one still takes a line."""
    items = "".join(f"<li>{_safe(line)}</li>" for line in lines)
    return f"<ul>{items}</ul>" if items else ""


def _safe(text: str) -> str:
    """Names come from a file: neither markup nor control characters in them reach the page."""
    return escape(printable(text))
