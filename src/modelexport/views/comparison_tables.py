"""A comparison for people."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from rich.console import RenderableType
from rich.table import Table
from rich.text import Text

from modelexport.analysis.compare import Comparison, ModuleDifference, Pair
from modelexport.analysis.facts import FileFacts, ModuleFacts
from modelexport.views.amounts import bytes_text, count_text, counted, operators_text
from modelexport.views.console import plain, table


def comparison_tables(comparison: Comparison, *, verbose: bool = False) -> Iterator[RenderableType]:
    yield _head("a", comparison.a, comparison.nodes.a, comparison.totals_a)
    yield _head("b", comparison.b, comparison.nodes.b, comparison.totals_b)
    if comparison.identical:
        yield Text("No differences.", "green")
        return
    if comparison.differences:
        yield Text()
        yield _differences(comparison, verbose)
    yield from _only("Modules only in a", comparison.only_a)
    yield from _only("Modules only in b", comparison.only_b)
    yield from _unattributed(comparison.unattributed)
    yield from _values("inputs", comparison.inputs)
    yield from _values("outputs", comparison.outputs)
    yield Text()
    yield Text(_sum_up(comparison), "bold")


def _head(side: str, file: FileFacts, nodes: int, totals: ModuleFacts | None) -> Text:
    weights = "" if totals is None else f", {bytes_text(totals.total.bytes)} of weights"
    amounts = f", {counted(nodes, 'node')}{weights}"
    return Text(f"{side}  ", "bold").append_text(plain(f"{file.path} ({file.exporter}{amounts})"))


def _differences(comparison: Comparison, verbose: bool) -> Table:
    """Modules that differ in the same way become one row: two exporters differ alike in every layer."""
    shown = table("Differences", "module", "nodes", "removed", "added", "also", right=("nodes",))
    alike: dict[tuple[tuple[str, ...], str], list[ModuleDifference]] = {}
    for difference in comparison.differences:
        alike.setdefault((_cells(difference), difference.path if verbose else ""), []).append(difference)
    for ((nodes, removed, added, also), _), group in alike.items():
        shown.add_row(_names(group), nodes, plain(removed, "red"), plain(added, "green"), plain(also, "yellow"))
    return shown


def _cells(difference: ModuleDifference) -> tuple[str, str, str, str]:
    nodes = f"{difference.nodes.a} → {difference.nodes.b}"
    fewer = {name: pair.a - pair.b for name, pair in difference.operators.items() if pair.a > pair.b}
    more = {name: pair.b - pair.a for name, pair in difference.operators.items() if pair.b > pair.a}
    return nodes, operators_text(fewer, 8), operators_text(more, 8), ", ".join(_also(difference))


def _also(difference: ModuleDifference) -> Iterator[str]:
    if difference.class_a != difference.class_b:
        yield f"class {difference.class_a} → {difference.class_b}"
    elif difference.tag_a != difference.tag_b:
        yield f"tag {difference.tag_a or 'none'} → {difference.tag_b or 'none'}"
    if difference.changed:
        yield f"{len(difference.changed)} changed in attributes or inputs"
    if _differs(difference.parameters):
        yield f"parameters {count_text(difference.parameters.a)} → {count_text(difference.parameters.b)}"
    elif _differs(difference.bytes):
        yield f"size {bytes_text(difference.bytes.a)} → {bytes_text(difference.bytes.b)}"


def _differs(pair: Pair) -> bool:
    return pair.a != pair.b


def _names(group: Sequence[ModuleDifference]) -> Text:
    name = plain(group[0].path or "(model)").append_text(plain(f" {group[0].class_a}", "cyan"))
    return name if len(group) == 1 else name.append(f" and {len(group) - 1} more alike", "dim")


def _only(title: str, modules: Sequence[ModuleFacts]) -> Iterator[RenderableType]:
    if modules:
        yield Text()
        shown = table(title, "module", "class", "nodes", "params", right=("nodes", "params"))
        for module in modules:
            amounts = str(module.own.nodes), count_text(module.own.parameters)
            shown.add_row(plain(module.path or "(model)"), plain(module.class_name, "cyan"), *amounts)
        yield shown


def _unattributed(operators: Mapping[str, Pair]) -> Iterator[RenderableType]:
    if operators:
        counts = ", ".join(f"{name} {pair.a} → {pair.b}" for name, pair in operators.items())
        yield plain(f"nodes without a module: {counts}")


def _values(kind: str, names: Sequence[str]) -> Iterator[RenderableType]:
    if names:
        yield plain(f"{kind}: {', '.join(names)}")


def _sum_up(comparison: Comparison) -> str:
    operators = [pair for difference in comparison.differences for pair in difference.operators.values()]
    operators += comparison.unattributed.values()
    removed = sum(max(0, pair.a - pair.b) for pair in operators)
    added = sum(max(0, pair.b - pair.a) for pair in operators)
    changed = sum(len(difference.changed) for difference in comparison.differences)
    modules = len(comparison.differences)
    verb = "differs" if modules == 1 else "differ"
    return f"{counted(modules, 'module')} {verb}: {counted(removed, 'node')} removed, {added} added, {changed} changed"
