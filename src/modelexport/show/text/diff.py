"""Diff for people: text that reads well in a terminal and in a pull request.

    node changes: replaced 25, added 6, changed 6; 81.6 % of nodes are paired, 100.0 % of weights are equal.

    Changed
    - encoder.layer.{0..5}.attention.output BertSelfOutput (6 modules)
        - replaced Add + Add + LayerNormalization → com.microsoft.SkipLayerNormalization
        - cost: activation bytes 6.1 KB·batch·sequence → 3.1 KB·batch·sequence

Modules in which the same is different are one group: that twelve layers changed alike is one thing to know. Lines are
Markdown lists. The HTML page (`show/page/difference.py`) shows the same sections and groups.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from modelexport.record.hierarchy import ModuleCall
from modelexport.record.polynomial import Polynomial
from modelexport.record.results import diff as results
from modelexport.show.module_tree import join_paths, path_numbers, path_pattern
from modelexport.show.text.console import count_text, counted, flops_text, share_text, short_text, size_text

_LISTED = 4  # more operators of one replacement are counted and not listed
_SHOWN = 8  # operators that are named with their number
_MANY_TIMES = 100  # relative differences beyond say nothing but that it is another weight
_TERMS = 3  # of a polynomial in open axes

_FORMS = {
    results.WeightForm.VALUES: "",  # how far they are apart says it
    results.WeightForm.SHAPE: "another shape",
    results.WeightForm.CAST: "cast",
    results.WeightForm.QUANTIZED: "quantized",
    results.WeightForm.TRANSPOSED: "transposed",
    results.WeightForm.RESHAPED: "reshaped",
    results.WeightForm.UNREAD: "not read",
    results.WeightForm.ADDED: "added",
    results.WeightForm.REMOVED: "removed",
}


@dataclass(frozen=True)
class Group:
    """Modules of which the same can be said. `lines` say what is different inside of each of them."""

    change: results.Change
    title: str
    members: tuple[results.ModuleChange, ...]
    lines: tuple[str, ...]


def group_modules(modules: Iterable[results.ModuleChange]) -> list[Group]:
    """In the order of the first module of each group."""
    members_by_key: dict[object, list[results.ModuleChange]] = {}
    for module in modules:
        key = (module.change, path_pattern(module.path), module.classes, _likeness(module))
        members_by_key.setdefault(key, []).append(module)
    groups = map(tuple, members_by_key.values())
    return [Group(members[0].change, _title(members), members, tuple(_lines(members))) for members in groups]


def _title(members: Sequence[results.ModuleChange]) -> str:
    first = members[0]
    name = join_paths([member.path for member in members])
    if first.class_changed:
        return f"{name} {first.classes[0]} → {first.classes[1]}"
    title = " ".join(filter(None, (name, first.classes[0] or first.classes[1])))
    if first.change is results.Change.CHANGED:
        return title
    nodes = first.nodes.left or first.nodes.right
    parameters = f", {count_text(first.parameters)} parameters" if first.parameters else ""
    each = " each" if len(members) > 1 else ""
    return f"{title} ({counted(nodes, 'node')}{parameters}{each})"


def _likeness(module: results.ModuleChange) -> object:
    """What must be the same of two modules to be told together: everything but names and how much weights differ."""
    # Counted and without order: in which order changes were found says nothing about the modules.
    changes = frozenset(Counter(_change_text(change, named=False) for change in module.changes).items())
    weights = frozenset(Counter(_weight_key(change, module) for change in module.weights).items())
    return changes, weights, module.nodes, module.parameters, cost_text(module.cost)


def _weight_key(weight: results.WeightChange, module: results.ModuleChange) -> tuple[object, ...]:
    """By the name inside of the module: the same change of `layer.0.weight` and `layer.1.weight` is one line."""
    shapes = tuple((side.dtype, side.shape) if side else None for side in (weight.left, weight.right))
    return weight.form, _short_name(weight, module), shapes, weight.values


def _lines(members: Sequence[results.ModuleChange]) -> Iterator[str]:
    """A change that several nodes have is told once; of a module alone, with the names of its nodes."""
    first = members[0]
    same_changes: dict[str, list[results.NodeChange]] = {}
    for change in first.changes:
        same_changes.setdefault(_change_text(change, named=False), []).append(change)
    for text, changes in same_changes.items():
        if len(members) == 1 and (len(changes) == 1 or any(map(_names_values, changes[0].fields))):
            yield from (_change_text(change, named=True) for change in changes)
        else:
            yield f"{text} ({len(changes)} times)" if changes[1:] else text
    weights: dict[object, list[results.WeightChange]] = {}
    for module in members:
        for weight in module.weights:
            weights.setdefault(_weight_key(weight, module), []).append(weight)
    for same in weights.values():
        yield _weight_text(same, first)
    if first.cost is not None:
        yield f"cost: {cost_text(first.cost)}"


def _change_text(change: results.NodeChange, *, named: bool) -> str:
    """`named`: with the name of the node, which says something of one module, and nothing of twelve alike."""
    left, right = operators(change.left), operators(change.right)
    nodes = change.left or change.right
    name = f" `{nodes[0].name or nodes[0].key}`" if named and len(nodes) == 1 else ""
    if change.change is results.Change.CHANGED:
        fields = "; ".join(_field_text(field, named=named) for field in change.fields)
        return f"changed {left}{name}: {fields}"
    if change.change is results.Change.REPLACED:
        return f"replaced {left} → {right}{name}"
    return f"{change.change} {left or right}{name}"


def _field_text(field: results.FieldChange, *, named: bool) -> str:
    if _names_values(field) and not named:
        return f"another value as {field.what}"
    return f"{field.what} {field.left or 'none'} → {field.right or 'none'}"


def _names_values(field: results.FieldChange) -> bool:
    """Inputs, and what bodies return, go by the names of values, which say nothing of several modules at once."""
    return not field.what.startswith(("attribute", "output"))


def operators(nodes: Sequence[results.NodeRef]) -> str:
    names = [node.op_type for node in nodes]
    if len(names) <= _LISTED:
        return " + ".join(names)
    counts = Counter(names).most_common()
    listed = ", ".join(f"{name} {count}" if count > 1 else name for name, count in counts[:_SHOWN])
    rest = len(counts) - _SHOWN
    return f"{len(names)} nodes ({listed}{f', {rest} more' if rest > 0 else ''})"


def _short_name(weight: results.WeightChange, module: results.ModuleChange) -> str:
    """Inside of its module; empty if the name does not say where it belongs, and several have such names."""
    path = ModuleCall.parse(module.path).path
    return weight.name.removeprefix(f"{path}.") if path and weight.name.startswith(f"{path}.") else ""


def _weight_text(weights: Sequence[results.WeightChange], module: results.ModuleChange) -> str:
    """A small constant with its numbers, others with how far they are apart."""
    first = weights[0]
    name = _short_name(first, module) or (f"`{first.name}`" if len({weight.name for weight in weights}) == 1 else "")
    kinds = [f"{weight.dtype}{list(weight.shape)}" for weight in (first.left, first.right) if weight is not None]
    kind = kinds[0] if len(kinds) == 1 or kinds[0] == kinds[1] else " → ".join(kinds)
    if first.values is not None and (first.largest is None or first.values.left.count(",") == 0):
        return f"constant {name} {kind}: {first.values.left} → {first.values.right}"
    text = ", ".join(filter(None, [_FORMS[first.form], *_distances(weights)]))
    count = f" ({len(weights)} weights)" if len(weights) > 1 else ""
    return f"{name or 'weight'} {kind}: {text or 'other numbers'}{count}"


def _distances(weights: Sequence[results.WeightChange]) -> Iterator[str]:
    largest = [weight.largest for weight in weights if weight.largest is not None]
    if not largest or not max(largest):
        return
    relative = max((weight.relative or 0.0 for weight in weights), default=0.0)
    upto = "up to " if len(weights) > 1 else ""
    yield f"largest difference {upto}{max(largest):.3g}"
    yield f"relative {upto}{percent(relative)}"
    changed, first = weights[0].changed, weights[0].left
    if len(weights) == 1 and changed is not None and first is not None:
        yield f"{changed} of {math.prod(first.shape)} numbers"


def percent(share: float) -> str:
    """Two digits below 100 %, none above: a weight that differs by 340 % is simply another one."""
    if share >= _MANY_TIMES:
        return f"over {100 * _MANY_TIMES:.0f} %"
    return f"{100 * share:.0f} %" if share >= 1 else f"{100 * share:.2g} %"


def cost_text(cost: results.CostChange | None) -> str:
    if cost is None:
        return ""
    amounts = ((what, _amounts(what, *sides)) for what, sides in cost.amounts.items())
    return ", ".join(f"{what.replace('_', ' ')} {text}" for what, text in amounts)


def _amounts(what: str, before: Polynomial, after: Polynomial) -> str:
    """Rounded, unless both are then the same."""
    text = size_text if what.endswith("bytes") else flops_text
    text_before, text_after = text(before, _TERMS), text(after, _TERMS)
    # `1.2 G → 1.2 G` would look like a mistake of ours.
    if text_before == text_after and before.value is not None and after.value is not None:
        return f"{before.value:,} → {after.value:,}"
    return f"{text_before} → {text_after}"


def renamed_text(renamed: Sequence[results.Renamed]) -> list[str]:
    """Of each kind of thing, and of modules whose names differ by the same number, one line."""
    renamed_by_key: dict[object, list[results.Renamed]] = {}
    for item in renamed:
        shift = tuple(b - a for a, b in zip(path_numbers(item.left), path_numbers(item.right), strict=False))
        # Layers 0 to 5 that became 1 to 6 are one thing to say; other things have no numbers to compare.
        apart = shift if item.what == "module" else item.left
        key = (item.what, path_pattern(item.left), path_pattern(item.right), apart)
        renamed_by_key.setdefault(key, []).append(item)
    return [
        f"{same[0].what} {join_paths([item.left for item in same])} → {join_paths([item.right for item in same])}"
        for same in renamed_by_key.values()
    ]


# Lines of one module; the rest is counted.
_MOST_LINES = 12
_HEADINGS = {
    results.Change.REMOVED: "Modules removed",
    results.Change.ADDED: "Modules added",
    results.Change.CHANGED: "Changed",
}


@dataclass(frozen=True)
class Section:
    """A heading, and what is below it: lines, or groups of modules. Text and HTML are made of the same sections."""

    heading: str
    lines: tuple[str, ...] = ()
    groups: tuple[Group, ...] = ()


def diff_sections(diff: results.Diff) -> Iterator[Section]:
    """The model, then modules removed, added and changed, then what was only renamed."""
    if diff.model:
        changes = (f"{field.what}: {field.left or 'none'} → {field.right or 'none'}" for field in diff.model)
        yield Section("Model", tuple(changes))
    groups = group_modules(diff.modules)
    for change, heading in _HEADINGS.items():
        members = tuple(group for group in groups if group.change is change)
        if members:
            yield Section(heading, groups=members)
    if diff.renamed:
        yield Section("Renamed (no difference)", tuple(renamed_text(diff.renamed)))


def verdict_lines(diff: results.Diff) -> Iterator[str]:
    """What can be said in two lines: how much differs, and what that costs."""
    if diff.identical:
        yield "No differences." if diff.weights_read else "No differences; the numbers of large weights were not read."
    else:
        yield headline(diff)
    if diff.cost is not None:
        yield f"Cost: {cost_text(diff.cost)}."


def diff_summary(diff: results.Diff, *, verbose: bool = False) -> str:
    lines = [f"{_side(diff.left)} → {_side(diff.right)}", *verdict_lines(diff)]
    for section in diff_sections(diff):
        lines += ["", section.heading, *(f"- {line}" for line in section.lines)]
        for group in section.groups:
            lines += _group_lines(group, verbose=verbose)
    for note in diff.notes:
        lines += ["", f"Note: {note}."]
    return "".join(f"{short_text(line)}\n" for line in lines)


def headline(diff: results.Diff) -> str:
    """Counts by change, and how much of the two files was recognized at all."""
    counts = dict(diff.counts)
    weights = counts.pop("weights", 0)
    modules = [(what.removeprefix("modules "), count) for what, count in counts.items() if what.startswith("modules")]
    parts = [f"{counted(count, 'module')} {what}" for what, count in modules]
    nodes = [f"{what.removeprefix('nodes ')} {count}" for what, count in counts.items() if what.startswith("nodes")]
    parts += [f"node changes: {', '.join(nodes)}"] if nodes else []
    parts += [f"{counted(weights, 'weight')} changed"] if weights else []
    parts.append(f"{share_text(diff.alike)} of nodes are paired, {share_text(diff.same_weights)} of weights are equal")
    return "; ".join(parts) + "."


def _side(side: results.Side) -> str:
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
