"""An analysis for people.

The module tree as rows, made short enough to read: repeated siblings become one row, depth is cut.

Twelve layers that are alike tell the reader one thing, not twelve.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import groupby

from rich.console import RenderableType
from rich.table import Table
from rich.text import Text

from modelexport.inspect.analyze import Analysis, FileFacts, ModuleFacts, NodeFacts, Tally, Unowned
from modelexport.record.provenance import Confidence
from modelexport.show.text.console import (
    bytes_text,
    confidence_text,
    count_text,
    operators_text,
    plain,
    share_text,
    table,
)

FEW = 40


@dataclass(frozen=True)
class Branch:
    """A module and what is inside of it. `names`: of all the modules beside each other that it stands for."""

    module: ModuleFacts
    names: tuple[str, ...]
    inside: tuple[Branch, ...]

    @cached_property
    def shape(self) -> tuple[object, ...]:
        """Equal for branches that differ in nothing but their place."""
        own, total = self.module.own, self.module.total
        facts = (
            self.module.class_name,
            self.module.calls,
            tuple(own.op_types.items()),
            own.shared,
            total.nodes,
            total.parameters,
            bytes_text(total.bytes),  # a few bytes of constants more or less do not show
        )
        return facts, tuple((branch.names, branch.shape) for branch in self.inside)

    @cached_property
    def size(self) -> int:
        return len(self.names) * (1 + sum(branch.size for branch in self.inside))


@dataclass(frozen=True)
class Row:
    """One line of the tree. `count`: how many it stands for. `hidden`: modules inside that are not shown."""

    guide: str
    label: str
    module: ModuleFacts
    count: int
    hidden: int


def module_rows(modules: Sequence[ModuleFacts], most: int = FEW) -> list[Row]:
    """Rows for a tree of any size; about `most` of them, unless `most` is 0."""
    roots = _grow(modules)
    if most and len(modules) > most:
        roots = tuple(_grouped(roots))
    depth = _deepest(roots)
    while most and depth > 2 and _row_count(roots, depth) > most:
        depth -= 1
    return list(_rows(roots, depth))


def _grow(modules: Sequence[ModuleFacts]) -> tuple[Branch, ...]:
    listed = {module.path for module in modules}
    inside: dict[str | None, list[ModuleFacts]] = {}
    for module in modules:
        inside.setdefault(_listed_parent(module.path, listed), []).append(module)

    def branch(module: ModuleFacts, parent: str | None) -> Branch:
        children = tuple(branch(child, module.path) for child in inside.get(module.path, ()))
        return Branch(module, (_name(module.path, parent),), children)

    return tuple(branch(module, None) for module in inside.get(None, ()))


def _listed_parent(path: str, listed: set[str]) -> str | None:
    while path:
        path = path.rpartition(".")[0]
        if path in listed:
            return path
    return None


def _name(path: str, parent: str | None) -> str:
    return path[len(parent) + 1 :] if parent else path


def _grouped(branches: Sequence[Branch]) -> Iterator[Branch]:
    """Neighbours with a number for a name and the same shape, made one."""
    shorter = [Branch(branch.module, branch.names, tuple(_grouped(branch.inside))) for branch in branches]
    for (_, numbered), group in groupby(shorter, lambda branch: (branch.shape, branch.names[0].isdecimal())):
        same = list(group)
        if numbered:
            yield Branch(same[0].module, tuple(branch.names[0] for branch in same), same[0].inside)
        else:
            yield from same


def _deepest(branches: Sequence[Branch]) -> int:
    return max((1 + _deepest(branch.inside) for branch in branches), default=0)


def _row_count(branches: Sequence[Branch], depth: int) -> int:
    return sum(1 + _row_count(branch.inside, depth - 1) for branch in branches) if depth else 0


def _rows(branches: Sequence[Branch], depth: int, guide: str = "", top: bool = True) -> Iterator[Row]:
    for place, branch in enumerate(branches):
        last = place == len(branches) - 1
        mark, below = ("", "") if top else ("└ ", "  ") if last else ("├ ", "│ ")
        hidden = sum(inner.size for inner in branch.inside) if depth == 1 else 0
        yield Row(guide + mark, _label(branch.names), branch.module, len(branch.names), hidden)
        if depth > 1:
            yield from _rows(branch.inside, depth - 1, guide + below, False)


def _label(names: tuple[str, ...]) -> str:
    return names[0] if len(names) == 1 else f"[{names[0]}-{names[-1]}]"


def analysis_tables(analysis: Analysis, *, detailed: bool = False) -> Iterator[RenderableType]:
    yield from _head(analysis)
    yield Text()
    yield _modules(analysis, detailed)
    yield Text()
    yield from _coverage(analysis)
    yield from _roles(analysis)
    yield from _unowned(analysis, detailed)
    if detailed:
        yield Text()
        yield _nodes(analysis)


def _head(analysis: Analysis) -> Iterator[RenderableType]:
    file = analysis.file
    yield plain(file.path, "bold")
    yield from (plain(line, "dim") for line in _facts(file))
    if not file.matches_record:
        yield Text(
            "The graph was changed after export: nodes that the record does not know have no module. "
            "`modelexport relink` finds out where they come from.",
            "yellow",
        )
    if analysis.filter_tag:
        yield plain(f"Only what has a tag with {analysis.filter_tag!r} in it.", "yellow")


def _facts(file: FileFacts) -> Iterator[str]:
    opsets = ", ".join(f"{domain} {version}" for domain, version in file.opsets.items())
    tools = ", ".join(f"{name} {version}" for name, version in file.tools.items())
    made = f"exported by {file.exporter}, attributed by {file.strategy}"
    yield f"{made} · IR {file.ir_version} · opset {opsets}"
    if tools:
        yield f"with {tools}"


def _modules(analysis: Analysis, detailed: bool) -> Table:
    shown = table(
        "Modules",
        "module",
        "class",
        "nodes",
        "params",
        "size",
        "own operators",
        right=("nodes", "params", "size"),
    )
    for row in module_rows(analysis.modules, most=0 if detailed else FEW):
        total = row.module.total
        shown.add_row(
            _module_name(row),
            plain(row.module.class_name, "cyan"),
            str(total.nodes),
            count_text(total.parameters) if total.parameters else "",
            bytes_text(total.bytes) if total.bytes else "",
            plain(_own_operators(row.module), "dim"),
        )
    return shown


def _own_operators(module: ModuleFacts) -> str:
    """Its own nodes by operator; those that do the work of several modules inside of it are told apart."""
    text = operators_text(module.own.op_types)
    return f"{text} · {module.own.shared} shared" if module.own.shared else text


def _module_name(row: Row) -> Text:
    name = Text(row.guide, "dim").append_text(plain(row.label or "(model)"))
    if row.count > 1:
        name.append(f" ×{row.count}", "bold").append(" each", "dim")
    elif row.module.calls > 1:
        name.append(f" called {row.module.calls}×", "dim")
    return name.append(f" … {row.hidden} inside", "dim") if row.hidden else name


def _coverage(analysis: Analysis) -> Iterator[RenderableType]:
    nodes, initializers = analysis.coverage.nodes, analysis.coverage.initializers
    shown = table("Coverage", "confidence", "nodes", "", "initializers", " ", right=("nodes", "", "initializers", " "))
    for level in sorted(Confidence, reverse=True):
        cells = (
            *_amount(nodes, nodes.by_confidence[level]),
            *_amount(initializers, initializers.by_confidence[level]),
        )
        shown.add_row(confidence_text(level), *cells)
    yield shown
    yield Text()
    evidence = table("Evidence", "kind", "nodes", "", right=("nodes", ""))
    for kind, count in nodes.by_evidence.items():
        if count:
            evidence.add_row(kind.value, *_amount(nodes, count))
    yield evidence


def _amount(tally: Tally, count: int) -> tuple[str, str]:
    return str(count), share_text(tally.share(count))


def _roles(analysis: Analysis) -> Iterator[RenderableType]:
    """How many nodes there are of each role; a record may know no roles at all."""
    if not analysis.roles:
        return
    tally = analysis.coverage.nodes
    yield Text()
    shown = table("Roles", "role", "nodes", "", "layers", right=("nodes", ""))
    for role in analysis.roles:
        shown.add_row(plain(role.role), *_amount(tally, role.nodes), _numbers_text(role.layers))
    without = tally.total - sum(role.nodes for role in analysis.roles)
    if without:
        shown.add_row(Text("(none)", "dim"), *_amount(tally, without), "")
    yield shown


def _numbers_text(numbers: Sequence[int]) -> str:
    """`0-3, 6`."""
    runs: list[list[int]] = []
    for number in numbers:
        if runs and number == runs[-1][-1] + 1:
            runs[-1].append(number)
        else:
            runs.append([number])
    return ", ".join(str(run[0]) if len(run) == 1 else f"{run[0]}-{run[-1]}" for run in runs)


def _unowned(analysis: Analysis, detailed: bool) -> Iterator[RenderableType]:
    """Modules that leave no trace; those that merely hold modules which do are no news."""
    alike: dict[tuple[str, ...], list[Unowned]] = {}
    for module in analysis.unowned:
        if detailed or not module.inside:
            key = (module.class_name, module.reason, module.path if detailed else "")
            alike.setdefault(key, []).append(module)
    if not alike:
        return
    yield Text()
    shown = table("Modules that own nothing", "module", "class", "why")
    for (class_name, reason, _), modules in alike.items():
        name = plain(modules[0].path or "(model)")
        if len(modules) > 1:
            name.append(f" and {len(modules) - 1} more", "dim")
        shown.add_row(name, plain(class_name, "cyan"), plain(reason, "dim"))
    yield shown


def _nodes(analysis: Analysis) -> Table:
    # A column in which nothing stands is left out: not every record knows roles.
    known = {
        "role": any(node.role for node in analysis.nodes),
        "layer": any(node.layer is not None for node in analysis.nodes),
    }
    optional = [column for column, used in known.items() if used]
    columns = ("node", "operator", "module", *optional, "tag", "confidence", "evidence")
    shown = table("Nodes", *columns, right=("layer",))
    for node in analysis.nodes:
        owners = " + ".join(owner or "(model)" for owner in node.modules)
        shown.add_row(
            plain(node.name or node.key),
            plain(node.op_type, "cyan"),
            plain(owners),
            *(_optional(node, column) for column in optional),
            plain(node.tag),
            confidence_text(node.confidence),
            plain("; ".join(node.evidence) or node.reason, "dim"),
        )
    return shown


def _optional(node: NodeFacts, column: str) -> Text:
    if column == "role":
        return plain(node.role)
    return plain("" if node.layer is None else str(node.layer))
