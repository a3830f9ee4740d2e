"""Analysis and answers for people: the tables of `analyze` and `query`.

    module                class        nodes  params     size  own operators
    (model)               BertModel      288   22.7M  90.9 MB  Unsqueeze 7, Shape 3, And 2, +8 more
    └ encoder             BertEncoder    255   10.6M  42.6 MB  Concat 2, Where · 3 shared
      └ layer             ModuleList     252   10.6M  42.6 MB
        └ [0-5] ×6 each   BertLayer       42    1.8M   7.1 MB

A column of the module table is a heading and a cell in `_modules`; if siblings can differ in it, it belongs into
`_shown` too. The figure itself comes from `inspect/analyze.py`, and goes into the JSON by `show/data/results.py`.

`query` lists nodes: a table, or one name on each line for scripts.

    node            operator  module                                role             layer  tag           confidence
    node_MatMul_82  MatMul    encoder.layer.0.attention.self.query  attention.query      0  /BertModel/…  exact

Equal siblings are one row, and levels that do not fit are counted as "inside"; `--format detailed` shows everything.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import groupby
from typing import TYPE_CHECKING

from rich.console import RenderableType
from rich.table import Table
from rich.text import Text

from modelexport.errors import printable
from modelexport.graph.file.tagged_file import STALE_NOTE
from modelexport.inspect.analyze import Analysis, FileFacts, ModuleFacts, Tally, Unowned
from modelexport.record.provenance import Confidence, NodeEntry, Origin, Provenance
from modelexport.show.module_tree import GroupedRow, Item, grouped_rows
from modelexport.show.text.console import (
    MOST_ROWS,
    add_rest,
    bytes_text,
    confidence_text,
    count_text,
    modules_text,
    operators_text,
    plain,
    share_text,
    table,
)
from modelexport.show.text.table_layout import PlainTable

if TYPE_CHECKING:
    from modelexport.inspect.query.answer import Answer

_FEW = 40  # rows of the module table that can be read at once


def analysis_tables(analysis: Analysis, *, detailed: bool = False) -> Iterator[RenderableType]:
    yield from (*_head(analysis), Text(), _modules(analysis, detailed), Text())
    yield from _coverage(analysis)
    yield from _roles(analysis)
    yield from _unowned(analysis, detailed)
    if detailed:
        yield from (Text(), _nodes(analysis))


def _head(analysis: Analysis) -> Iterator[RenderableType]:
    file = analysis.file
    # Who made the file and with what, for a report of a bug.
    opsets = ", ".join(f"{domain} {version}" for domain, version in file.opsets.items())
    tools = ", ".join(f"{name} {version}" for name, version in file.tools.items())
    origin = _origin_text(file)
    yield plain(file.path, "bold")
    yield plain(f"{origin} · IR {file.ir_version} · opset {opsets}", "dim")
    if tools:
        yield plain(f"with {tools}", "dim")
    if not file.matches_record:
        yield plain(STALE_NOTE, "yellow")
    if analysis.filter_tag:
        yield plain(f"Only what has a tag with {analysis.filter_tag!r} in it.", "yellow")


def _origin_text(file: FileFacts) -> str:
    origin = Origin(file.strategy, file.exporter)
    if not origin.is_file:
        return f"exported by {file.exporter}, attributed by {file.strategy}"
    return origin.source_text if file.has_record else f"no record: {origin.source_text}"


def _modules(analysis: Analysis, detailed: bool) -> PlainTable:
    """Amounts are of a module with everything inside; operators are its own, or each would be listed at every level."""
    numbers = ("nodes", "params", "size")
    shown = table("Modules", "module", "class", *numbers, "own operators", right=numbers)
    rows = module_rows(analysis.modules, most=0 if detailed else _FEW)
    most = len(rows) if detailed else MOST_ROWS
    for row in rows[:most]:
        module, own, total = row.item, row.item.own, row.item.total
        # Nodes that do the work of several modules inside of it are told apart.
        operators = operators_text(own.op_types) + (f" · {own.shared} shared" if own.shared else "")
        shown.add_row(
            module_label(row, row.item.calls),
            plain(module.class_name, "cyan"),
            str(total.nodes),
            count_text(total.parameters) if total.parameters else "",
            bytes_text(total.bytes) if total.bytes else "",
            plain(operators, "dim"),
        )
    add_rest(shown, len(rows) - most)
    return shown


def module_rows(modules: Sequence[ModuleFacts], most: int = _FEW) -> list[GroupedRow[ModuleFacts]]:
    return grouped_rows(modules, _shown, most)


def _shown(module: ModuleFacts) -> tuple[object, ...]:
    """What must be equal of modules that have one row: all that the row says, as it says it.

    Not the bytes themselves: a quantizer stores a scale of a few bytes with the first module that reads it.
    """
    total = module.total
    own = tuple(module.own.op_types.items()), module.own.shared
    return module.class_name, module.calls, total.nodes, total.parameters, bytes_text(total.bytes), own


def module_label(row: GroupedRow[Item], calls: int = 1) -> Text:
    """`layer.3 called 2× … 14 inside`: what the row stands for, if that is more than one module called once."""
    name = Text(row.guide, "dim").append_text(plain(row.label or "(model)"))
    if row.count > 1:
        name.append(f" ×{row.count}", "bold").append(" each", "dim")
    elif calls > 1:
        name.append(f" called {calls}×", "dim")
    return name.append(f" … {row.hidden} inside", "dim") if row.hidden else name


def _coverage(analysis: Analysis) -> Iterator[RenderableType]:
    """All levels of confidence are listed, also those with 0 nodes: that there are none is worth knowing."""
    nodes, initializers = analysis.coverage.nodes, analysis.coverage.initializers
    shown = table("Coverage", "confidence", "nodes", "", "initializers", " ", right=("nodes", "", "initializers", " "))
    for level in sorted(Confidence, reverse=True):
        counts = *_amount(nodes, nodes.by_confidence[level]), *_amount(initializers, initializers.by_confidence[level])
        shown.add_row(confidence_text(level), *counts)
    yield from (shown, Text())
    evidence = table("Evidence", "kind", "nodes", "", right=("nodes", ""))
    for kind, count in nodes.by_evidence.items():
        if count:
            evidence.add_row(kind.value, *_amount(nodes, count))
    yield evidence
    classes = analysis.coverage.classes
    if classes.described or classes.unknown:
        tally = f"{classes.known} known, {classes.described} described, {classes.unknown} unknown"
        yield from (Text(), plain(f"Classes of modules: {tally}."))


def _amount(tally: Tally, count: int) -> tuple[str, str]:
    return str(count), share_text(tally.share(count))


def _roles(analysis: Analysis) -> Iterator[RenderableType]:
    if not analysis.roles:
        return
    tally = analysis.coverage.nodes
    yield Text()
    shown = table("Roles", "role", "nodes", "", "layers", right=("nodes", ""))
    for role in analysis.roles:
        shown.add_row(plain(role.role), *_amount(tally, role.nodes), _numbers_text(role.layers))
    # The shares of all rows are to add up to everything.
    without = tally.total - sum(role.nodes for role in analysis.roles)
    if without:
        shown.add_row(Text("(none)", "dim"), *_amount(tally, without), "")
    yield shown


def _numbers_text(numbers: Sequence[int]) -> str:
    """`0-3, 6`."""
    # Numbers that follow each other are as far from their positions.
    runs = [[number for _, number in run] for _, run in groupby(enumerate(numbers), lambda pair: pair[1] - pair[0])]
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
    """The long table of `--format detailed`; its last column says why a node is where it is, or why nowhere."""
    cells = [{"role": node.role, "layer": _layer_text(node.layer)} for node in analysis.nodes]
    optional = _used_columns(cells)
    columns = ("node", "operator", "module", *optional, "tag", "confidence", "evidence")
    shown = table("Nodes", *columns, right=("layer",))
    for node, texts in zip(analysis.nodes, cells, strict=True):
        shown.add_row(
            plain(node.name or node.key),
            plain(node.op_type, "cyan"),
            plain(modules_text(node.modules)),
            *(plain(texts[column]) for column in optional),
            plain(node.tag),
            confidence_text(node.confidence),
            plain("; ".join(node.evidence) or node.reason, "dim"),
        )
    return shown


def _layer_text(layer: int | None) -> str:
    return "" if layer is None else str(layer)


def _used_columns(rows: Sequence[Mapping[str, str]]) -> list[str]:
    """A column in which nothing stands is left out: not every record knows roles."""
    return [column for column in (rows[0] if rows else ()) if any(row[column] for row in rows)]


def query_names(answer: Answer) -> str:
    label = _labels(answer.provenance)
    return "".join(f"{printable(label(entry))}\n" for entry in answer.nodes)


def query_table(answer: Answer) -> Iterator[RenderableType]:
    """Nodes in the order of the file, which is one that they can run in."""
    from modelexport.record.lineage import Relation, descent_of

    nodes, provenance = answer.nodes, answer.provenance
    if nodes:
        label = _labels(provenance)
        relations = [str(descent_of(entry.attribution) or "") for entry in nodes]
        # In a file that no tool has changed, every node is what it was.
        if set(relations) <= {"", Relation.KEPT}:
            relations = [""] * len(nodes)
        cells = [
            {"role": entry.attribution.role, "layer": _layer_text(entry.attribution.layer_id), "relation": relation}
            for entry, relation in zip(nodes, relations, strict=True)
        ]
        optional = _used_columns(cells)
        shown = table("", "node", "operator", "module", *optional, "tag", "confidence", right=("layer",))
        for entry, texts in zip(nodes, cells, strict=True):
            attribution = entry.attribution
            shown.add_row(
                plain(label(entry)),
                plain(entry.op_type, "cyan"),
                plain(modules_text(attribution.modules) or attribution.reason),
                *(plain(texts[column]) for column in optional),
                plain(provenance.tag(attribution)),
                confidence_text(attribution.confidence),
            )
        yield from (shown, Text())
    yield Text(f"{len(nodes)} of {len(provenance.nodes)} nodes", "dim")


def _labels(provenance: Provenance) -> Callable[[NodeEntry], str]:
    """A name that two nodes have, or that is the key of another one, would select the wrong node."""
    counts = Counter(entry.name for entry in provenance.nodes.values())

    def label(entry: NodeEntry) -> str:
        is_ambiguous = entry.name in provenance.nodes and entry.name != entry.key
        return entry.key if not entry.name or counts[entry.name] > 1 or is_ambiguous else entry.name

    return label
